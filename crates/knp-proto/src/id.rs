//! What things are called: tenants, streams, agents, dials, connections, tunnels.

use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Makes the id of a name.
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

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A tenant: agents and frontends that belong together, and to no other tenant.
    TenantId
}
name! {
    /// What an agent calls itself; several streams may share one.
    AgentId
}

/// One stream between a server and an agent, numbered by the process in the order they came and
/// never again: of two streams the newer one has the higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The number a dialler draws for one dial (`random` on the wire).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    pub(crate) serial: u32,
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
