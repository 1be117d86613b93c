//! What a trace tells, as it travels: JSON, camel case, times in seconds.
//!
//! Written by the gateway and read by the program that asked it, which may be of another version:
//! what is missing is empty, what is unknown is left alone. Decides nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serve::Reason;

/// The answer to a question: where a connection would go, or why it would be refused.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Trace {
    /// Whether it would be led to an endpoint.
    pub(crate) routed: bool,
    /// Why not, as metrics and access logs name it.
    pub(super) reason: Option<String>,
    /// The same for people, or what would be taken.
    pub(super) why: String,
    pub(super) asked: Asked,
    /// Of the process.
    pub(super) state: String,
    pub(super) listener: Option<ListenerView>,
    pub(super) snapshot: SnapshotView,
    pub(super) limits: Limits,
    pub(super) route: Option<RouteView>,
    /// What matches as well, and does not count: less specific, or of other listeners.
    pub(super) also: Vec<Match>,
    /// What does not match, but looks alike.
    pub(super) nearly: Vec<Match>,
    pub(super) acl: Option<Acl>,
    pub(super) terminated: Option<TerminatedView>,
    pub(super) cluster: Option<ClusterView>,
}

impl Trace {
    /// Ends it: a connection would be refused.
    pub(super) fn refuse(&mut self, reason: Option<Reason>, why: String) {
        self.routed = false;
        self.reason = reason.map(|reason| reason.as_str().to_owned());
        self.why = why;
        if let Some(cluster) = &mut self.cluster {
            cluster.candidates.clear();
        }
    }

    /// Ends it: a connection would be led to one of the candidates.
    pub(super) fn route_to_candidates(&mut self) {
        self.routed = true;
        let candidates = self.cluster.iter().flat_map(|cluster| &cluster.candidates);
        let candidates: Vec<&str> = candidates.map(String::as_str).collect();
        self.why = match candidates.as_slice() {
            [only] => format!("{only} would be taken"),
            several => format!("one of {} would be taken", several.join(", ")),
        };
    }
}

/// What becomes of requests by a route where TLS may end in the gateway.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TerminatedView {
    /// Why it is passed through instead.
    pub(super) passed_through: Option<String>,
    /// Which connections to the endpoints requests use; absent where none is sent on.
    pub(super) pool: Option<String>,
    /// Who they are sent for; absent without a certificate.
    pub(super) user: Option<String>,
    pub(super) groups: Vec<String>,
    /// Why they are answered 400 instead, or why the certificate does not count.
    pub(super) note: Option<String>,
}

/// What was asked.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Asked {
    /// What kind of thing `value` is, for people.
    pub(super) kind: String,
    pub(super) value: String,
    pub(super) source: Option<IpAddr>,
}

/// The listener that was asked about.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListenerView {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) protocol: String,
    /// Other listeners that take the same, whose routes may be others.
    pub(super) others: Vec<String>,
}

/// The table in effect.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SnapshotView {
    pub(super) generation: u64,
    /// Since it was read, or confirmed by the server of routes.
    pub(super) age_seconds: f64,
    /// The file, or the server and the name of the gateway whose routes are asked for.
    pub(super) source: String,
    /// False until there is a first one.
    pub(super) ready: bool,
    /// Why the routing file as it is now is not in effect.
    pub(super) refused: Option<String>,
    pub(super) clusters: usize,
    pub(super) routes: usize,
}

/// The limits in effect; 0 is none.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Limits {
    pub(super) connections: u64,
    pub(super) max_connections: u64,
    pub(super) source_connections: Option<u32>,
    pub(super) max_connections_per_source: u32,
    pub(super) preamble_timeout_seconds: f64,
    pub(super) preamble_bytes: usize,
    pub(super) idle_timeout_seconds: f64,
    pub(super) max_connection_age_seconds: f64,
    /// The two before are the route's own, at least one of them.
    pub(super) of_the_route: bool,
}

/// The route that is taken.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RouteView {
    /// What of it matched.
    pub(super) matched: String,
    /// All that it matches.
    pub(super) matches: String,
    pub(super) cluster: String,
}

/// Something that a route matches.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Match {
    pub(super) pattern: String,
    pub(super) cluster: String,
    /// What it has to do with what was asked for.
    pub(super) note: String,
}

/// Whether the client may use the route.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Acl {
    pub(super) verdict: Verdict,
    /// The entry that allows it.
    pub(super) by: Option<String>,
    pub(super) allow_sources: Vec<String>,
}

/// Whether the client may use the route.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// The list names it.
    Allowed,
    /// The list does not.
    Denied,
    /// There is a list, and the question names no client.
    Depends,
    /// There is no list.
    #[default]
    Open,
}

/// The cluster that the route leads to.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClusterView {
    pub(super) name: String,
    pub(super) connections: u32,
    /// 0 is no limit.
    pub(super) max_connections: u32,
    pub(super) balance: String,
    pub(super) zone_aware: bool,
    /// The gateway's.
    pub(super) zone: Option<String>,
    pub(super) connect_timeout_seconds: f64,
    pub(super) connect_retries: u32,
    pub(super) send_proxy_protocol: Option<String>,
    /// Failed attempts since the cluster came up, by reason.
    pub(super) connect_failures: BTreeMap<String, u64>,
    /// All endpoints, or the first of very many, candidates first.
    pub(super) endpoints: Vec<EndpointView>,
    pub(super) endpoints_total: usize,
    /// The endpoints of which the next connection gets one; empty when it would be refused.
    pub(super) candidates: Vec<String>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndpointView {
    pub(super) address: String,
    /// What a host name resolves to; absent for an address.
    pub(super) resolved: Option<Vec<IpAddr>>,
    pub(super) zone: Option<String>,
    pub(super) weight: u32,
    pub(super) priority: u32,
    pub(super) state: String,
    pub(super) connections: u32,
    /// Failed attempts to connect since the last good one.
    pub(super) failures: u32,
    pub(super) ejected_for_seconds: Option<f64>,
    /// The next connection may get it.
    pub(super) candidate: bool,
    /// Why it is no candidate, or what is odd about it.
    pub(super) note: Option<String>,
}
