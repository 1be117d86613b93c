//! A stream of which some bytes were read already, before TLS or before HTTP/2 began; counts what passes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use relay::{Direction, Meter};
use serve::ConnInfo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

#[derive(Debug)]
pub(crate) struct Early<S> {
    stream: S,
    early: Vec<u8>,
    read: usize,
    passed: Arc<Passed>,
}

/// Bytes that passed since they were reported last. A socket that is upgraded may move to another thread, as
/// hyper sees it; the record of its connection may not.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    rx: AtomicU64,
    tx: AtomicU64,
}

impl Passed {
    /// Counts them among those of the connection.
    pub(crate) fn report(&self, info: &ConnInfo) {
        for (direction, bytes) in [(Direction::Rx, &self.rx), (Direction::Tx, &self.tx)] {
            let bytes = bytes.swap(0, Ordering::Relaxed);
            if bytes > 0 {
                info.relayed(direction, bytes, true);
            }
        }
    }
}

impl<S> Early<S> {
    pub(crate) fn new(stream: S, early: Vec<u8>, passed: Arc<Passed>) -> Self {
        Self {
            stream,
            early,
            read: 0,
            passed,
        }
    }

    pub(crate) fn inner(&self) -> &S {
        &self.stream
    }
}

/// Waits for the preface of HTTP/2 (RFC 9113 section 3.4), for which hyper has no limit; `None` if it does not come.
pub(crate) async fn preface<S: AsyncRead + Unpin>(mut stream: S, by: Instant) -> Option<Early<S>> {
    let mut read = vec![0; PREFACE_BYTES];
    let whole = timeout_at(by, stream.read_exact(&mut read)).await;
    whole.ok()?.ok()?;
    Some(Early::new(stream, read, Arc::default()))
}

const PREFACE_BYTES: usize = 24;

impl<S: AsyncRead + Unpin> AsyncRead for Early<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let rest = self.early.get(self.read..).unwrap_or_default();
        if rest.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        } else {
            let len = rest.len().min(into.remaining());
            into.put_slice(&rest[..len]);
            self.read += len;
            if self.read == self.early.len() {
                (self.early, self.read) = (Vec::new(), 0);
            }
        }
        let bytes = into.filled().len() - before;
        self.passed.rx.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Early<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.passed.tx.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        self.passed.tx.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
