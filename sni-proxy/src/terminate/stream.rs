//! A stream of which some bytes were read already, before HTTP/2 began.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

#[derive(Debug)]
pub(crate) struct PrefixedStream<S> {
    stream: S,
    early: Vec<u8>,
    read: usize,
}

impl<S> PrefixedStream<S> {
    pub(crate) fn new(stream: S, early: Vec<u8>) -> Self {
        Self {
            stream,
            early,
            read: 0,
        }
    }
}

/// Waits for the preface of HTTP/2 (RFC 9113 section 3.4), for which hyper has no limit; `None` if it does not come.
pub(crate) async fn preface<S: AsyncRead + Unpin>(
    mut stream: S,
    by: Instant,
) -> Option<PrefixedStream<S>> {
    let mut read = vec![0; PREFACE_BYTES];
    let whole = timeout_at(by, stream.read_exact(&mut read)).await;
    whole.ok()?.ok()?;
    Some(PrefixedStream::new(stream, read))
}

const PREFACE_BYTES: usize = 24;

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = self.early.get(self.read..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let len = rest.len().min(into.remaining());
        into.put_slice(&rest[..len]);
        self.read += len;
        if self.read == self.early.len() {
            (self.early, self.read) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
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
