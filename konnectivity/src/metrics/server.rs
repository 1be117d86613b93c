//! What the server counts, beside what belongs to a tenant or a link.

use std::sync::Arc;

use knp_proto::{Budget, Tenant};
use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Gauge, Histogram};

use super::link::LinkFamilies;
use super::stream::StreamFamilies;
use super::tenant::{LIMITS, TenantFamilies};
use super::{Held, LinkMetrics, StreamCounters, TenantMetrics};

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

/// What the server counts. Clones are the same and cost one reference.
#[derive(Clone, Debug)]
pub(crate) struct ServerMetrics {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) upstream: Upstream,
    pub(super) own: Own,
    links: Arc<LinkFamilies>,
    from_agent: StreamCounters,
    to_agent: StreamCounters,
    from_client: StreamCounters,
    to_client: StreamCounters,
    tenants: Option<Arc<TenantFamilies>>,
}

impl ServerMetrics {
    /// Registers the families, and with `per_tenant` those with a label `cluster`.
    ///
    /// # Panics
    /// When they are registered already.
    pub(crate) fn new(registry: &Registry, per_tenant: bool) -> Self {
        let streams = StreamFamilies::new(
            registry,
            "konnectivity_network_proxy_server_stream_packets_total",
            "konnectivity_network_proxy_server_stream_errors_total",
        );
        Self {
            inner: Arc::new(Inner {
                upstream: Upstream::new(registry),
                own: Own::new(registry),
                links: Arc::new(LinkFamilies::new(registry)),
                from_agent: streams.segment("from_agent"),
                to_agent: streams.segment("to_agent"),
                from_client: streams.segment("from_client"),
                to_client: streams.segment("to_client"),
                tenants: per_tenant.then(|| TenantFamilies::new(registry)),
            }),
        }
    }

    /// Makes the handles of a tenant, once; clone them for its links, frontends and dials.
    pub(crate) fn tenant(&self, tenant: &Arc<Tenant>) -> TenantMetrics {
        let inner = &self.inner;
        let families = inner.tenants.as_ref();
        let series = families.map(|families| families.series(tenant));
        let full_channels = inner.upstream.full_channels.clone();
        let link = LinkMetrics::new(
            inner.from_agent.clone(),
            inner.to_agent.clone(),
            &inner.links,
            Some(full_channels),
            series.clone(),
        );
        TenantMetrics::new(self.clone(), link, series)
    }

    /// Sets which budget's bytes are exposed; the first call counts.
    pub(crate) fn budget(&self, budget: &Arc<Budget>) {
        self.inner.links.budget(budget);
    }

    /// Counters of packets and errors from gRPC frontends.
    pub(crate) fn received_from_client(&self) -> &StreamCounters {
        &self.inner.from_client
    }

    /// Counters of packets and errors toward gRPC frontends.
    pub(crate) fn sent_to_client(&self) -> &StreamCounters {
        &self.inner.to_client
    }

    /// Counts a gRPC stream for as long as what is returned lives.
    pub(crate) fn grpc_connection(&self, service: Service) -> Held {
        let family = &self.inner.upstream.grpc_connections;
        Held::new(&family.with(&[service.as_str()]), None)
    }

    /// Counts a connection that speaks HTTP CONNECT for as long as what is returned lives.
    pub(crate) fn http_connection(&self) -> Held {
        Held::new(&self.inner.upstream.http_connections, None)
    }

    /// Time from a dial to an agent's successful answer.
    pub(crate) fn dial_duration(&self) -> &Histogram {
        &self.inner.upstream.dial_duration
    }

    /// Time to hand a packet or data to a frontend.
    pub(crate) fn frontend_write_duration(&self) -> &Histogram {
        &self.inner.upstream.frontend_write_duration
    }

    /// How long a frontend's connection lived.
    pub(crate) fn connection_duration(&self) -> &Histogram {
        &self.inner.upstream.connection_duration
    }

    /// Counts a failed dial that belongs to no tenant; see [`TenantMetrics::dial_failure`].
    pub(crate) fn dial_failure(&self, reason: DialFailure) {
        let family = &self.inner.upstream.dial_failures;
        family.with(&[reason.as_str()]).inc();
    }

    /// Counts pauses of accepting.
    pub(crate) fn accept_paused(&self) -> &Counter {
        &self.inner.own.accept_paused
    }

    /// Counts a dial tried again with another agent.
    pub(crate) fn dial_retried(&self) {
        self.inner.own.dials_retried.inc();
    }

    /// Counts a peer that belongs to a tenant and may ask it for something.
    pub(crate) fn peer_accepted(&self, port: PeerPort) {
        self.inner.own.accepted_peers.with(&[port.as_str()]).inc();
    }

    /// Counts a peer that was turned away. `reason` is what an error enum's `reason()` gives, of
    /// which there are only so many.
    pub(crate) fn peer_refused(&self, port: PeerPort, reason: &'static str) {
        let labels = [port.as_str(), reason];
        self.inner.own.refused_peers.with(&labels).inc();
    }

    /// Counts a token that was checked.
    pub(crate) fn token_checked(&self, result: TokenResult) {
        self.inner.own.tokens.with(&[result.as_str()]).inc();
    }

    /// Handles for what reads the registry.
    pub(crate) fn registry(&self) -> RegistryMetrics {
        self.inner.own.registry.clone()
    }
}

/// Handles for what reads the registry. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct RegistryMetrics {
    tenants: Gauge,
    generation: Gauge,
    refused_files: Gauge,
    reloads: CounterFamily,
}

impl RegistryMetrics {
    /// Reports what is active: how many tenants, of which generation, and how many files could
    /// not be taken.
    pub(crate) fn active(&self, generation: u64, tenants: usize, refused_files: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.tenants.set(number(tenants));
        self.refused_files.set(number(refused_files));
        self.generation
            .set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// Counts one time that something had changed and was read again.
    pub(crate) fn reloaded(&self, result: ReloadResult) {
        self.reloads.with(&[result.as_str()]).inc();
    }
}

mod families;

use families::{Own, Upstream};
