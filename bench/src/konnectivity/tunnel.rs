//! One tunnel as a client has it: bytes to and from a destination, whatever carries them.
//!
//! ```text
//! direct ──▶ TCP            HTTP CONNECT ──▶ UNIX socket or TLS            gRPC ──▶ packets
//! ```
//!
//! Does not dial: [`Frontend`](super::frontend::Frontend) does.

use std::fmt::Debug;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Unpin> Stream for S {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// By a message that the peer confirms.
    Confirmed,
    /// By a message; the peer may have closed first.
    Sent,
    /// With its socket.
    Socket,
}

#[derive(Debug)]
pub(crate) struct Tunnel {
    stream: Box<dyn Stream>,
    close: Close,
}

impl Tunnel {
    pub(crate) fn new(stream: impl Stream + 'static, close: Close) -> Self {
        let stream = Box::new(stream);
        Self { stream, close }
    }

    /// Closes the tunnel the way a kube-apiserver does: with gRPC it asks and waits for the
    /// answer, at most ten seconds, with the others it closes the socket.
    pub(crate) async fn close(mut self) -> io::Result<()> {
        match self.close {
            Close::Confirmed => timeout(CLOSE_LIMIT, self.stream.shutdown())
                .await
                .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no CLOSE_RSP"))),
            Close::Sent => {
                let _ = self.stream.shutdown().await;
                Ok(())
            }
            Close::Socket => Ok(()),
        }
    }
}

impl Deref for Tunnel {
    type Target = dyn Stream;

    fn deref(&self) -> &Self::Target {
        &*self.stream
    }
}

impl DerefMut for Tunnel {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.stream
    }
}

/// As long as kube-apiserver waits.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
