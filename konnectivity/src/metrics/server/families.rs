//! The server's families: names, help texts, labels and buckets.

use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily};

use super::{
    LATENCY, LIFETIME, LIMITS, PeerPort, RegistryMetrics, ReloadResult, Service, TokenResult,
};

/// Those that upstream has.
#[derive(Debug)]
pub(in crate::metrics) struct Upstream {
    pub(in crate::metrics) connection_duration: Histogram,
    pub(in crate::metrics) culled_leases: Counter,
    pub(in crate::metrics) dial_duration: Histogram,
    pub(in crate::metrics) dial_failures: CounterFamily,
    pub(in crate::metrics) established: Gauge,
    pub(in crate::metrics) frontend_write_duration: Histogram,
    /// Of agents' streams; frontends of ours have no channel that could be full.
    pub(in crate::metrics) full_channels: Gauge,
    pub(in crate::metrics) grpc_connections: GaugeFamily,
    pub(in crate::metrics) http_connections: Gauge,
    pub(in crate::metrics) lease_delete_latency: HistogramFamily,
    pub(in crate::metrics) lease_deletes: CounterFamily,
    pub(in crate::metrics) lease_list_latency: HistogramFamily,
    pub(in crate::metrics) lease_lists: CounterFamily,
    pub(in crate::metrics) pending_dials: Gauge,
    pub(in crate::metrics) ready_backends: GaugeFamily,
    pub(in crate::metrics) ready_connections: Gauge,
}

impl Upstream {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help| registry.counter(name, help, &[]).with(&[]);
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
        Self {
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
        }
    }
}

/// Those that only ours has, beside the ones of links and tenants.
#[derive(Debug)]
pub(in crate::metrics) struct Own {
    pub(in crate::metrics) accept_paused: Counter,
    pub(in crate::metrics) accepted_peers: CounterFamily,
    pub(in crate::metrics) dials_retried: Counter,
    pub(in crate::metrics) refused_dials: CounterFamily,
    pub(in crate::metrics) refused_peers: CounterFamily,
    pub(in crate::metrics) registry: RegistryMetrics,
    pub(in crate::metrics) tokens: CounterFamily,
}

impl Own {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help| registry.counter(name, help, &[]).with(&[]);
        let own = Self {
            accept_paused: counter(
                "rhizome_accept_paused_total",
                "Times accepting paused because descriptors or memory ran out.",
            ),
            accepted_peers: registry.counter(
                "rhizome_konnectivity_accepted_peers_total",
                "Streams of agents and connections of API servers that were let in, by port.",
                &["port"],
            ),
            dials_retried: counter(
                "rhizome_konnectivity_dials_retried_total",
                "Dials that one agent did not answer and that were given to another.",
            ),
            refused_dials: registry.counter(
                "rhizome_konnectivity_refused_dials_total",
                "Dials refused because of a limit of their tenant, by limit.",
                &["limit"],
            ),
            refused_peers: registry.counter(
                "rhizome_konnectivity_refused_peers_total",
                "Agents and frontends turned away, by port and reason.",
                &["port", "reason"],
            ),
            registry: RegistryMetrics::new(registry),
            tokens: registry.counter(
                "rhizome_konnectivity_tokens_checked_total",
                "Tokens of agents that were checked, by result.",
                &["result"],
            ),
        };
        for port in PeerPort::ALL {
            let _ = own.accepted_peers.with(&[port.as_str()]);
        }
        for limit in LIMITS {
            let _ = own.refused_dials.with(&[limit]);
        }
        for result in TokenResult::ALL {
            let _ = own.tokens.with(&[result.as_str()]);
        }
        own
    }
}

impl RegistryMetrics {
    fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registry.gauge(name, help, &[]).with(&[]);
        let reloads = registry.counter(
            "rhizome_konnectivity_registry_reloads_total",
            "Times that something had changed in the registry and was read again, by result.",
            &["result"],
        );
        for result in ReloadResult::ALL {
            let _ = reloads.with(&[result.as_str()]);
        }
        Self {
            tenants: gauge(
                "rhizome_konnectivity_registry_clusters",
                "Tenants that are served.",
            ),
            generation: gauge(
                "rhizome_konnectivity_registry_generation",
                "Which reading of the registry is active.",
            ),
            refused_files: gauge(
                "rhizome_konnectivity_registry_refused_files",
                "Files of the registry that were refused; what they said before stays in effect.",
            ),
            reloads,
        }
    }
}
