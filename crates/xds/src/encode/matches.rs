//! What routes match, as it is compared and named.

use route::{IpPrefix, RouteMatch};

use crate::match_key::MatchKey;
use crate::proto::CidrRange;

/// One thing that a route matches.
pub(super) type Key = MatchKey<String>;

/// Names the match of a route that is withheld whole.
pub(super) fn describe(matches: &RouteMatch) -> String {
    match matches {
        RouteMatch::ConnectDestinations(values) => format!("CONNECT to {}", values.join(", ")),
        RouteMatch::Destinations { prefixes, port } => {
            let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
            let port = port.map(|port| format!(" port {port}")).unwrap_or_default();
            format!("destinations {}{port}", prefixes.join(", "))
        }
        RouteMatch::ServerNames(names) => format!("server names {}", names.join(", ")),
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => format!(
            "WireGuard route id {route_id:?}, {} keys",
            public_keys.len()
        ),
    }
}

pub(super) fn cidr_range(prefix: &IpPrefix) -> CidrRange {
    CidrRange {
        address_prefix: prefix.network().to_string(),
        prefix_len: Some(prefix.len().into()),
    }
}

pub(super) fn cidr_ranges(prefixes: &[IpPrefix]) -> Vec<CidrRange> {
    prefixes.iter().map(cidr_range).collect()
}
