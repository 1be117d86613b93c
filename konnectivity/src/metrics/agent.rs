//! What the agent counts, beside what belongs to a link.

use std::sync::Arc;

use knp_proto::Budget;
use telemetry::Registry;

use super::link::LinkFamilies;
use super::stream::StreamFamilies;
use super::{Held, LinkMetrics, begin};

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

telemetry::families! {
    /// What the agent counts.
    #[derive(Debug)]
    pub(crate) struct AgentMetrics {
        /// Attempts to connect to a server, by result.
        connects: counter["result"] = "rhizome_konnectivity_connects_total",
        /// Dials to a destination that is not allowed.
        pub(crate) destinations_refused: counter =
            "rhizome_konnectivity_refused_destinations_total",
        /// Time to connect to a destination, in seconds.
        pub(crate) dial_duration: histogram(LATENCY) =
            "konnectivity_network_proxy_agent_dial_duration_seconds",
        /// Destinations that could not be connected to, by reason.
        dial_failures: counter["reason"] =
            "konnectivity_network_proxy_agent_endpoint_dial_failure_total",
        /// 1 while the agent drains.
        pub(crate) draining: gauge = "rhizome_konnectivity_draining",
        /// Connections to destinations.
        endpoint_connections: gauge = "konnectivity_network_proxy_agent_open_endpoint_connections",
        /// Time to list the servers' leases, in seconds.
        pub(super) lease_list_latency: histogram["http_response_code"](LATENCY) =
            "konnectivity_network_proxy_agent_lease_list_latency_seconds",
        /// Requests to list the servers' leases, by answer.
        pub(super) lease_lists: counter["http_response_code", "reason"] =
            "konnectivity_network_proxy_agent_lease_lists_total",
        /// Streams to servers.
        server_connections: gauge = "konnectivity_network_proxy_agent_open_server_connections",
        /// Servers there are to connect to.
        pub(crate) known_servers: gauge = "konnectivity_network_proxy_agent_known_server_count",
        /// Streams to a server that broke, all as from_server; deprecated, see stream_errors_total.
        server_failures: counter["direction"] =
            "konnectivity_network_proxy_agent_server_connection_failure_count",
    } with {
        /// Handles for the links to servers and their tunnels.
        pub(crate) link: Arc<LinkMetrics>,
    }
}

impl AgentMetrics {
    /// Registers the families.
    ///
    /// # Panics
    /// When they are registered already.
    pub(crate) fn new(registry: &Registry) -> Arc<Self> {
        let streams = StreamFamilies::new(
            registry,
            "konnectivity_network_proxy_agent_stream_packets_total",
            "konnectivity_network_proxy_agent_stream_errors_total",
        );
        // Upstream has it, and counts watches among the lists: it stays at nothing there as well.
        let _ = registry.counter(
            "konnectivity_network_proxy_agent_lease_watches_total",
            "Requests to watch the servers' leases, by answer.",
            &["http_response_code", "reason"],
        );
        let link = LinkMetrics {
            received: streams.segment("to_agent"),
            sent: streams.segment("from_agent"),
            families: Arc::new(LinkFamilies::new(registry)),
            full_channels: None,
            tenant: None,
        };
        let metrics = Self::register(registry, Arc::new(link));
        let results = ConnectResult::ALL.map(ConnectResult::as_str);
        begin(&metrics.connects, &results);
        Arc::new(metrics)
    }

    /// Sets which budget's bytes are exposed; the first call counts.
    pub(crate) fn budget(&self, budget: &Arc<Budget>) {
        self.link.families.budget(budget);
    }

    /// Counts a destination that could not be connected to.
    pub(crate) fn dial_failure(&self, reason: EndpointDialFailure) {
        self.dial_failures.with(&[reason.as_str()]).inc();
    }

    /// Counts a connection to a destination for as long as what is returned lives.
    pub(crate) fn endpoint_connection(&self) -> Held {
        Held::new(&self.endpoint_connections, None)
    }

    /// Counts a stream to a server for as long as what is returned lives.
    pub(crate) fn server_connection(&self) -> Held {
        Held::new(&self.server_connections, None)
    }

    /// Counts a stream to a server that broke. Count it in [`LinkMetrics::received`] as well: this
    /// is the older of the two. Who reads a stream notices first that it is broken, so the other
    /// direction that upstream has is never told.
    pub(crate) fn server_failure(&self) {
        self.server_failures.with(&["from_server"]).inc();
    }

    /// Counts an attempt to connect to a server.
    pub(crate) fn connected(&self, result: ConnectResult) {
        self.connects.with(&[result.as_str()]).inc();
    }
}
