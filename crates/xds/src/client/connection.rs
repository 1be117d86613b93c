//! One connection to the server, from the name to the end of its stream.

use std::io;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Status;

use super::flow;
use super::held::HeldResources;
use super::metrics::ClientMetrics;
use super::session::Variant;
use super::{ClientParams, Sink};
use crate::grpc::Channel;

/// Why there is no stream any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The server closed it without saying why.
    #[error("the server closed the stream")]
    Closed { answered: bool },
    /// The name does not resolve, or the address does not answer.
    #[error("connecting to the server")]
    Connect(#[source] io::Error),
    /// HTTP/2 did not begin.
    #[error("HTTP/2 handshake with the server")]
    Http(#[source] hyper::Error),
    /// The address says TLS, and there are no settings for it.
    #[error("the address begins with https:// and there are no TLS settings")]
    NoTls,
    /// The server ended it, or the connection broke.
    #[error("the stream ended: {}: {}", status.code(), status.message())]
    Status { status: Status, answered: bool },
    /// It took too long.
    #[error("connecting to the server timed out")]
    Timeout,
    /// The handshake failed.
    #[error("TLS handshake with the server")]
    Tls(#[source] io::Error),
}

impl End {
    pub(super) fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Status { status, .. } if status.code() == tonic::Code::Unimplemented)
    }

    /// Whether the server answered anything before.
    pub(super) fn had_answers(&self) -> bool {
        matches!(
            self,
            Self::Closed { answered: true } | Self::Status { answered: true, .. }
        )
    }

    /// The word for metrics.
    fn result(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Closed { .. } | Self::Status { .. } | Self::Http(_) => "refused",
            Self::NoTls | Self::Tls(_) => "tls",
            Self::Timeout => "timeout",
        }
    }
}

/// Connects and serves a stream to its end.
pub(super) async fn run(
    params: &ClientParams,
    variant: Variant,
    held: &mut HeldResources,
    sink: &mut impl Sink,
    metrics: &ClientMetrics,
) -> End {
    let connecting = timeout(params.limits.connect, connect(params));
    let end = match connecting.await {
        Ok(Ok(channel)) => flow::run(params, channel, variant, held, sink, metrics).await,
        Ok(Err(end)) => end,
        Err(_) => End::Timeout,
    };
    if !end.had_answers() {
        metrics.connect(end.result());
    }
    end
}

async fn connect(params: &ClientParams) -> Result<Channel, End> {
    let server = &params.server;
    let tcp = TcpStream::connect((server.host(), server.port()))
        .await
        .map_err(End::Connect)?;
    tcp.set_nodelay(true).map_err(End::Connect)?;
    let (keepalive, patience) = (params.limits.keepalive, params.limits.keepalive_timeout);
    if !server.is_tls() {
        let channel = Channel::handshake(tcp, keepalive, patience).await;
        return channel.map_err(End::Http);
    }
    let tls = params.tls.as_ref().ok_or(End::NoTls)?;
    let name = ServerName::try_from(server.host().to_owned())
        .map_err(|error| End::Tls(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let stream = TlsConnector::from(tls.config())
        .connect(name, tcp)
        .await
        .map_err(End::Tls)?;
    let channel = Channel::handshake(stream, keepalive, patience).await;
    channel.map_err(End::Http)
}
