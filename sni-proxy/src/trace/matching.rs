//! Which route a target finds, which others match as well, and which nearly do.
//!
//! ```text
//!     target ─┬─▶ the table's own look-up ─▶ route
//!             └─▶ every route, one by one ─▶ why this one, what else, what nearly
//! ```
//!
//! The look-up decides; the rest explains it, in time that grows with the table, which a
//! connection's does not.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use route::{IpPrefix, Matches, Route, Snapshot, public_key_text};
use serve::Reason;
use strsim::levenshtein;

use super::question::{Question, Target, WireGuardServer};
use super::report::Match;
use crate::routing::Published;
use crate::worker::Shared;

/// Upper bound of matches in one answer, of those that count and of those that nearly do.
const MAX_MATCHES: usize = 8;

/// Characters that two names may differ by and still look alike.
const ALIKE: usize = 2;

/// Bytes of a text that are compared at most; the longest server name has fewer.
const MAX_COMPARED: usize = 256;

/// What was found.
pub(super) struct Found<'s> {
    pub(super) route: Option<&'s Arc<Route>>,
    /// What of the route matched.
    pub(super) matched: String,
    pub(super) also: Vec<Match>,
    pub(super) nearly: Vec<Match>,
    /// What a connection would be refused for, without a route.
    pub(super) unknown: Reason,
    /// The same for people.
    pub(super) why: String,
}

/// Something of a route that matches, or nearly does.
struct Candidate<'s> {
    pattern: String,
    route: &'s Arc<Route>,
    judged: Judged,
}

/// Finds the route of a target among those of the listener at `index`.
pub(super) fn find<'s>(
    published: &'s Published,
    shared: &Shared,
    question: &Question,
    index: usize,
) -> Found<'s> {
    let snapshot = &*published.snapshot;
    let table = snapshot.on(index);
    let (route, unknown) = match &question.target {
        Target::Connect(value) => (table.by_connect(value), Reason::UnknownDestination),
        Target::Destination(address) => {
            (table.by_destination(*address), Reason::UnknownDestination)
        }
        Target::ServerName(name) if name.is_empty() => {
            (table.by_server_name(None), Reason::NoServerName)
        }
        Target::ServerName(name) => (table.by_server_name(Some(name)), Reason::UnknownServerName),
        Target::WireGuard(server) => (
            by_server(snapshot, *server).filter(|route| route.serves(index)),
            Reason::UnknownDestination,
        ),
    };
    let (mut matching, mut nearly): (Vec<_>, Vec<_>) = look_around(snapshot, &question.target)
        .into_iter()
        .partition(|candidate| candidate.judged.matches());
    let here = |candidate: &Candidate<'_>| candidate.route.serves(index);
    matching.sort_by_key(|candidate| (Reverse(candidate.judged.rank()), !here(candidate)));
    nearly.sort_by_key(|candidate| candidate.judged.rank());
    let first = matching.iter().position(here);
    let taken = first.map(|first| matching.remove(first));
    debug_assert_eq!(
        taken.as_ref().map(|taken| taken.route.cluster().name()),
        route.map(|route| route.cluster().name()),
        "the explanation is of what the look-up found"
    );
    let names = |route: &Route| listeners_of(route, shared);
    let ready = shared.routing.has_routes().is_ok();
    Found {
        route,
        matched: taken.map_or_else(String::new, |taken| taken.pattern),
        also: { matching.into_iter().take(MAX_MATCHES) }
            .map(|other| describe(other, index, names))
            .collect(),
        nearly: { nearly.into_iter().take(MAX_MATCHES) }
            .map(|other| describe(other, index, names))
            .collect(),
        unknown: if ready { unknown } else { Reason::NoEndpoint },
        why: match ready {
            true => "no route matches".to_owned(),
            false => {
                "there are no routes yet: connections wait for them, and then give up".to_owned()
            }
        },
    }
}

fn by_server(snapshot: &Snapshot, server: WireGuardServer) -> Option<&Arc<Route>> {
    match server {
        WireGuardServer::RouteId(id) => snapshot.by_route_id(id),
        WireGuardServer::PublicKey(key) => { snapshot.wireguard_routes() }
            .find_map(|(keys, route)| keys.contains(&key).then_some(route)),
    }
}

/// Returns the names of the listeners that a route is for, with commas between.
fn listeners_of(route: &Route, shared: &Shared) -> String {
    let own = shared.config.listeners.iter().enumerate();
    let names = own.filter(|(index, _)| route.serves(*index));
    let names: Vec<&str> = names.map(|(_, own)| own.name.as_str()).collect();
    names.join(", ")
}

fn describe(candidate: Candidate<'_>, index: usize, listeners: impl Fn(&Route) -> String) -> Match {
    let note = match candidate.judged {
        _ if !candidate.route.serves(index) => {
            format!("only for listeners {}", listeners(candidate.route))
        }
        Judged::Matches(_) => "less specific".to_owned(),
        Judged::Nearly(_, note) => note,
    };
    Match {
        pattern: candidate.pattern,
        cluster: candidate.route.cluster().name().to_string(),
        note,
    }
}

/// Looks at every route: what matches, and what nearly does.
fn look_around<'s>(snapshot: &'s Snapshot, target: &Target) -> Vec<Candidate<'s>> {
    let mut found = Vec::new();
    for route in snapshot.routes() {
        let mut note = |pattern: String, judged: Option<Judged>| {
            found.extend(judged.map(|judged| Candidate {
                pattern,
                route,
                judged,
            }));
        };
        match (route.matches(), target) {
            (Matches::ServerNames(names), Target::ServerName(name)) => {
                for pattern in names.iter() {
                    note(pattern.to_string(), server_name(pattern, name));
                }
            }
            (Matches::ConnectDestinations(values), Target::Connect(value)) => {
                for pattern in values.iter() {
                    note(pattern.to_string(), connect(pattern, value));
                }
            }
            (Matches::Destinations { prefixes, port }, Target::Destination(address)) => {
                for prefix in prefixes {
                    let on = port.map_or_else(String::new, |port| format!(" port {port}"));
                    note(
                        format!("{prefix}{on}"),
                        destination(prefix, *port, *address),
                    );
                }
            }
            (Matches::WireGuard(servers), Target::WireGuard(WireGuardServer::RouteId(id))) => {
                if servers.route_id == Some(*id) {
                    note(format!("route id {id}"), Some(Judged::Matches(0)));
                }
            }
            (Matches::WireGuard(servers), Target::WireGuard(WireGuardServer::PublicKey(key))) => {
                for own in &servers.public_keys {
                    note(public_key_text(own), public_key(own, key));
                }
            }
            (
                Matches::ConnectDestinations(_)
                | Matches::Destinations { .. }
                | Matches::ServerNames(_)
                | Matches::WireGuard(_),
                _,
            ) => {}
        }
    }
    found
}

/// What something of a route has to do with a target.
enum Judged {
    /// It matches; the higher the more specifically.
    Matches(usize),
    /// It does not, but looks alike; the lower the nearer.
    Nearly(usize, String),
}

impl Judged {
    fn nearly(rank: usize, note: &str) -> Self {
        Self::Nearly(rank, note.to_owned())
    }

    /// Judges texts that differ, if only by a few characters.
    fn alike(left: &str, right: &str) -> Option<Self> {
        let distance = distance(left, right)?;
        let note = match distance {
            1 => "differs by one character".to_owned(),
            several => format!("differs by {several} characters"),
        };
        Some(Self::Nearly(distance, note))
    }

    fn matches(&self) -> bool {
        matches!(self, Self::Matches(_))
    }

    fn rank(&self) -> usize {
        match self {
            Self::Matches(rank) | Self::Nearly(rank, _) => *rank,
        }
    }
}

/// Judges a pattern, which is in its normal form.
fn server_name(pattern: &str, name: &str) -> Option<Judged> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if pattern == "*" {
        return Some(Judged::Matches(0));
    }
    if name.is_empty() {
        return None;
    }
    if pattern == name {
        return Some(Judged::Matches(usize::MAX));
    }
    if let Some(suffix) = pattern.strip_prefix("*.") {
        if name == suffix {
            return Some(Judged::nearly(
                1,
                "a wildcard stands for at least one label",
            ));
        }
        let in_front = name.strip_suffix(suffix);
        if in_front.is_some_and(|front| front.len() > 1 && front.ends_with('.')) {
            return Some(Judged::Matches(suffix.len()));
        }
    }
    Judged::alike(pattern, &name).or_else(|| {
        let (_, one) = pattern.split_once('.')?;
        let (_, other) = name.split_once('.')?;
        (one == other && one.contains('.')).then(|| Judged::nearly(ALIKE + 1, "in the same domain"))
    })
}

fn connect(pattern: &str, value: &str) -> Option<Judged> {
    if pattern == value {
        return Some(Judged::Matches(0));
    }
    if pattern.eq_ignore_ascii_case(value) {
        return Some(Judged::nearly(0, "values are compared with regard to case"));
    }
    Judged::alike(pattern, value).or_else(|| {
        let contains = pattern.contains(value) || value.contains(pattern);
        (!value.is_empty() && contains).then(|| Judged::nearly(ALIKE + 1, "one contains the other"))
    })
}

fn destination(prefix: &IpPrefix, port: Option<u16>, address: SocketAddr) -> Option<Judged> {
    let specific = usize::from(prefix.len()) * 2;
    match (prefix.contains(address.ip()), port) {
        (true, None) => Some(Judged::Matches(specific)),
        (true, Some(port)) if port == address.port() => Some(Judged::Matches(specific + 1)),
        (true, Some(_)) => Some(Judged::nearly(0, "another port")),
        (false, _) => in_one_network(prefix.network(), address.ip())
            .then(|| Judged::nearly(1, "another address of the same network")),
    }
}

/// Tells whether two addresses share the first 24 bits (IPv4) or 64 bits (IPv6).
fn in_one_network(one: IpAddr, other: IpAddr) -> bool {
    match (one, other.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.to_bits() >> 8 == other.to_bits() >> 8,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() >> 64 == other.to_bits() >> 64,
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

fn public_key(own: &[u8; 32], key: &[u8; 32]) -> Option<Judged> {
    if own == key {
        return Some(Judged::Matches(0));
    }
    Judged::alike(&public_key_text(own), &public_key_text(key))
}

/// Returns how many characters must be changed, added or left out to make one text the other, if
/// that are at most [`ALIKE`].
fn distance(left: &str, right: &str) -> Option<usize> {
    let far =
        left.len().abs_diff(right.len()) > ALIKE || left.len().max(right.len()) > MAX_COMPARED;
    let distance = (!far).then(|| levenshtein(left, right))?;
    (distance <= ALIKE).then_some(distance)
}
