//! How a kube-apiserver reaches a destination: directly, or by one of the server's frontends.
//!
//! ```text
//! dial(target): connect ─▶ (TLS) ─▶ CONNECT … 200, or DIAL_REQ … DIAL_RSP ─▶ Tunnel
//! ```
//!
//! Dials only; what is done with a tunnel is in [`load`](super::load).

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::grpc;
use super::tunnel::{Close, Stream, Tunnel};

/// A kind of frontend, and of socket below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Transport {
    /// No proxy: the ceiling.
    Direct,
    /// gRPC over mutual TLS.
    GrpcMtls,
    /// gRPC over a UNIX socket.
    GrpcUds,
    /// HTTP CONNECT over mutual TLS.
    HttpMtls,
    /// HTTP CONNECT over a UNIX socket.
    HttpUds,
}

impl Transport {
    pub(crate) fn is_grpc(self) -> bool {
        matches!(self, Self::GrpcMtls | Self::GrpcUds)
    }

    pub(crate) fn is_uds(self) -> bool {
        matches!(self, Self::GrpcUds | Self::HttpUds)
    }
}

#[derive(Clone)]
pub(crate) enum Frontend {
    Direct,
    Tls {
        /// gRPC, else HTTP CONNECT.
        grpc: bool,
        addr: SocketAddr,
        /// Whom its certificate must name.
        name: ServerName<'static>,
        /// Our certificate and its authority.
        config: Arc<rustls::ClientConfig>,
    },
    Uds {
        /// gRPC, else HTTP CONNECT.
        grpc: bool,
        path: PathBuf,
    },
}

impl Frontend {
    /// Opens a tunnel to `target`. The caller bounds the wait; dropped half way, the connection is
    /// closed.
    pub(crate) async fn dial(&self, target: SocketAddr) -> io::Result<Tunnel> {
        let target = target.to_string();
        match self {
            Self::Direct => Ok(Tunnel::new(tcp(&target).await?, Close::Socket)),
            Self::Tls {
                grpc,
                addr,
                name,
                config,
            } => {
                let stream = tcp(&addr.to_string()).await?;
                let tls = TlsConnector::from(Arc::clone(config));
                let stream = tls.connect(name.clone(), stream).await?;
                through(stream, *grpc, &name.to_str(), &target, Close::Sent).await
            }
            Self::Uds { grpc, path } => {
                let stream = UnixStream::connect(path).await?;
                through(stream, *grpc, "localhost", &target, Close::Socket).await
            }
        }
    }
}

async fn through(
    mut stream: impl Stream + 'static,
    grpc: bool,
    authority: &str,
    target: &str,
    close: Close,
) -> io::Result<Tunnel> {
    if grpc {
        let tunnel = grpc::dial(stream, authority, target).await?;
        return Ok(Tunnel::new(tunnel, Close::Confirmed));
    }
    connect(&mut stream, target).await?;
    Ok(Tunnel::new(stream, close))
}

async fn tcp(addr: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Asks for a tunnel in kube-apiserver's words.
async fn connect(stream: &mut impl Stream, target: &str) -> io::Result<()> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = Vec::with_capacity(256);
    let refused = |head: &[u8]| {
        let text = String::from_utf8_lossy(head).into_owned();
        Err(io::Error::other(format!("CONNECT refused: {text:?}")))
    };
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return refused(&head);
        }
    }
    // No destination here speaks first, so nothing may follow the head.
    if !head.starts_with(b"HTTP/1.1 200 ") || !head.ends_with(b"\r\n\r\n") {
        return refused(&head);
    }
    Ok(())
}

/// What kube-apiserver reads at most.
const MAX_HEAD: usize = 1 << 20;
