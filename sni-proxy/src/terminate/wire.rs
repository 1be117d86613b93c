//! The socket under TLS: what is written in one go leaves in one call.
//!
//! ```text
//!     TLS records ──▶ gathered ──▶ end of the task's turn ──▶ socket
//! ```
//!
//! A record at a time costs a system call for each. What is gathered is empty, and of no size, while nothing
//! happens.

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

/// Bytes that are read, or gathered, at a time.
pub(crate) const MOST: usize = 64 * 1024;

/// The socket as TLS sees it.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: OwnedReadHalf,
    shared: Arc<Shared>,
}

/// The socket as the task sees it that drives a connection.
#[derive(Clone, Debug)]
pub(crate) struct Driver(Arc<Shared>);

/// A socket that is upgraded may move to another thread, as hyper sees it.
#[derive(Debug)]
struct Shared {
    out: Mutex<Out>,
    gathers: AtomicBool,
    /// Bytes read since they were reported last.
    rx: AtomicU64,
}

/// What the socket is to send.
#[derive(Debug)]
pub(crate) struct Out {
    /// None once the connection is to be reset.
    socket: Option<OwnedWriteHalf>,
    /// Why nothing more can be written.
    failed: Option<io::ErrorKind>,
    /// What was written, of which the socket has the first `sent`.
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes sent since they were reported last.
    tx: u64,
}

impl Wire {
    /// Takes a socket of which `early` bytes were read already.
    pub(crate) fn new(stream: TcpStream, early: usize) -> (Self, Driver) {
        let (socket, sink) = stream.into_split();
        let out = Out {
            socket: Some(sink),
            failed: None,
            bytes: Vec::new(),
            sent: 0,
            tx: 0,
        };
        let shared = Arc::new(Shared {
            out: Mutex::new(out),
            gathers: AtomicBool::new(false),
            rx: AtomicU64::new(early as u64),
        });
        let driver = Driver(Arc::clone(&shared));
        let wire = Self { socket, shared };
        (wire, driver)
    }

    /// Reads once; returns how many bytes came, 0 at the end.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(room);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut room))?;
        let len = room.filled().len();
        self.shared.rx.fetch_add(len as u64, Ordering::Relaxed);
        Poll::Ready(Ok(len))
    }

    /// Waits until more may be appended to what the socket is to send.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.out();
        out.check()?;
        match out.bytes.len() < MOST {
            true => Poll::Ready(Ok(())),
            false => out.poll_send(cx),
        }
    }

    #[cfg(test)]
    pub(super) fn received(&self) -> u64 {
        self.shared.rx.load(Ordering::Relaxed)
    }

    pub(crate) fn out(&self) -> MutexGuard<'_, Out> {
        self.shared.out()
    }

    /// Sends what was appended, or leaves that to the end of the task's turn. What went wrong is seen by the next
    /// that writes, and what is left over is sent by a flush or before what is written next.
    pub(crate) fn sends(&self, cx: &mut Context<'_>) {
        if !self.shared.gathers.load(Ordering::Relaxed) {
            let _ = self.out().poll_send(cx);
        }
    }

    /// Sends all that was appended.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.out().poll_send(cx)
    }

    /// As [`Wire::poll_send`], or leaves that to the end of the task's turn.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.shared.gathers.load(Ordering::Relaxed) {
            true => Poll::Ready(self.out().check()),
            false => self.poll_send(cx),
        }
    }

    /// Sends all, and the end of the stream.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.out();
        ready!(out.poll_send(cx))?;
        match &mut out.socket {
            Some(socket) => Pin::new(socket).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
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
    pub(crate) fn drive<F: Future>(
        &self,
        future: Pin<&mut F>,
        info: &ConnInfo,
    ) -> impl Future<Output = F::Output> {
        self.turns(future, || self.report(info))
    }

    /// As [`Driver::drive`], and counts nothing; `after` is called at the end of each turn.
    pub(crate) async fn run<F: Future>(&self, future: F, after: impl Fn()) -> F::Output {
        self.turns(pin!(future), after).await
    }

    /// Returns how many bytes have come, as long as none are counted elsewhere.
    pub(crate) fn received(&self) -> u64 {
        self.0.rx.load(Ordering::Relaxed)
    }

    /// No `async`, which would hold everything twice.
    fn turns<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        after: impl Fn(),
    ) -> impl Future<Output = F::Output> {
        poll_fn(move |cx| {
            self.0.gathers.store(true, Ordering::Relaxed);
            let polled = future.as_mut().poll(cx);
            // What went wrong is seen by the next that reads or writes.
            let _ = self.0.out().poll_send(cx);
            after();
            if polled.is_ready() {
                self.0.gathers.store(false, Ordering::Relaxed);
            }
            polled
        })
    }

    fn report(&self, info: &ConnInfo) {
        let rx = self.0.rx.swap(0, Ordering::Relaxed);
        let tx = std::mem::take(&mut self.0.out().tx);
        for (direction, bytes) in [(Direction::Rx, rx), (Direction::Tx, tx)] {
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
}

impl Out {
    /// Appends what `write` puts into the first bytes of `room` more.
    pub(crate) fn append(
        &mut self,
        room: usize,
        write: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let before = self.bytes.len();
        self.bytes.resize(before + room, 0);
        let written = write(&mut self.bytes[before..]);
        self.bytes
            .truncate(before + *written.as_ref().unwrap_or(&0));
        written.map(drop)
    }

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
                    self.tx += sent as u64;
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
