//! Yields to other tasks after reading 256 KiB from one connection, and once an agent's tenant has
//! used its share of the thread up.
//!
//! ```text
//!   HTTP/2 ◀── TLS ◀── 256 KiB, then a pause ── socket
//! ```
//!
//! HTTP/2 takes frames as long as there are any, and what one agent sends without end would keep
//! the links and tunnels of all others waiting. Writes are passed on as they are: tunnels are
//! scheduled fairly there already.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use connect::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fair_share::Flow;

/// A stream whose reads yield after a budget.
#[derive(Debug)]
pub(crate) struct ReadBudget<S> {
    io: S,
    /// Bytes read since the last pause.
    spent: usize,
    flow: Rc<Flow>,
}

impl<S> ReadBudget<S> {
    /// Wraps `io`.
    pub(crate) fn new(io: S) -> Self {
        Self {
            io,
            spent: 0,
            flow: Rc::default(),
        }
    }

    /// Returns what reads are counted in.
    pub(crate) fn flow(&self) -> Rc<Flow> {
        Rc::clone(&self.flow)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadBudget<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.spent >= BUDGET {
            this.spent = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(this.flow.poll_ready(cx));
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        match read {
            Poll::Ready(_) => {
                let len = buf.filled().len() - before;
                this.spent += len;
                this.flow.charge(len);
            }
            Poll::Pending => this.spent = 0,
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadBudget<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
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
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<S: Stream> Stream for ReadBudget<S> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.io.fd()
    }
}

/// Bytes read before yielding.
const BUDGET: usize = 256 << 10;

#[cfg(test)]
mod tests {
    mod shares;

    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, repeat};

    use super::*;

    #[tokio::test]
    async fn endless_source_yields_after_budget() {
        let mut source = ReadBudget::new(repeat(7));
        let mut bytes = vec![0; 16 << 10];
        let mut spent = 0;
        poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut bytes);
            while Pin::new(&mut source).poll_read(cx, &mut buf).is_ready() {
                spent += buf.filled().len();
                assert!(spent <= BUDGET);
                buf.clear();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(spent, BUDGET);
        // It is woken by itself, and nothing is lost.
        source.read_exact(&mut bytes).await.unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn pending_read_resets_the_budget() {
        let (_far, near) = tokio::io::duplex(100);
        let mut near = ReadBudget::new(near);
        near.spent = BUDGET - 1;
        let mut cx = Context::from_waker(Waker::noop());
        let mut bytes = [0; 10];
        let mut buf = ReadBuf::new(&mut bytes);
        assert!(
            Pin::new(&mut near)
                .poll_read(&mut cx, &mut buf)
                .is_pending()
        );
        assert_eq!(near.spent, 0);
    }
}
