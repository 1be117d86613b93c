//! The socket under TLS: what is written in one go leaves in one call, and what has come is read in one.
//!
//! ```text
//!     TLS records ──▶ gathered ──┐                          ┌── 64 KiB at a time ◀── socket
//!     end of the task's turn ────┴─▶ socket      TLS ◀── 4 KiB at a time
//! ```
//!
//! A record at a time costs a system call for each; rustls reads 4 KiB at a time. Both buffers are empty, and
//! of no size, while nothing happens.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use relay::{Direction, Meter};
use serve::ConnInfo;
use telemetry::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::coop;

/// Bytes that are read, or gathered, at a time.
const MOST: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; MOST]);
}

/// The socket as TLS sees it.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: OwnedReadHalf,
    shared: Arc<Shared>,
    /// What was read and not yet taken, from `taken` on.
    ahead: Vec<u8>,
    taken: usize,
}

/// The socket as the task sees it that drives a connection.
#[derive(Clone, Debug)]
pub(crate) struct Driver(Arc<Shared>);

/// A socket that is upgraded may move to another thread, as hyper sees it.
#[derive(Debug)]
struct Shared {
    out: Mutex<Out>,
    gathers: AtomicBool,
    /// Bytes since they were reported last.
    rx: AtomicU64,
    tx: AtomicU64,
}

#[derive(Debug)]
struct Out {
    /// None once the connection is to be reset.
    socket: Option<OwnedWriteHalf>,
    /// Why nothing more can be written.
    failed: Option<io::ErrorKind>,
    /// What was written, of which the socket has the first `sent`.
    bytes: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Takes a socket of which some bytes were read already.
    pub(crate) fn new(stream: TcpStream, ahead: Vec<u8>) -> (Self, Driver) {
        let (socket, sink) = stream.into_split();
        let out = Out {
            socket: Some(sink),
            failed: None,
            bytes: Vec::new(),
            sent: 0,
        };
        let shared = Arc::new(Shared {
            out: Mutex::new(out),
            gathers: AtomicBool::new(false),
            rx: AtomicU64::new(0),
            tx: AtomicU64::new(0),
        });
        let driver = Driver(Arc::clone(&shared));
        let wire = Self {
            socket,
            shared,
            ahead,
            taken: 0,
        };
        (wire, driver)
    }

    /// Makes the end of it a reset, ahead of which no end of the stream is sent.
    pub(crate) fn reset(&self) {
        let socket: &TcpStream = self.socket.as_ref();
        relay::reset_on_close(socket);
        if let Some(half) = self.shared.out().socket.take() {
            half.forget();
        }
    }
}

impl Driver {
    /// Polls a future that reads and writes the connection; what it wrote leaves at the end of each turn. Counts
    /// what passes among the bytes of `info`.
    pub(crate) async fn drive<F: Future>(&self, future: Pin<&mut F>, info: &ConnInfo) -> F::Output {
        self.turns(future, || self.report(info)).await
    }

    /// As [`Driver::drive`], and counts nothing; `after` is called at the end of each turn.
    pub(crate) async fn run<F: Future>(&self, future: F, after: impl Fn()) -> F::Output {
        self.turns(pin!(future), after).await
    }

    /// Returns how many bytes have come, as long as none are counted elsewhere.
    pub(crate) fn received(&self) -> u64 {
        self.0.rx.load(Ordering::Relaxed)
    }

    async fn turns<F: Future>(&self, mut future: Pin<&mut F>, after: impl Fn()) -> F::Output {
        self.0.gathers.store(true, Ordering::Relaxed);
        let output = poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            // What went wrong is seen by the next that reads or writes.
            let _ = self.0.out().poll_send(cx);
            after();
            polled
        })
        .await;
        self.0.gathers.store(false, Ordering::Relaxed);
        output
    }

    fn report(&self, info: &ConnInfo) {
        for (direction, bytes) in [(Direction::Rx, &self.0.rx), (Direction::Tx, &self.0.tx)] {
            let bytes = bytes.swap(0, Ordering::Relaxed);
            if bytes > 0 {
                info.relayed(direction, bytes, true);
            }
        }
    }
}

impl Shared {
    fn out(&self) -> MutexGuard<'_, Out> {
        lock(&self.out)
    }

    /// Gathers some bytes of `parts`, or sends what is there first.
    fn poll_gather<'a>(
        &self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Poll<io::Result<usize>> {
        let mut out = self.out();
        out.check()?;
        if out.bytes.len() >= MOST {
            ready!(out.poll_send(cx))?;
        }
        let before = out.bytes.len();
        parts.for_each(|part| out.bytes.extend_from_slice(part));
        let written = out.bytes.len() - before;
        self.tx.fetch_add(written as u64, Ordering::Relaxed);
        if !self.gathers.load(Ordering::Relaxed) {
            // What is left over is sent by a flush, or before what is written next.
            let _ = out.poll_send(cx)?;
        }
        Poll::Ready(Ok(written))
    }
}

impl Out {
    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Sends what is gathered, until there is none of it.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        while self.sent < self.bytes.len() {
            let rest = &self.bytes[self.sent..];
            let Some(socket) = &mut self.socket else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            let error = match ready!(Pin::new(socket).poll_write(cx, rest)) {
                Ok(sent) if sent > 0 => {
                    self.sent += sent;
                    continue;
                }
                Ok(_) => io::ErrorKind::WriteZero.into(),
                Err(error) => error,
            };
            self.failed = Some(error.kind());
            return Poll::Ready(Err(error));
        }
        (self.bytes, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = &mut *self;
        if own.taken < own.ahead.len() {
            // As each read of a socket does: one that sends much does not keep others waiting.
            ready!(coop::poll_proceed(cx)).made_progress();
            let rest = &own.ahead[own.taken..];
            let len = rest.len().min(into.remaining());
            into.put_slice(&rest[..len]);
            own.taken += len;
            own.shared.rx.fetch_add(len as u64, Ordering::Relaxed);
            if own.taken == own.ahead.len() {
                (own.ahead, own.taken) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(&mut own.socket).poll_read(cx, &mut read))?;
            let len = read.filled().len().min(into.remaining());
            let (now, later) = read.filled().split_at(len);
            into.put_slice(now);
            own.ahead.extend_from_slice(later);
            own.shared.rx.fetch_add(len as u64, Ordering::Relaxed);
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.poll_gather(cx, std::iter::once(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.shared
            .poll_gather(cx, slices.iter().map(|slice| &**slice))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shared.gathers.load(Ordering::Relaxed) {
            return Poll::Ready(self.shared.out().check());
        }
        self.shared.out().poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.shared.out();
        ready!(out.poll_send(cx))?;
        match &mut out.socket {
            Some(socket) => Pin::new(socket).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
