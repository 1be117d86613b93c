//! What the agent counts, beside what belongs to a link.

use std::sync::Arc;

use knp_proto::Budget;
use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Gauge, Histogram, HistogramFamily};

use super::link::LinkFamilies;
use super::stream::StreamFamilies;
use super::{Held, LinkMetrics, with_all};

/// Bounds of upstream's histograms, seconds.
pub(super) const LATENCY: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

telemetry::labels! {
    /// Why a destination could not be connected to, as upstream says it.
    pub(crate) enum EndpointDialFailure {
        /// It did not answer in time.
        Timeout = "timeout",
        /// Anything else.
        Unknown = "unknown",
    }
}

telemetry::labels! {
    /// What came of an attempt to connect to a server.
    pub(crate) enum ConnectResult {
        /// A server that was not connected yet.
        Connected = "connected",
        /// A server that is connected already.
        Duplicate = "duplicate",
        /// No server answered as one.
        Failed = "failed",
    }
}

/// What the agent counts. Clones are the same and cost one reference.
#[derive(Clone, Debug)]
pub(crate) struct AgentMetrics {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    connects: CounterFamily,
    destinations_refused: Counter,
    dial_duration: Histogram,
    dial_failures: CounterFamily,
    draining: Gauge,
    endpoint_connections: Gauge,
    pub(super) lease_list_latency: HistogramFamily,
    pub(super) lease_lists: CounterFamily,
    link: Arc<LinkMetrics>,
    server_connections: Gauge,
    server_count: Gauge,
    server_failures: CounterFamily,
}

impl AgentMetrics {
    /// Registers the families.
    ///
    /// # Panics
    /// When they are registered already.
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name, help, labels| registry.counter(name, help, labels);
        let gauge = |name, help| registry.gauge(name, help, &[]).with(&[]);
        let streams = StreamFamilies::new(
            registry,
            "konnectivity_network_proxy_agent_stream_packets_total",
            "konnectivity_network_proxy_agent_stream_errors_total",
        );
        let lease_labels = &["http_response_code", "reason"];
        // Upstream has it, and counts watches among the lists: it stays at nothing there as well.
        let _ = counter(
            "konnectivity_network_proxy_agent_lease_watches_total",
            "Requests to watch the servers' leases, by answer.",
            lease_labels,
        );
        let inner = Inner {
            connects: with_all(
                counter(
                    "rhizome_konnectivity_connects_total",
                    "Attempts to connect to a server, by result.",
                    &["result"],
                ),
                &ConnectResult::ALL.map(ConnectResult::as_str),
            ),
            destinations_refused: counter(
                "rhizome_konnectivity_refused_destinations_total",
                "Dials to a destination that is not allowed.",
                &[],
            )
            .with(&[]),
            dial_duration: registry
                .histogram(
                    "konnectivity_network_proxy_agent_dial_duration_seconds",
                    "Time to connect to a destination, in seconds.",
                    &[],
                    &LATENCY,
                )
                .with(&[]),
            dial_failures: counter(
                "konnectivity_network_proxy_agent_endpoint_dial_failure_total",
                "Destinations that could not be connected to, by reason.",
                &["reason"],
            ),
            draining: gauge("rhizome_konnectivity_draining", "1 while the agent drains."),
            endpoint_connections: gauge(
                "konnectivity_network_proxy_agent_open_endpoint_connections",
                "Connections to destinations.",
            ),
            lease_list_latency: registry.histogram(
                "konnectivity_network_proxy_agent_lease_list_latency_seconds",
                "Time to list the servers' leases, in seconds.",
                &["http_response_code"],
                &LATENCY,
            ),
            lease_lists: counter(
                "konnectivity_network_proxy_agent_lease_lists_total",
                "Requests to list the servers' leases, by answer.",
                lease_labels,
            ),
            link: Arc::new(LinkMetrics {
                received: streams.segment("to_agent"),
                sent: streams.segment("from_agent"),
                families: Arc::new(LinkFamilies::new(registry)),
                full_channels: None,
                tenant: None,
            }),
            server_connections: gauge(
                "konnectivity_network_proxy_agent_open_server_connections",
                "Streams to servers.",
            ),
            server_count: gauge(
                "konnectivity_network_proxy_agent_known_server_count",
                "Servers there are to connect to.",
            ),
            server_failures: counter(
                "konnectivity_network_proxy_agent_server_connection_failure_count",
                "Streams to a server that broke, all as from_server; deprecated, see stream_errors_total.",
                &["direction"],
            ),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Handles for the links to servers and their tunnels.
    pub(crate) fn link(&self) -> &Arc<LinkMetrics> {
        &self.inner.link
    }

    /// Sets which budget's bytes are exposed; the first call counts.
    pub(crate) fn budget(&self, budget: &Arc<Budget>) {
        self.inner.link.families.budget(budget);
    }

    /// Time to connect to a destination, or to fail.
    pub(crate) fn dial_duration(&self) -> &Histogram {
        &self.inner.dial_duration
    }

    /// Counts a destination that could not be connected to.
    pub(crate) fn dial_failure(&self, reason: EndpointDialFailure) {
        self.inner.dial_failures.with(&[reason.as_str()]).inc();
    }

    /// Counts a destination that the list of allowed ones does not have.
    pub(crate) fn destination_refused(&self) {
        self.inner.destinations_refused.inc();
    }

    /// Counts a connection to a destination for as long as what is returned lives.
    pub(crate) fn endpoint_connection(&self) -> Held {
        Held::new(&self.inner.endpoint_connections, None)
    }

    /// Counts a stream to a server for as long as what is returned lives.
    pub(crate) fn server_connection(&self) -> Held {
        Held::new(&self.inner.server_connections, None)
    }

    /// Sets how many servers there are to connect to.
    pub(crate) fn known_servers(&self, servers: u32) {
        self.inner.server_count.set(servers.into());
    }

    /// Counts a stream to a server that broke. Count it in [`LinkMetrics::received`] as well: this
    /// is the older of the two. Who reads a stream notices first that it is broken, so the other
    /// direction that upstream has is never told.
    pub(crate) fn server_failure(&self) {
        self.inner.server_failures.with(&["from_server"]).inc();
    }

    /// Counts an attempt to connect to a server.
    pub(crate) fn connected(&self, result: ConnectResult) {
        self.inner.connects.with(&[result.as_str()]).inc();
    }

    /// Sets that the agent is draining.
    pub(crate) fn draining(&self) {
        self.inner.draining.set(1);
    }
}
