//! What a route says whose TLS ends in the gateway.

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::ServerName;

/// Parameters of a route whose TLS ends in the gateway: the value of its [`route::Handler`]. Secrets are named,
/// and travel apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Terminate {
    /// The secret with the certificate that clients are shown.
    pub certificate: Arc<str>,
    /// The secret with the authorities of client certificates; without one none is asked for.
    pub client_authorities: Option<Arc<str>>,
    /// The lowest version for clients.
    pub min_version: tls::MinVersion,
    /// The secret with the authorities of the servers behind.
    pub authorities: Arc<str>,
    /// The name in their certificates.
    pub server_name: ServerName<'static>,
    /// The secret with the certificate that is shown to them for clients who showed one.
    pub identity: Option<Arc<str>>,
    /// Time in the header `Strict-Transport-Security` of answers; zero for no header.
    pub hsts: Duration,
    /// Requests of one HTTP/2 connection at once.
    pub max_streams: u32,
    /// Time that one request may take.
    pub stream_timeout: Duration,
}
