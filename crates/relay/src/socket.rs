//! A connected TCP socket of which the runtime also reports urgent data (tcp(7)).
//!
//! Reads stop at a byte that the peer marked as urgent, as if all had been read, and the kernel reports no
//! change for what is behind. tokio's `TcpStream` is not registered for EPOLLPRI and so cannot tell one from the other.
//!
//! Does not read urgent bytes, which the kernel drops, and has no halves and no vectored writes: hyper and rustls
//! get a `TcpStream`.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send};
use socket2::SockRef;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// A connected TCP socket of the current runtime.
#[derive(Debug)]
pub struct Socket(AsyncFd<TcpStream>);

impl Socket {
    /// Connects a new socket that does not block to `addr`. Cancel-safe: a dropped attempt closes it.
    ///
    /// # Errors
    /// Those of connect(2), which the kernel may report at once or later.
    pub async fn connect(socket: socket2::Socket, addr: SocketAddr) -> io::Result<Self> {
        if let Err(error) = socket.connect(&addr.into())
            && Errno::from_io_error(&error) != Some(Errno::INPROGRESS)
        {
            return Err(error);
        }
        let socket = Self::try_from(TcpStream::from(socket))?;
        poll_fn(|cx| socket.poll_write_ready(cx)).await?;
        match socket.take_error()? {
            None => Ok(socket),
            Some(error) => Err(error),
        }
    }

    /// Returns the socket without the runtime.
    pub fn into_std(self) -> TcpStream {
        self.0.into_inner()
    }

    /// Returns the socket as tokio's own, registered anew.
    ///
    /// # Errors
    /// The kernel's: it cannot be registered anew.
    pub fn into_tokio(self) -> io::Result<tokio::net::TcpStream> {
        tokio::net::TcpStream::from_std(self.into_std())
    }

    /// Waits until it may be ready for `interest`. Cancel-safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn ready(&self, interest: Interest) -> io::Result<()> {
        self.0.ready(interest).await.map(drop)
    }

    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(cx).map_ok(drop)
    }

    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_write_ready(cx).map_ok(drop)
    }

    /// Runs `io` if the socket may be ready for it. If it would block, the runtime waits for the next change.
    pub(crate) fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.0.try_io(interest, |_| io())
    }

    /// Clears a readiness without asking the kernel, which would only answer that there is nothing: a
    /// stream socket that gave or took less than offered is empty or full, and edge-triggered epoll
    /// reports the next change (epoll(7), Q9).
    pub(crate) fn not_ready(&self, interest: Interest) {
        let _ = self.try_io::<()>(interest, || Err(io::ErrorKind::WouldBlock.into()));
    }

    /// As [`Self::not_ready`] after a read that returned less than asked for, and true; false where it may have
    /// stopped at urgent data. For runtimes of one thread, as all of the relay.
    pub(crate) fn clear_if_drained(&self) -> bool {
        let drained = !self.take_urgent();
        if drained {
            self.not_ready(Interest::READABLE);
        }
        drained
    }

    /// Returns whether urgent data may have come since the last call; always true once the peer has ended.
    pub(crate) fn take_urgent(&self) -> bool {
        let mut urgent = false;
        let _ = self.try_io::<()>(Interest::PRIORITY, || {
            urgent = true;
            Err(io::ErrorKind::WouldBlock.into())
        });
        urgent
    }

    /// Receives once; the error is `WouldBlock` where nothing was there.
    pub(crate) fn receive(&self, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.try_io(Interest::READABLE, || Ok(recv(self, into, flags)?.0))
    }

    /// Appends to `into` what has come, as far as its capacity goes; 0 is the end of the stream. For runtimes of
    /// one thread.
    ///
    /// # Errors
    /// `WouldBlock` where nothing was there; those of the connection.
    pub fn try_read(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        let capacity = into.capacity() - into.len();
        let read = self.try_io(Interest::READABLE, || self.append(into))?;
        if (1..capacity).contains(&read) {
            self.clear_if_drained();
        }
        Ok(read)
    }

    /// As [`Self::try_read`], but asks the kernel also while the runtime has not reported the socket, which is new.
    ///
    /// # Errors
    /// As those of [`Self::try_read`].
    pub fn try_first_read(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self.try_read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.append(into),
            read => read,
        }
    }

    fn append(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        Ok(recv(self, spare_capacity(into), RecvFlags::DONTWAIT)?.0)
    }

    /// Sends once; the error is `WouldBlock` where nothing was taken.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, || Ok(send(self, bytes, SENDING)?))
    }

    /// Returns the bytes of its receive buffer, as they were set.
    pub(crate) fn receive_buffer(&self) -> Option<usize> {
        let doubled = SockRef::from(self).recv_buffer_size().ok()?;
        Some(doubled / 2)
    }

    /// Reads as many bytes as `peeked` has, which have come, and discards them: with
    /// MSG_TRUNC the kernel does not copy them (tcp(7)). They cannot be gone: one reader has the socket,
    /// and a reset leaves what was queued. Only a sender whose urgent pointer returns to a byte that was
    /// received before (RFC 6093 §3) can lose one more of its own.
    pub(crate) fn discard(&self, peeked: &mut [u8]) -> io::Result<()> {
        let mut left = peeked.len();
        while left > 0 {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match recv(self, &mut peeked[..left], flags) {
                // They were sent on already: going on would send them twice.
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((gone, _)) => left -= gone,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Takes a connected socket that does not block.
impl TryFrom<TcpStream> for Socket {
    type Error = io::Error;

    fn try_from(socket: TcpStream) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
        #[expect(
            deprecated,
            reason = "sound for a socket that is owned; its replacement is unsafe code"
        )]
        AsyncFd::with_interest(socket, interest).map(Self)
    }
}

impl Deref for Socket {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        self.0.get_ref()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            let wanted = unfilled.len();
            let read = ready.try_io(|_| Ok(recv(&*self, unfilled, RecvFlags::DONTWAIT)?.0));
            match read {
                Ok(Ok(read)) => {
                    if (1..wanted).contains(&read) && !self.take_urgent() {
                        ready.clear_ready();
                    }
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => {
                    return Poll::Ready(Err(error));
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(cx))?;
            match ready.try_io(|_| Ok(send(&*self, bytes, SENDING)?)) {
                Ok(Ok(written)) => {
                    if written < bytes.len() {
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(written));
                }
                Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => {
                    return Poll::Ready(Err(error));
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self, Shutdown::Write).map_err(io::Error::from))
    }
}

const SENDING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

pub(crate) fn would_block_or_interrupted(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
