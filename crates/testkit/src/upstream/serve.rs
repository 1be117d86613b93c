//! The life of one connection at a fake upstream.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Behavior, Seen};
use crate::background::locked;

pub(super) struct Conn {
    stream: TcpStream,
    seen: Arc<Seen>,
    index: usize,
}

impl Conn {
    pub(super) fn new(stream: TcpStream, seen: &Arc<Seen>) -> Self {
        let mut beginnings = locked(&seen.beginnings);
        let index = beginnings.len();
        beginnings.push(Vec::new());
        seen.open.fetch_add(1, Ordering::Relaxed);
        seen.accepted.fetch_add(1, Ordering::Relaxed);
        Self {
            stream,
            seen: Arc::clone(seen),
            index,
        }
    }

    pub(super) async fn run(self, behavior: Behavior) {
        let seen = Arc::clone(&self.seen);
        // A client that goes away is the test's affair, which sees its own end of it.
        if let Err(error) = self.serve(&behavior).await
            && error.kind() == ErrorKind::ConnectionReset
        {
            seen.resets.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn serve(mut self, behavior: &Behavior) -> std::io::Result<()> {
        match behavior {
            Behavior::AnswersAtEof => {
                let count = self.drain(u64::MAX).await?;
                self.stream.write_all(count.to_string().as_bytes()).await?;
                self.stream.shutdown().await
            }
            Behavior::Closes => Ok(()),
            Behavior::Echo => self.echo().await,
            Behavior::EndsReadFirst { bytes } => {
                SockRef::from(&self.stream).shutdown(Shutdown::Read)?;
                self.send(*bytes).await?;
                self.stream.shutdown().await
            }
            Behavior::EndsWriteFirst { greeting } => {
                self.stream.write_all(greeting).await?;
                self.stream.shutdown().await?;
                self.drain(u64::MAX).await.map(drop)
            }
            Behavior::NeverReads => std::future::pending().await,
            Behavior::Resets { after } => self.reset(*after).await,
            Behavior::ResetsOnRequest { bytes } => {
                self.send(*bytes).await?;
                let mut resetting = self.seen.resetting.subscribe();
                // The sender is there for as long as the connection.
                let _ = resetting.wait_for(|resetting| *resetting).await;
                self.reset(0).await
            }
            Behavior::Sink => self.drain(u64::MAX).await.map(drop),
            Behavior::Source { bytes } => {
                self.send(*bytes).await?;
                self.stream.shutdown().await
            }
        }
    }

    async fn echo(&mut self) -> std::io::Result<()> {
        let mut buf = vec![0; BUFFER_BYTES];
        loop {
            let count = self.read(&mut buf).await?;
            if count == 0 {
                return self.stream.shutdown().await;
            }
            self.stream.write_all(&buf[..count]).await?;
        }
    }

    /// Reads to the end, or `limit` bytes; returns how many there were.
    async fn drain(&mut self, limit: u64) -> std::io::Result<u64> {
        let mut buf = vec![0; BUFFER_BYTES];
        let mut total = 0;
        while total < limit {
            let part = usize::try_from(limit - total).map_or(buf.len(), |left| left.min(buf.len()));
            let count = self.read(&mut buf[..part]).await?;
            if count == 0 {
                break;
            }
            total += count as u64;
        }
        Ok(total)
    }

    async fn send(&mut self, bytes: u64) -> std::io::Result<()> {
        let chunk = vec![b'x'; BUFFER_BYTES];
        let mut left = bytes;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            self.stream.write_all(&chunk[..part]).await?;
            left -= part as u64;
        }
        Ok(())
    }

    async fn reset(&mut self, after: u64) -> std::io::Result<()> {
        self.drain(after).await?;
        // Closing with a linger time of zero sends RST (tcp(7), socket(7)).
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    async fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(buf).await?;
        self.seen.bytes.fetch_add(count as u64, Ordering::Relaxed);
        let mut all = locked(&self.seen.beginnings);
        if let Some(beginning) = all.get_mut(self.index) {
            let room = MAX_BEGINNING_BYTES.saturating_sub(beginning.len());
            beginning.extend(&buf[..count.min(room)]);
        }
        Ok(count)
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.seen.open.fetch_sub(1, Ordering::Relaxed);
    }
}

const BUFFER_BYTES: usize = 64 * 1024;
const MAX_BEGINNING_BYTES: usize = 16 * 1024;
