//! What connections are made of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A connection's stream, and the socket under it.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// Returns the socket, for looking at its state and setting options; `None` when there is none.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl Stream for TcpStream {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl Stream for UnixStream {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl Stream for DuplexStream {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl<S: Stream> Stream for TlsStream<S> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.get_ref().0.fd()
    }
}

impl<S: Stream + ?Sized> Stream for Box<S> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
}

/// A client's stream. Once a request of it is forwarded, reading it discards what follows, as a second
/// request is not for the first one's target, and reports the end: what comes behind an answer is one.
#[derive(Debug)]
pub struct Downstream<S> {
    stream: S,
    pub(crate) discards: bool,
    answered: bool,
}

impl<S> Downstream<S> {
    /// Wraps a stream of which nothing has been read.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            discards: false,
            answered: false,
        }
    }
}

impl<S: Stream> Stream for Downstream<S> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.fd()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Downstream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        loop {
            // Sockets yield by themselves to other tasks.
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            if !self.discards || buf.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            buf.set_filled(before);
            // The client took the connection for one that is kept, and sends again on another.
            if self.answered {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Downstream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answered |= self.discards;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
