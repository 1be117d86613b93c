//! One thing that one route alone may match: what contradictions are found and reported by.

use std::fmt;

use route::{IpPrefix, public_key_start};

/// A part of a route's match; `S` is an owned or a borrowed text.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum MatchKey<S> {
    Connect(S),
    Destination(IpPrefix, Option<u16>),
    Name(S),
    PublicKey([u8; 32]),
    RouteId(u32),
}

impl<S: fmt::Debug> fmt::Display for MatchKey<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(value) => write!(f, "CONNECT to {value:?}"),
            Self::Destination(prefix, None) => write!(f, "destination {prefix}"),
            Self::Destination(prefix, Some(port)) => write!(f, "destination {prefix} port {port}"),
            Self::Name(name) => write!(f, "server name {name:?}"),
            Self::PublicKey(key) => write!(f, "WireGuard public key {}", public_key_start(key)),
            Self::RouteId(id) => write!(f, "WireGuard route id {id}"),
        }
    }
}
