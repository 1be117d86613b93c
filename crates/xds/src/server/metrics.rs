//! Metrics of the server.

use telemetry::metrics::{Counter, Gauge};

use crate::resource::ResourceType;

telemetry::families! {
    /// The families of one server.
    #[derive(Debug)]
    pub(super) struct Metrics {
        /// Responses that clients accepted (ACK).
        acks: counter["gateway", "type"] = "rhizome_xds_acks_total",
        /// Clients with a stream.
        clients: gauge["gateway"] = "rhizome_xds_clients",
        /// Responses that clients refused (NACK).
        nacks: counter["gateway", "type"] = "rhizome_xds_nacks_total",
        /// Bytes of responses sent to clients, encoded and before TLS.
        push_bytes: counter["gateway", "type"] = "rhizome_xds_push_bytes_total",
        /// Clients that have refused a resource and not accepted it since.
        refusing: gauge["gateway", "type"] = "rhizome_xds_clients_refusing",
        /// Responses sent to clients.
        pushes: counter["gateway", "type"] = "rhizome_xds_pushes_total",
        /// Connections and streams that were refused, by reason.
        refused: counter["reason"] = "rhizome_xds_refused_streams_total",
    }
}

impl Metrics {
    pub(super) fn of_gateway(&self, name: &str) -> GatewayMetrics {
        GatewayMetrics {
            clients: self.clients.with(&[name]),
            types: ResourceType::ALL.map(|kind| TypeMetrics {
                pushes: self.pushes.with(&[name, kind.as_str()]),
                push_bytes: self.push_bytes.with(&[name, kind.as_str()]),
                acks: self.acks.with(&[name, kind.as_str()]),
                nacks: self.nacks.with(&[name, kind.as_str()]),
                refusing: self.refusing.with(&[name, kind.as_str()]),
            }),
        }
    }

    /// Ends the series of gateways that are not `known`.
    pub(super) fn retain(&self, known: impl Fn(&String) -> bool) {
        let keep = |values: &[String]| values.first().is_some_and(&known);
        self.clients.retain(keep);
        self.refusing.retain(keep);
        for family in [&self.pushes, &self.push_bytes, &self.acks, &self.nacks] {
            family.retain(keep);
        }
    }

    pub(super) fn refused(&self, reason: &'static str) {
        self.refused.with(&[reason]).inc();
    }
}

/// The series of one gateway.
#[derive(Debug)]
pub(super) struct GatewayMetrics {
    pub(super) clients: Gauge,
    types: [TypeMetrics; ResourceType::ALL.len()],
}

impl GatewayMetrics {
    pub(super) fn of(&self, kind: ResourceType) -> &TypeMetrics {
        &self.types[kind as usize]
    }
}

/// The series of one gateway and type.
#[derive(Debug)]
pub(super) struct TypeMetrics {
    pub(super) pushes: Counter,
    pub(super) push_bytes: Counter,
    pub(super) acks: Counter,
    pub(super) nacks: Counter,
    pub(super) refusing: Gauge,
}
