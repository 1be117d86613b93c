//! The server's families: names, help texts, labels and buckets.

use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily};

use super::{
    LATENCY, LIFETIME, LIMITS, PeerPort, RegistryMetrics, ReloadResult, Service, TokenResult,
};
use super::{counter, gauge, histogram};

/// Those that upstream has.
#[derive(Debug)]
pub(in crate::metrics) struct Upstream {
    pub(super) connection_duration: Histogram,
    pub(in crate::metrics) culled_leases: Counter,
    pub(super) dial_duration: Histogram,
    pub(super) dial_failures: CounterFamily,
    pub(super) established: Gauge,
    pub(super) frontend_write_duration: Histogram,
    /// Of agents' streams; frontends of ours have no channel that could be full.
    pub(super) full_channels: Gauge,
    pub(super) grpc_connections: GaugeFamily,
    pub(super) http_connections: Gauge,
    pub(in crate::metrics) lease_delete_latency: HistogramFamily,
    pub(in crate::metrics) lease_deletes: CounterFamily,
    pub(in crate::metrics) lease_list_latency: HistogramFamily,
    pub(in crate::metrics) lease_lists: CounterFamily,
    pub(super) pending_dials: Gauge,
    pub(super) ready_backends: GaugeFamily,
    pub(super) ready_connections: Gauge,
}

impl Upstream {
    pub(super) fn new(registry: &Registry) -> Self {
        let full_channels = registry.gauge(
            "konnectivity_network_proxy_server_full_receive_channels",
            "Streams that are not read because one of their tunnels is full, by method.",
            &["service_method"],
        );
        Self {
            connection_duration: histogram(
                registry,
                "konnectivity_network_proxy_server_connection_duration_seconds",
                "How long connections of frontends lived, in seconds.",
                &LIFETIME,
            ),
            culled_leases: counter(
                registry,
                "konnectivity_network_proxy_server_culled_leases_count",
                "Expired leases of servers that were deleted.",
            ),
            dial_duration: histogram(
                registry,
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
                registry,
                "konnectivity_network_proxy_server_established_connections",
                "Connections of frontends to destinations.",
            ),
            frontend_write_duration: histogram(
                registry,
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
                registry,
                "konnectivity_network_proxy_server_http_connections",
                "Connections of frontends that speak HTTP CONNECT.",
            ),
            lease_delete_latency: latency(
                registry,
                "konnectivity_network_proxy_server_lease_delete_latency_seconds",
                "Time to delete a lease, in seconds.",
            ),
            lease_deletes: answers(
                registry,
                "konnectivity_network_proxy_server_lease_delete_total",
                "Requests to delete a lease, by answer.",
            ),
            lease_list_latency: latency(
                registry,
                "konnectivity_network_proxy_server_lease_list_latency_seconds",
                "Time to list leases, in seconds.",
            ),
            lease_lists: answers(
                registry,
                "konnectivity_network_proxy_server_lease_list_total",
                "Requests to list leases, by answer.",
            ),
            pending_dials: gauge(
                registry,
                "konnectivity_network_proxy_server_pending_backend_dials",
                "Dials that wait for an agent's answer.",
            ),
            ready_backends: registry.gauge(
                "konnectivity_network_proxy_server_ready_backends",
                "Keys that a strategy has to choose from: agents, or what they are named for.",
                &["proxy_strategy"],
            ),
            ready_connections: gauge(
                registry,
                "konnectivity_network_proxy_server_ready_backend_connections",
                "Agents to choose from; deprecated, see ready_backends.",
            ),
        }
    }
}

fn latency(registry: &Registry, name: &'static str, help: &'static str) -> HistogramFamily {
    registry.histogram(name, help, &["http_status_code"], &LATENCY)
}

fn answers(registry: &Registry, name: &'static str, help: &'static str) -> CounterFamily {
    registry.counter(name, help, &["http_status_code", "reason"])
}

/// Those that only ours has, beside the ones of links and tenants.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) accept_paused: Counter,
    pub(super) accepted_peers: CounterFamily,
    pub(super) dials_retried: Counter,
    pub(super) refused_dials: CounterFamily,
    pub(super) refused_peers: CounterFamily,
    pub(super) registry: RegistryMetrics,
    pub(super) tokens: CounterFamily,
}

impl Own {
    pub(super) fn new(registry: &Registry) -> Self {
        let own = Self {
            accept_paused: counter(
                registry,
                "rhizome_accept_paused_total",
                "Times accepting paused because descriptors or memory ran out.",
            ),
            accepted_peers: registry.counter(
                "rhizome_konnectivity_accepted_peers_total",
                "Streams of agents and connections of API servers that were let in, by port.",
                &["port"],
            ),
            dials_retried: counter(
                registry,
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
                registry,
                "rhizome_konnectivity_registry_clusters",
                "Tenants that are served.",
            ),
            generation: gauge(
                registry,
                "rhizome_konnectivity_registry_generation",
                "Which reading of the registry is active.",
            ),
            refused_files: gauge(
                registry,
                "rhizome_konnectivity_registry_refused_files",
                "Files of the registry that were refused; what they said before stays in effect.",
            ),
            reloads,
        }
    }
}
