//! Closing a connection so that its peer receives what was written last.
//!
//! ```text
//!     last answer ─▶ FIN ─▶ discard what the peer still sends ─▶ its FIN, or a limit
//! ```
//!
//! Closing a socket with unread bytes resets the connection and may destroy the answer on its way
//! (RFC 9112 §9.6). Writes nothing but what the stream's own shutdown writes (`close_notify` of TLS).

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

/// Shuts down the write side of `stream`, then discards what the peer sends until it closes its side,
/// has sent `max_bytes`, or `limit` is over. The future holds no buffer.
pub async fn linger<S>(stream: &mut S, limit: Duration, max_bytes: usize)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let close = async {
        stream.shutdown().await?;
        discard(stream, max_bytes).await
    };
    // The connection is over either way.
    drop(timeout(limit, close).await);
}

async fn discard<S: AsyncRead + Unpin>(stream: &mut S, max_bytes: usize) -> io::Result<()> {
    let mut left = max_bytes;
    poll_fn(|cx| {
        while left > 0 {
            let mut scratch = [MaybeUninit::uninit(); 1024];
            let mut buf = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                break;
            }
            left = left.saturating_sub(buf.filled().len());
        }
        Poll::Ready(Ok(()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn linger_ends_with_the_peers_close() {
        let (mut own, mut peer) = duplex(4096);
        peer.write_all(&[7; 3000]).await.unwrap();
        drop(peer);
        let started = Instant::now();
        linger(&mut own, LIMIT, 64 * 1024).await;
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(own.read(&mut [0; 8]).await.unwrap(), 0, "all was read");
    }

    #[tokio::test(start_paused = true)]
    async fn linger_shows_the_end_to_the_peer() {
        let (mut own, mut peer) = duplex(64);
        own.write_all(b"answer").await.unwrap();
        let lingering = tokio::spawn(async move { linger(&mut own, LIMIT, 64).await });
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        drop(peer);
        lingering.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn linger_stops_at_its_limits() {
        let (mut own, mut peer) = duplex(4096);
        let started = Instant::now();
        linger(&mut own, LIMIT, 64).await;
        assert_eq!(started.elapsed(), LIMIT, "a silent peer");
        peer.write_all(&[7; 4096]).await.unwrap();
        linger(&mut own, LIMIT, 64).await;
        assert_eq!(started.elapsed(), LIMIT, "a peer that sends on and on");
    }
}
