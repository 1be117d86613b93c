//! What things are called: clusters, streams, agents, dials, connections, tunnels.

use std::fmt;
use std::sync::Arc;

/// Names a cluster: whose agents and frontends belong together, and to no other's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(Arc<str>);

impl ClusterId {
    /// Names a cluster `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an agent calls itself; several streams may share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(Arc<str>);

impl AgentId {
    /// Takes an agent's name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One stream between a server and an agent, numbered by the process in the order they came and
/// never again: of two streams the newer one has the higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The number a dialler draws for one dial (`random` on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DialId(pub i64);

impl DialId {
    /// Makes an id of a random number: 63 bits of it, and never 0, which is what a packet without
    /// the field says.
    #[must_use]
    pub fn from_random(random: u64) -> Self {
        Self((random >> 1).cast_signed().max(1))
    }
}

/// The number an agent gives to a connection it opened, counted from 1 on each stream
/// (`connectID` on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectId(pub i64);

impl fmt::Display for ConnectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A tunnel of one [`Link`](crate::Link); never means another one, also after the tunnel's end,
/// and nothing to any other link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId {
    pub(crate) stream: StreamId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dial_ids_are_positive() {
        assert_eq!(DialId::from_random(0), DialId(1));
        assert_eq!(DialId::from_random(u64::MAX), DialId(i64::MAX));
        assert_eq!(DialId::from_random(84), DialId(42));
    }
}
