//! Metrics of the client.

use telemetry::metrics::{Counter, CounterFamily, Gauge};

use crate::resource::ResourceType;

/// The series of one client, registered once per process.
#[derive(Clone, Debug)]
pub struct ClientMetrics {
    pub(super) connected: Gauge,
    /// Of the client's certificates.
    pub(super) reloads: tls::Metrics,
    connects: CounterFamily,
    responses: [[Counter; 2]; ResourceType::ALL.len()],
    cache_writes: [Counter; 2],
}

telemetry::families! {
    /// The families of a client.
    struct Families {
        /// Attempts to keep the last good resources on disk.
        cache_writes: counter["result"] = "rhizome_xds_cache_writes_total",
        /// Whether the xDS server answers on a stream.
        connected: gauge = "rhizome_xds_connected",
        /// Attempts to open a stream to the xDS server.
        connects: counter["result"] = "rhizome_xds_connects_total",
        /// Responses of the xDS server that were accepted (ack) or refused (nack).
        responses: counter["type", "result"] = "rhizome_xds_responses_total",
    }
}

impl ClientMetrics {
    /// Registers the families; the client's own certificates are counted in `reloads`.
    ///
    /// # Panics
    /// When they are registered already.
    #[must_use]
    pub fn new(registry: &telemetry::Registry, reloads: tls::Metrics) -> Self {
        let all = Families::register(registry);
        let (responses, cache_writes) = (all.responses, all.cache_writes);
        Self {
            reloads,
            connected: all.connected,
            connects: all.connects,
            responses: ResourceType::ALL
                .map(|kind| ["ack", "nack"].map(|result| responses.with(&[kind.as_str(), result]))),
            cache_writes: ["ok", "failed"].map(|result| cache_writes.with(&[result])),
        }
    }

    pub(super) fn connect(&self, result: &'static str) {
        self.connects.with(&[result]).inc();
    }

    pub(super) fn response(&self, kind: ResourceType, taken: bool) {
        self.responses[kind as usize][usize::from(!taken)].inc();
    }

    pub(super) fn cache_write(&self, done: bool) {
        self.cache_writes[usize::from(!done)].inc();
    }
}
