//! What the server counts, beside what belongs to a tenant or a link.

use std::sync::Arc;

use knp_proto::{Budget, Tenant};
use telemetry::Registry;

use super::link::LinkFamilies;
use super::stream::StreamFamilies;
use super::tenant::{LIMITS, TenantFamilies};
use super::{Held, LinkMetrics, StreamCounters, TenantMetrics, begin};

/// Bounds of upstream's histograms of dials, writes and leases, seconds.
pub(super) const LATENCY: [f64; 9] = [
    0.000_001, 0.000_01, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5,
];
/// Bounds of upstream's histogram of how long connections live, seconds.
pub(super) const LIFETIME: [f64; 12] = [
    1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0,
];

telemetry::labels! {
    /// One of the two methods of the protocol.
    pub(crate) enum Service {
        /// `AgentService/Connect`.
        Connect = "Connect",
        /// `ProxyService/Proxy`.
        Proxy = "Proxy",
    }
}

telemetry::labels! {
    /// Why a dial failed, as upstream says it.
    pub(crate) enum DialFailure {
        /// The agent's stream ended, or it sent DIAL_CLS, before it answered.
        BackendClose = "backend_close",
        /// The agent did not answer in time.
        BackendDialTimeout = "backend_dial_timeout",
        /// The agent could not connect.
        ErrorResponse = "error_response",
        /// The frontend went away, or sent DIAL_CLS, before the agent answered.
        FrontendClose = "frontend_close",
        /// No agent is there to be asked.
        NoAgent = "no_agent",
        /// The agent connected, and the frontend could not be told.
        SendResponse = "send_rsp",
        /// An answer to a dial that is not under way.
        UnrecognizedResponse = "unrecognized_response",
    }
}

telemetry::labels! {
    /// Where a peer has connected.
    pub(crate) enum PeerPort {
        /// The agents' port.
        Agents = "agents",
        /// The API servers' port.
        Frontends = "frontends",
        /// An API server's Unix socket.
        Uds = "uds",
    }
}

telemetry::labels! {
    /// What came of checking an agent's token.
    pub(crate) enum TokenResult {
        /// It is good.
        Accepted = "accepted",
        /// It was found good, or bad, a short while ago.
        Cached = "cached",
        /// Not checked, because too many were asked for from there.
        Limited = "limited",
        /// It is not good, or not there.
        Refused = "refused",
        /// The API server that reviews it did not answer.
        Unavailable = "unavailable",
    }
}

telemetry::labels! {
    /// What came of reading the registry again because something had changed.
    pub(crate) enum ReloadResult {
        /// It could not be read, and what was active stays.
        Failed = "failed",
        /// Some files were refused, and what they said before stays in effect.
        Partly = "partly",
        /// All is in effect.
        Taken = "taken",
    }
}

telemetry::families! {
    /// What the server counts.
    #[derive(Debug)]
    pub(crate) struct ServerMetrics {
        // Those that upstream has.
        /// How long connections of frontends lived, in seconds.
        pub(crate) connection_duration: histogram(LIFETIME) =
            "konnectivity_network_proxy_server_connection_duration_seconds",
        /// Expired leases of servers that were deleted.
        pub(super) culled_leases: counter = "konnectivity_network_proxy_server_culled_leases_count",
        /// Time until an agent had connected to a destination, in seconds.
        pub(crate) dial_duration: histogram(LATENCY) =
            "konnectivity_network_proxy_server_dial_duration_seconds",
        /// Failed dials, by reason; one dial may fail in more than one way.
        pub(super) dial_failures: counter["reason"] =
            "konnectivity_network_proxy_server_dial_failure_count",
        /// Connections of frontends to destinations.
        pub(super) established: gauge = "konnectivity_network_proxy_server_established_connections",
        /// Time to write to a frontend, in seconds.
        pub(crate) frontend_write_duration: histogram(LATENCY) =
            "konnectivity_network_proxy_server_frontend_write_duration_seconds",
        // Of agents' streams; frontends of ours have no channel that could be full.
        /// Streams that are not read because one of their tunnels is full, by method.
        full_channels: gauge["service_method"] =
            "konnectivity_network_proxy_server_full_receive_channels",
        /// gRPC streams, by method.
        grpc_connections: gauge["service_method"] =
            "konnectivity_network_proxy_server_grpc_connections",
        /// Connections of frontends that speak HTTP CONNECT.
        http_connections: gauge = "konnectivity_network_proxy_server_http_connections",
        /// Time to delete a lease, in seconds.
        pub(super) lease_delete_latency: histogram["http_status_code"](LATENCY) =
            "konnectivity_network_proxy_server_lease_delete_latency_seconds",
        /// Requests to delete a lease, by answer.
        pub(super) lease_deletes: counter["http_status_code", "reason"] =
            "konnectivity_network_proxy_server_lease_delete_total",
        /// Time to list leases, in seconds.
        pub(super) lease_list_latency: histogram["http_status_code"](LATENCY) =
            "konnectivity_network_proxy_server_lease_list_latency_seconds",
        /// Requests to list leases, by answer.
        pub(super) lease_lists: counter["http_status_code", "reason"] =
            "konnectivity_network_proxy_server_lease_list_total",
        /// Dials that wait for an agent's answer.
        pub(super) pending_dials: gauge =
            "konnectivity_network_proxy_server_pending_backend_dials",
        /// Keys that a strategy has to choose from: agents, or what they are named for.
        pub(super) ready_backends: gauge["proxy_strategy"] =
            "konnectivity_network_proxy_server_ready_backends",
        /// Agents to choose from; deprecated, see ready_backends.
        pub(super) ready_connections: gauge =
            "konnectivity_network_proxy_server_ready_backend_connections",

        // Those that only ours has.
        /// Times accepting paused because descriptors or memory ran out.
        pub(crate) accept_paused: counter = "rhizome_accept_paused_total",
        /// Streams of agents and connections of API servers that were let in, by port.
        accepted_peers: counter["port"] = "rhizome_konnectivity_accepted_peers_total",
        /// Dials that one agent did not answer and that were given to another.
        pub(crate) dials_retried: counter = "rhizome_konnectivity_dials_retried_total",
        /// Dials refused because of a limit of their tenant, by limit.
        pub(super) refused_dials: counter["limit"] = "rhizome_konnectivity_refused_dials_total",
        /// Agents and frontends turned away, by port and reason.
        refused_peers: counter["port", "reason"] = "rhizome_konnectivity_refused_peers_total",
        /// Tenants that are served.
        registry_clusters: gauge = "rhizome_konnectivity_registry_clusters",
        /// Sockets of clusters that could not be bound, and are tried again.
        pub(crate) registry_failed_sockets: gauge = "rhizome_konnectivity_registry_failed_sockets",
        /// Which reading of the registry is active.
        registry_generation: gauge = "rhizome_konnectivity_registry_generation",
        /// Files of the registry that were refused; what they said before stays in effect.
        registry_refused_files: gauge = "rhizome_konnectivity_registry_refused_files",
        /// Times that something had changed in the registry and was read again, by result.
        registry_reloads: counter["result"] = "rhizome_konnectivity_registry_reloads_total",
        /// Tokens of agents that were checked, by result.
        tokens: counter["result"] = "rhizome_konnectivity_tokens_checked_total",
    } with {
        from_agent: Arc<StreamCounters>,
        to_agent: Arc<StreamCounters>,
        /// Packets and errors from gRPC frontends.
        pub(crate) from_client: Arc<StreamCounters>,
        /// Packets and errors toward gRPC frontends.
        pub(crate) to_client: Arc<StreamCounters>,
        links: Arc<LinkFamilies>,
        tenants: Option<Arc<TenantFamilies>>,
    }
}

impl ServerMetrics {
    /// Makes the handles of a tenant, once; clone them for its links, frontends and dials.
    pub(crate) fn tenant(self: &Arc<Self>, tenant: &Arc<Tenant>) -> TenantMetrics {
        let families = self.tenants.as_ref();
        let series = families.map(|families| families.series(tenant));
        let link = LinkMetrics {
            received: self.from_agent.clone(),
            sent: self.to_agent.clone(),
            families: self.links.clone(),
            full_channels: Some(self.full_channels.with(&[Service::Connect.as_str()])),
            tenant: series.clone(),
        };
        TenantMetrics::new(Arc::clone(self), link, series)
    }

    /// Sets which budget's bytes are exposed; the first call counts.
    pub(crate) fn budget(&self, budget: &Arc<Budget>) {
        self.links.budget(budget);
    }

    /// Counts a gRPC stream for as long as what is returned lives.
    pub(crate) fn grpc_connection(&self, service: Service) -> Held {
        Held::new(&self.grpc_connections.with(&[service.as_str()]), None)
    }

    /// Counts a connection that speaks HTTP CONNECT for as long as what is returned lives.
    pub(crate) fn http_connection(&self) -> Held {
        Held::new(&self.http_connections, None)
    }

    /// Counts a peer that belongs to a tenant and may ask it for something.
    pub(crate) fn peer_accepted(&self, port: PeerPort) {
        self.accepted_peers.with(&[port.as_str()]).inc();
    }

    /// Counts a peer that was turned away. `reason` is what an error enum's `reason()` gives, of
    /// which there are only so many.
    pub(crate) fn peer_refused(&self, port: PeerPort, reason: &'static str) {
        self.refused_peers.with(&[port.as_str(), reason]).inc();
    }

    /// Counts a token that was checked.
    pub(crate) fn token_checked(&self, result: TokenResult) {
        self.tokens.with(&[result.as_str()]).inc();
    }

    /// Reports what is active of the registry, and counts a reading that found a change.
    pub(crate) fn registry_read(&self, generation: u64, loaded: &crate::registry::Loaded) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.registry_clusters.set(number(loaded.tenants));
        self.registry_refused_files.set(number(loaded.broken));
        let generation = i64::try_from(generation).unwrap_or(i64::MAX);
        self.registry_generation.set(generation);
        let result = match (loaded.refused, loaded.changed) {
            (0, 0) => return,
            (0, _) => ReloadResult::Taken,
            (_, 0) => ReloadResult::Failed,
            (_, _) => ReloadResult::Partly,
        };
        self.registry_reloads.with(&[result.as_str()]).inc();
    }

    /// Registers the families, and with `per_tenant` those with a label `cluster`.
    ///
    /// # Panics
    /// When they are registered already.
    pub(crate) fn new(registry: &Registry, per_tenant: bool) -> Arc<Self> {
        let streams = StreamFamilies::new(
            registry,
            "konnectivity_network_proxy_server_stream_packets_total",
            "konnectivity_network_proxy_server_stream_errors_total",
        );
        let metrics = Self::register(
            registry,
            streams.segment("from_agent"),
            streams.segment("to_agent"),
            streams.segment("from_client"),
            streams.segment("to_client"),
            Arc::new(LinkFamilies::new(registry)),
            per_tenant.then(|| TenantFamilies::new(registry)),
        );
        let _ = metrics.full_channels.with(&[Service::Connect.as_str()]);
        begin(
            &metrics.accepted_peers,
            &PeerPort::ALL.map(PeerPort::as_str),
        );
        begin(&metrics.refused_dials, &LIMITS);
        let reloads = ReloadResult::ALL.map(ReloadResult::as_str);
        begin(&metrics.registry_reloads, &reloads);
        begin(&metrics.tokens, &TokenResult::ALL.map(TokenResult::as_str));
        Arc::new(metrics)
    }
}
