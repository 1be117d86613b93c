//! Metrics of the server.

use telemetry::metrics::{Counter, CounterFamily, Gauge, GaugeFamily};

use crate::resource::ResourceType;

/// The families of one server.
#[derive(Debug)]
pub(super) struct Metrics {
    clients: GaugeFamily,
    pushes: CounterFamily,
    push_bytes: CounterFamily,
    acks: CounterFamily,
    nacks: CounterFamily,
    refused: CounterFamily,
}

impl Metrics {
    pub(super) fn new(registry: &telemetry::Registry) -> Self {
        const PER_TYPE: &[&str] = &["gateway", "type"];
        Self {
            clients: registry.gauge(
                "rhizome_xds_clients",
                "Clients with a stream.",
                &["gateway"],
            ),
            pushes: registry.counter(
                "rhizome_xds_pushes_total",
                "Responses sent to clients.",
                PER_TYPE,
            ),
            push_bytes: registry.counter(
                "rhizome_xds_push_bytes_total",
                "Bytes of responses sent to clients, encoded and before TLS.",
                PER_TYPE,
            ),
            acks: registry.counter(
                "rhizome_xds_acks_total",
                "Responses that clients accepted (ACK).",
                PER_TYPE,
            ),
            nacks: registry.counter(
                "rhizome_xds_nacks_total",
                "Responses that clients refused (NACK).",
                PER_TYPE,
            ),
            refused: registry.counter(
                "rhizome_xds_refused_streams_total",
                "Connections and streams that were refused, by reason.",
                &["reason"],
            ),
        }
    }

    pub(super) fn of_gateway(&self, name: &str) -> GatewayMetrics {
        GatewayMetrics {
            clients: self.clients.with(&[name]),
            types: ResourceType::ALL.map(|kind| TypeMetrics {
                pushes: self.pushes.with(&[name, kind.as_str()]),
                push_bytes: self.push_bytes.with(&[name, kind.as_str()]),
                acks: self.acks.with(&[name, kind.as_str()]),
                nacks: self.nacks.with(&[name, kind.as_str()]),
            }),
        }
    }

    /// Ends the series of gateways that are not `known`.
    pub(super) fn retain(&self, known: impl Fn(&String) -> bool) {
        let keep = |values: &[String]| values.first().is_some_and(&known);
        self.clients.retain(keep);
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
}
