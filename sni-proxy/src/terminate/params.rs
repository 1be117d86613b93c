//! What a terminating route says, whether a file or a server says it.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::pki_types::ServerName;

use super::Termination;

/// Connections of a worker to one endpoint, where it is not said.
pub(crate) const MAX_CONNECTIONS: u32 = 1024;

/// What a route says of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Params {
    /// What is counted belongs to one cluster.
    pub(crate) cluster: String,
    pub(crate) tls: tls::TerminatingParams,
    /// Name in the certificate of API servers.
    pub(crate) server_name: ServerName<'static>,
    /// The header Strict-Transport-Security of answers.
    pub(crate) hsts: Option<HeaderValue>,
    /// Streams of one client's connection.
    pub(crate) max_streams: u32,
    /// Connections of a worker to one endpoint, with and without the identity.
    pub(crate) max_connections: u32,
    /// Time that one request may take.
    pub(crate) stream_timeout: Duration,
}

impl Params {
    /// Translates what a server says of a route to `cluster`.
    pub(crate) fn new(cluster: &str, own: &xds::Terminate) -> Self {
        let pair = |name: &Arc<str>| tls::KeyPair::Secret(Arc::clone(name));
        let authorities = |name: &Arc<str>| tls::Origin::Secret(Arc::clone(name));
        Self {
            cluster: cluster.to_owned(),
            tls: tls::TerminatingParams {
                certificate: pair(&own.certificate),
                client_ca: own.client_authorities.as_ref().map(authorities),
                min_version: own.min_version,
                upstream_ca: authorities(&own.authorities),
                identity: own.identity.as_ref().map(pair),
            },
            server_name: own.server_name.clone(),
            hsts: hsts(own.hsts),
            max_streams: own.max_streams,
            max_connections: MAX_CONNECTIONS,
            stream_timeout: own.stream_timeout,
        }
    }
}

/// Returns the header Strict-Transport-Security for a time; none for less than a second.
pub(crate) fn hsts(time: Duration) -> Option<HeaderValue> {
    match time.as_secs() {
        0 => None,
        seconds => HeaderValue::from_str(&format!("max-age={seconds}")).ok(),
    }
}

/// One is another only if it is the same: secrets and counts are its own.
impl PartialEq for Termination {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
