//! What a relay asks of one TCP socket, apart from moving its bytes on.

use std::io;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Reads as many bytes as `peeked` has from `source`, which has them, and discards them: with
/// MSG_TRUNC the kernel does not copy them (tcp(7)). They cannot be gone: one reader has the socket,
/// and a reset leaves what was queued. Only a sender whose urgent pointer returns to a byte that was
/// received before (RFC 6093 §3) can lose one more of its own.
pub(crate) fn discard(source: &TcpStream, peeked: &mut [u8]) -> io::Result<()> {
    let mut left = peeked.len();
    while left > 0 {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match recv(source, &mut peeked[..left], flags) {
            // They were sent on already: going on would send them twice.
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((gone, _)) => left -= gone,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Clears a readiness without asking the kernel, which would only answer that there is nothing: a
/// stream socket that gave or took less than offered is empty or full, and edge-triggered epoll
/// reports the next change (epoll(7), Q9).
pub fn not_ready(stream: &TcpStream, interest: Interest) {
    let _ = stream.try_io::<()>(interest, || Err(io::ErrorKind::WouldBlock.into()));
}

pub(crate) fn would_block_or_interrupted(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Bytes of a socket's receive buffer, as they were set.
pub(crate) fn receive_buffer(socket: &TcpStream) -> Option<usize> {
    let doubled = SockRef::from(socket).recv_buffer_size().ok()?;
    Some(doubled / 2)
}

/// Returns whether recv(2) finds something, an end included.
///
/// # Errors
/// What the socket failed with: it says so once (Linux, tcp_recvmsg_locked()), and reads as ended from then on.
pub(crate) fn has_more(source: &TcpStream) -> io::Result<bool> {
    match recv(source, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn reset_is_not_lost_by_looking_for_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap());
        let (peer, accepted) = tokio::join!(peer, listener.accept());
        let (source, _) = accepted.unwrap();
        assert!(!has_more(&source).unwrap());
        let peer = peer.unwrap();
        SockRef::from(&peer)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(peer);
        source.ready(Interest::ERROR).await.unwrap();
        let error = has_more(&source).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
