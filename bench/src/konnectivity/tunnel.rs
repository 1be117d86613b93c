//! One tunnel as a client has it: bytes to and from a destination, whatever carries them.
//!
//! ```text
//! direct ──▶ TCP            HTTP CONNECT ──▶ UNIX socket or TLS            gRPC ──▶ packets
//! ```
//!
//! Does not dial: [`Frontend`](super::frontend::Frontend) does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::grpc::GrpcTunnel;

/// An open tunnel.
#[derive(Debug)]
pub(crate) enum Tunnel {
    /// Packets of a gRPC frontend.
    Grpc(Box<GrpcTunnel>),
    /// No proxy at all.
    Tcp(TcpStream),
    /// HTTP CONNECT over TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// HTTP CONNECT over a UNIX socket.
    Unix(UnixStream),
}

impl Tunnel {
    /// Closes the tunnel the way a kube-apiserver does: with gRPC it asks and waits for the
    /// answer, with the others it closes the socket.
    pub(crate) async fn close(self) -> io::Result<()> {
        match self {
            Self::Grpc(tunnel) => tunnel.close().await,
            Self::Tls(mut stream) => {
                // The peer may have closed first.
                let _ = stream.shutdown().await;
                Ok(())
            }
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Grpc(tunnel) => Pin::new(tunnel.as_mut()).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Grpc(tunnel) => Pin::new(tunnel.as_mut()).poll_write(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Grpc(_) => Poll::Ready(Ok(())),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Grpc(_) => Poll::Ready(Ok(())),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
