//! What connections are made of.

use std::os::fd::{AsFd, BorrowedFd};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
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
