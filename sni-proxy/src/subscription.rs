//! Routes from a server: the client's stream, and where its tables go.
//!
//! ```text
//!     server ══ADS══▶ client ──table──▶ Routing ──▶ snapshot in effect, ACK
//!                       │                  └──────▶ refused, NACK
//!                       └─▶ cache on disk
//! ```
//!
//! Runs on the control runtime. What a table means is `routing`'s.

use std::sync::Arc;

use serve::Service;
use telemetry::Registry;

use crate::accept::Task;
use crate::config::{Config, XdsConfig};
use crate::worker::Shared;

/// A client of a server of routes, before it starts.
pub(crate) struct Subscription {
    params: xds::ClientParams,
    metrics: xds::ClientMetrics,
}

impl Subscription {
    /// Prepares the client; certificates are read here.
    pub(crate) fn new(
        xds: &XdsConfig,
        config: &Config,
        registry: &Registry,
    ) -> Result<Self, tls::TlsError> {
        let tls = xds.tls.clone().map(tls::ClientTls::load).transpose()?;
        Ok(Self {
            params: xds::ClientParams {
                server: xds.server.clone(),
                tls,
                node: xds.node.clone(),
                cluster: xds.gateway.clone(),
                own: config.own_listeners(),
                start: config.empty_state(),
                cache: xds.cache.clone(),
                limits: xds::ClientLimits::default(),
            },
            metrics: xds::ClientMetrics::new(registry),
        })
    }

    /// Returns the certificates that are shown to the server.
    pub(crate) fn tls(&self) -> Option<tls::ClientTls> {
        self.params.tls.clone()
    }

    /// Keeps asking for routes for as long as the process serves.
    pub(crate) fn start(self, shared: &Arc<Shared>, service: &mut Service<Task>) {
        let sink = Sink(Arc::clone(shared));
        service.keep(tokio::spawn(async move {
            xds::run(self.params, sink, self.metrics).await;
        }));
    }
}

/// Where tables go.
struct Sink(Arc<Shared>);

impl xds::Sink for Sink {
    fn apply(&mut self, table: xds::Table) -> Result<(), String> {
        self.0.routing.apply(table)
    }

    fn refused(&mut self, _why: &str) {
        self.0.routing.count_refused();
    }

    fn confirmed(&mut self) {
        self.0.routing.confirm();
    }
}
