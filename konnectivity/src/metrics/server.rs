//! What the server counts, beside what belongs to a tenant or a link.

use std::sync::Arc;

use knp_proto::{Budget, Tenant};
use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily};

use super::link::LinkFamilies;
use super::stream::StreamFamilies;
use super::tenant::{LIMITS, TenantFamilies};
use super::{Held, LinkMetrics, StreamCounters, TenantMetrics, with_all};

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

/// What the server counts.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    // Those that upstream has.
    /// How long a frontend's connection lived.
    pub(crate) connection_duration: Histogram,
    pub(super) culled_leases: Counter,
    /// Time from a dial to an agent's successful answer.
    pub(crate) dial_duration: Histogram,
    pub(super) dial_failures: CounterFamily,
    pub(super) established: Gauge,
    /// Time to hand a packet or data to a frontend.
    pub(crate) frontend_write_duration: Histogram,
    /// Of agents' streams; frontends of ours have no channel that could be full.
    full_channels: Gauge,
    grpc_connections: GaugeFamily,
    http_connections: Gauge,
    pub(super) lease_delete_latency: HistogramFamily,
    pub(super) lease_deletes: CounterFamily,
    pub(super) lease_list_latency: HistogramFamily,
    pub(super) lease_lists: CounterFamily,
    pub(super) pending_dials: Gauge,
    pub(super) ready_backends: GaugeFamily,
    pub(super) ready_connections: Gauge,
    from_agent: Arc<StreamCounters>,
    to_agent: Arc<StreamCounters>,
    /// Packets and errors from gRPC frontends.
    pub(crate) from_client: Arc<StreamCounters>,
    /// Packets and errors toward gRPC frontends.
    pub(crate) to_client: Arc<StreamCounters>,

    // Those that only ours has.
    /// Pauses of accepting.
    pub(crate) accept_paused: Counter,
    accepted_peers: CounterFamily,
    /// Dials tried again with another agent.
    pub(crate) dials_retried: Counter,
    pub(super) refused_dials: CounterFamily,
    refused_peers: CounterFamily,
    registry_clusters: Gauge,
    registry_generation: Gauge,
    registry_refused_files: Gauge,
    registry_reloads: CounterFamily,
    tokens: CounterFamily,
    links: Arc<LinkFamilies>,
    tenants: Option<Arc<TenantFamilies>>,
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
            full_channels: Some(self.full_channels.clone()),
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

    /// Reports what is active of the registry: how many tenants, of which generation, and how many
    /// files could not be taken.
    pub(crate) fn registry_active(&self, generation: u64, tenants: usize, refused_files: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.registry_clusters.set(number(tenants));
        self.registry_refused_files.set(number(refused_files));
        self.registry_generation
            .set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// Counts one time that something had changed in the registry and was read again.
    pub(crate) fn registry_reloaded(&self, result: ReloadResult) {
        self.registry_reloads.with(&[result.as_str()]).inc();
    }

    /// Registers the families, and with `per_tenant` those with a label `cluster`.
    ///
    /// # Panics
    /// When they are registered already.
    pub(crate) fn new(registry: &Registry, per_tenant: bool) -> Arc<Self> {
        let counter = |name, help| registry.counter(name, help, &[]).with(&[]);
        let listed = |name, help, labels, values: &[&str]| {
            with_all(registry.counter(name, help, labels), values)
        };
        let gauge = |name, help| registry.gauge(name, help, &[]).with(&[]);
        let histogram =
            |name, help, bounds: &[f64]| registry.histogram(name, help, &[], bounds).with(&[]);
        let latency = |name, help| registry.histogram(name, help, &["http_status_code"], &LATENCY);
        let answers = |name, help| registry.counter(name, help, &["http_status_code", "reason"]);
        let full_channels = registry.gauge(
            "konnectivity_network_proxy_server_full_receive_channels",
            "Streams that are not read because one of their tunnels is full, by method.",
            &["service_method"],
        );
        let streams = StreamFamilies::new(
            registry,
            "konnectivity_network_proxy_server_stream_packets_total",
            "konnectivity_network_proxy_server_stream_errors_total",
        );
        Arc::new(Self {
            connection_duration: histogram(
                "konnectivity_network_proxy_server_connection_duration_seconds",
                "How long connections of frontends lived, in seconds.",
                &LIFETIME,
            ),
            culled_leases: counter(
                "konnectivity_network_proxy_server_culled_leases_count",
                "Expired leases of servers that were deleted.",
            ),
            dial_duration: histogram(
                "konnectivity_network_proxy_server_dial_duration_seconds",
                "Time until an agent had connected to a destination, in seconds.",
                &LATENCY,
            ),
            dial_failures: registry.counter(
                "konnectivity_network_proxy_server_dial_failure_count",
                "Failed dials, by reason; one dial may fail in more than one way.",
                &["reason"],
            ),
            established: gauge(
                "konnectivity_network_proxy_server_established_connections",
                "Connections of frontends to destinations.",
            ),
            frontend_write_duration: histogram(
                "konnectivity_network_proxy_server_frontend_write_duration_seconds",
                "Time to write to a frontend, in seconds.",
                &LATENCY,
            ),
            full_channels: full_channels.with(&[Service::Connect.as_str()]),
            grpc_connections: registry.gauge(
                "konnectivity_network_proxy_server_grpc_connections",
                "gRPC streams, by method.",
                &["service_method"],
            ),
            http_connections: gauge(
                "konnectivity_network_proxy_server_http_connections",
                "Connections of frontends that speak HTTP CONNECT.",
            ),
            lease_delete_latency: latency(
                "konnectivity_network_proxy_server_lease_delete_latency_seconds",
                "Time to delete a lease, in seconds.",
            ),
            lease_deletes: answers(
                "konnectivity_network_proxy_server_lease_delete_total",
                "Requests to delete a lease, by answer.",
            ),
            lease_list_latency: latency(
                "konnectivity_network_proxy_server_lease_list_latency_seconds",
                "Time to list leases, in seconds.",
            ),
            lease_lists: answers(
                "konnectivity_network_proxy_server_lease_list_total",
                "Requests to list leases, by answer.",
            ),
            pending_dials: gauge(
                "konnectivity_network_proxy_server_pending_backend_dials",
                "Dials that wait for an agent's answer.",
            ),
            ready_backends: registry.gauge(
                "konnectivity_network_proxy_server_ready_backends",
                "Keys that a strategy has to choose from: agents, or what they are named for.",
                &["proxy_strategy"],
            ),
            ready_connections: gauge(
                "konnectivity_network_proxy_server_ready_backend_connections",
                "Agents to choose from; deprecated, see ready_backends.",
            ),
            accept_paused: counter(
                "rhizome_accept_paused_total",
                "Times accepting paused because descriptors or memory ran out.",
            ),
            accepted_peers: listed(
                "rhizome_konnectivity_accepted_peers_total",
                "Streams of agents and connections of API servers that were let in, by port.",
                &["port"],
                &PeerPort::ALL.map(PeerPort::as_str),
            ),
            dials_retried: counter(
                "rhizome_konnectivity_dials_retried_total",
                "Dials that one agent did not answer and that were given to another.",
            ),
            refused_dials: listed(
                "rhizome_konnectivity_refused_dials_total",
                "Dials refused because of a limit of their tenant, by limit.",
                &["limit"],
                &LIMITS,
            ),
            refused_peers: registry.counter(
                "rhizome_konnectivity_refused_peers_total",
                "Agents and frontends turned away, by port and reason.",
                &["port", "reason"],
            ),
            registry_clusters: gauge(
                "rhizome_konnectivity_registry_clusters",
                "Tenants that are served.",
            ),
            registry_generation: gauge(
                "rhizome_konnectivity_registry_generation",
                "Which reading of the registry is active.",
            ),
            registry_refused_files: gauge(
                "rhizome_konnectivity_registry_refused_files",
                "Files of the registry that were refused; what they said before stays in effect.",
            ),
            registry_reloads: listed(
                "rhizome_konnectivity_registry_reloads_total",
                "Times that something had changed in the registry and was read again, by result.",
                &["result"],
                &ReloadResult::ALL.map(ReloadResult::as_str),
            ),
            tokens: listed(
                "rhizome_konnectivity_tokens_checked_total",
                "Tokens of agents that were checked, by result.",
                &["result"],
                &TokenResult::ALL.map(TokenResult::as_str),
            ),
            from_agent: streams.segment("from_agent"),
            to_agent: streams.segment("to_agent"),
            from_client: streams.segment("from_client"),
            to_client: streams.segment("to_client"),
            links: Arc::new(LinkFamilies::new(registry)),
            tenants: per_tenant.then(|| TenantFamilies::new(registry)),
        })
    }
}
