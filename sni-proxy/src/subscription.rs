//! Routes from a server: the client's stream, and where its tables go.
//!
//! ```text
//!     server ══ADS══▶ client ──table──▶ Routing ──▶ snapshot in effect, ACK
//!                       │                  └──────▶ refused, NACK
//!                       ├─▶ secrets, in memory alone
//!                       └─▶ cache on disk
//! ```
//!
//! Runs on the control runtime. What a table means is `routing`'s.

use std::sync::Arc;

use crate::config::{Config, XdsConfig};
use crate::worker::Shared;

/// Describes the client; certificates are read here.
pub(crate) fn params(xds: &XdsConfig, config: &Config) -> Result<xds::ClientParams, tls::TlsError> {
    Ok(xds::ClientParams {
        server: xds.server.clone(),
        tls: xds.tls.clone().map(tls::ClientTls::load).transpose()?,
        node: xds.node.clone(),
        cluster: xds.gateway.clone(),
        own: config.own_listeners(),
        start: config.empty_state(),
        secrets: xds.asks_for_secrets(),
        cache: xds.cache.clone(),
        limits: xds::ClientLimits::default(),
    })
}

/// Where tables go.
pub(crate) struct Sink(pub(crate) Arc<Shared>);

impl xds::Sink for Sink {
    fn apply(&mut self, table: xds::Table) -> Result<(), String> {
        self.0.routing.apply(table)
    }

    fn secrets(&mut self, all: tls::Secrets, complete: bool) {
        self.0.routing.deliver(all, complete);
    }

    fn refused(&mut self, _why: &str) {
        self.0.routing.count_refused();
    }

    fn confirmed(&mut self) {
        self.0.routing.confirm();
    }
}
