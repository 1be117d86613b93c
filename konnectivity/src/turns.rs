//! Lets others of a thread have their turn while a link brings more and more.
//!
//! ```text
//!   HTTP/2 ◀── TLS ◀── 256 KiB, then a pause ── socket
//! ```
//!
//! HTTP/2 takes frames as long as there are any, and what one agent sends without end would keep
//! the links and tunnels of all others waiting. Writes are passed on as they are: tunnels take
//! turns there already.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use connect::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that is read in turns.
#[derive(Debug)]
pub(crate) struct Turns<S> {
    io: S,
    /// Octets read without a pause.
    at_once: usize,
}

impl<S> Turns<S> {
    /// Has `io` read in turns.
    pub(crate) fn new(io: S) -> Self {
        Self { io, at_once: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Turns<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.at_once >= TURN {
            this.at_once = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        match read {
            Poll::Ready(_) => this.at_once += buf.filled().len() - before,
            Poll::Pending => this.at_once = 0,
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Turns<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, octets)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, octets)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<S: Stream> Stream for Turns<S> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.io.fd()
    }
}

/// Octets in a row.
const TURN: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, repeat};

    use super::*;

    #[tokio::test]
    async fn a_source_without_end_pauses() {
        let mut source = Turns::new(repeat(7));
        let mut octets = vec![0; 16 << 10];
        let mut at_once = 0;
        poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut octets);
            while Pin::new(&mut source).poll_read(cx, &mut buf).is_ready() {
                at_once += buf.filled().len();
                assert!(at_once <= TURN);
                buf.clear();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(at_once, TURN);
        // Its turn comes again by itself, and nothing is lost.
        source.read_exact(&mut octets).await.unwrap();
        assert!(octets.iter().all(|octet| *octet == 7));
    }

    #[test]
    fn who_waited_begins_a_turn_anew() {
        let (_far, near) = tokio::io::duplex(100);
        let mut near = Turns::new(near);
        near.at_once = TURN - 1;
        let mut cx = Context::from_waker(Waker::noop());
        let mut octets = [0; 10];
        let mut buf = ReadBuf::new(&mut octets);
        assert!(
            Pin::new(&mut near)
                .poll_read(&mut cx, &mut buf)
                .is_pending()
        );
        assert_eq!(near.at_once, 0);
    }
}
