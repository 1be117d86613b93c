//! A cluster and its endpoints as a connection would find them now.
//!
//! ```text
//!     Cluster ─▶ candidates ─▶ views: state, zone, weight, connections, why not
//! ```
//!
//! Asks `route` what a choice would be, and takes none.

use std::cmp::Ordering;
use std::sync::Arc;

use route::{
    Balance, Cluster, ConnectFailure, Endpoint, EndpointState, PickContext, ProxyVersion, Route,
};
use tokio::time::Instant;

use super::UNKNOWN_CLIENT;
use super::question::Question;
use super::report::{ClusterView, EndpointView};
use crate::routing::Published;

/// Upper bound of endpoints in one answer.
const MAX_ENDPOINTS: usize = 256;

/// Describes the cluster of a route for a client that asks now.
pub(super) fn view(published: &Published, route: &Route, question: &Question) -> ClusterView {
    let cluster = route.cluster();
    let zone = published.zone.as_deref();
    let now = Instant::now().into_std();
    let cx = PickContext {
        source: question.source.unwrap_or(UNKNOWN_CLIENT),
        zone,
        now,
        random: 0,
        tried: &[],
    };
    let candidates = match (cluster.settings().balance, question.source) {
        // By the client's address, which is not known: any of the best.
        (Balance::Maglev, None) => best(cluster, &cx),
        _ => cluster.candidates(&cx),
    };
    let is_candidate = |endpoint: &Arc<Endpoint>| {
        candidates
            .iter()
            .any(|candidate| Arc::ptr_eq(candidate, endpoint))
    };
    let mut endpoints: Vec<&Arc<Endpoint>> = cluster.endpoints().iter().collect();
    endpoints.sort_by_key(|endpoint| !is_candidate(endpoint));
    let views = endpoints.into_iter().take(MAX_ENDPOINTS).map(|endpoint| {
        let candidate = is_candidate(endpoint);
        let why_not = (!candidate).then(|| {
            candidates
                .first()
                .map(|better| why_not(endpoint, better, cluster, &cx))
        });
        endpoint_view(endpoint, published, &cx, candidate, why_not.flatten())
    });
    ClusterView {
        name: cluster.name().to_string(),
        connections: cluster.active(),
        max_connections: cluster.settings().max_connections,
        balance: balance(cluster.settings().balance).to_owned(),
        zone_aware: cluster.settings().zone_aware,
        zone: zone.map(str::to_owned),
        connect_timeout_seconds: cluster.settings().connect_timeout.as_secs_f64(),
        connect_retries: cluster.settings().connect_retries,
        send_proxy_protocol: cluster.settings().send_proxy_protocol.map(version),
        connect_failures: { ConnectFailure::ALL.into_iter() }
            .map(|kind| (kind.as_str().to_owned(), cluster.connect_failures(kind)))
            .filter(|(_, count)| *count > 0)
            .collect(),
        endpoints: views.collect(),
        endpoints_total: cluster.endpoints().len(),
        candidates: { candidates.iter() }
            .map(|candidate| candidate.address().to_string())
            .collect(),
    }
}

/// Returns the endpoints of the best rank there is.
fn best<'c>(cluster: &'c Cluster, cx: &PickContext<'_>) -> Vec<&'c Arc<Endpoint>> {
    let all = cluster.endpoints().iter();
    let Some(least) = all
        .clone()
        .map(|endpoint| rank(endpoint, cluster, cx))
        .min()
    else {
        return Vec::new();
    };
    all.filter(|endpoint| rank(endpoint, cluster, cx) == least)
        .collect()
}

/// What endpoints are compared by before any balance is; the least is the best.
fn rank(endpoint: &Endpoint, cluster: &Cluster, cx: &PickContext<'_>) -> (u8, u32, bool) {
    let state = match endpoint.state(cx.now) {
        EndpointState::Healthy => 0,
        EndpointState::Ejected => 1,
        EndpointState::Unhealthy => 2,
    };
    let other_zone =
        cluster.settings().zone_aware && cx.zone.is_some() && cx.zone != endpoint.zone();
    (state, endpoint.priority(), other_zone)
}

/// Says what an endpoint lacks that one that may be chosen has.
fn why_not(
    endpoint: &Endpoint,
    better: &Endpoint,
    cluster: &Cluster,
    cx: &PickContext<'_>,
) -> String {
    let (own, other) = (rank(endpoint, cluster, cx), rank(better, cluster, cx));
    let why = match (own.0.cmp(&other.0), own.1.cmp(&other.1), own.2 && !other.2) {
        (Ordering::Greater, ..) => "left out while others are better",
        (_, Ordering::Greater, _) => "its priority comes later",
        (.., true) => "in another zone",
        _ => match cluster.settings().balance {
            Balance::LeastRequest => "has more connections for its weight",
            Balance::Maglev => "another one is this client's",
            Balance::Random | Balance::RoundRobin => "not its turn",
        },
    };
    why.to_owned()
}

fn endpoint_view(
    endpoint: &Endpoint,
    published: &Published,
    cx: &PickContext<'_>,
    candidate: bool,
    why_not: Option<String>,
) -> EndpointView {
    let host = endpoint.address().host_name();
    let resolved = host.map(|name| published.names.known(name).to_vec());
    let unresolved = resolved.as_ref().is_some_and(Vec::is_empty);
    let last_resort = candidate && endpoint.state(cx.now) != EndpointState::Healthy;
    let note = match (unresolved, last_resort) {
        (true, _) => Some("its name has no address".to_owned()),
        (false, true) => Some("tried all the same, as nothing better is left".to_owned()),
        (false, false) => why_not,
    };
    EndpointView {
        address: endpoint.address().to_string(),
        resolved,
        zone: endpoint.zone().map(str::to_owned),
        weight: endpoint.weight(),
        priority: endpoint.priority(),
        state: endpoint.state(cx.now).as_str().to_owned(),
        connections: endpoint.active(),
        failures: endpoint.failures(),
        ejected_for_seconds: endpoint.ejected_for(cx.now).map(|left| left.as_secs_f64()),
        candidate,
        note,
    }
}

fn balance(balance: Balance) -> &'static str {
    match balance {
        Balance::LeastRequest => "least-request",
        Balance::Maglev => "maglev",
        Balance::Random => "random",
        Balance::RoundRobin => "round-robin",
    }
}

fn version(version: ProxyVersion) -> String {
    let version = match version {
        ProxyVersion::V1 => "v1",
        ProxyVersion::V2 => "v2",
    };
    version.to_owned()
}
