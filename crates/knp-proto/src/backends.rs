//! Which agent's stream a dial goes to.
//!
//! ```text
//! host ──▶ strategy 1 ──none──▶ strategy 2 ──none──▶ … ──▶ no agent available
//!             └─▶ a slot: the streams of one agent id, host or range ──▶ newest alive
//! ```
//!
//! One table per tenant; it never sees another tenant's agents. Opens nothing and keeps no time:
//! whether a stream is alive is told by its owner.

mod host;
mod slots;

pub use host::dial_host;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::id::{AgentId, StreamId};
use crate::identifiers::Identifiers;
use host::{canonical, parse_range};
use slots::Slots;

/// A way of choosing, as named by `--proxy-strategies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// Any agent.
    Default,
    /// Any agent that takes what no other is meant for.
    DefaultRoute,
    /// The agent of the smallest range that holds the address; ours.
    DestCidr,
    /// An agent that named the very host or address.
    DestHost,
}

/// Why a list of strategies is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// Nothing but commas.
    #[error("at least one proxy strategy has to be specified")]
    Empty,
    /// A strategy given twice.
    #[error("proxy strategy {name} is given twice")]
    Twice {
        /// Which.
        name: &'static str,
    },
    /// A name that means nothing.
    #[error(
        "unknown proxy strategy {name:?}; known are default, destHost, defaultRoute and destCIDR"
    )]
    Unknown {
        /// The name.
        name: String,
    },
}

impl Strategy {
    /// Reads a list separated by commas; empty entries are skipped.
    ///
    /// # Errors
    ///
    /// [`StrategyError`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, StrategyError> {
        let mut strategies = Vec::new();
        for name in text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let strategy = match name {
                "default" => Self::Default,
                "defaultRoute" => Self::DefaultRoute,
                "destCIDR" => Self::DestCidr,
                "destHost" => Self::DestHost,
                name => {
                    let name = name.to_owned();
                    return Err(StrategyError::Unknown { name });
                }
            };
            if strategies.contains(&strategy) {
                let name = strategy.as_str();
                return Err(StrategyError::Twice { name });
            }
            strategies.push(strategy);
        }
        if strategies.is_empty() {
            return Err(StrategyError::Empty);
        }
        Ok(strategies)
    }

    /// Returns the name, as in flags and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DefaultRoute => "defaultRoute",
            Self::DestCidr => "destCIDR",
            Self::DestHost => "destHost",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The agents' streams of one tenant.
#[derive(Debug, Default)]
pub struct Backends {
    streams: BTreeMap<StreamId, Backend>,
    by_agent: Slots<AgentId>,
    by_host: Slots<String>,
    /// Smaller ranges come first.
    by_range: Slots<(Reverse<u8>, IpNet)>,
    by_route: Slots<AgentId>,
}

#[derive(Debug)]
struct Backend {
    agent: AgentId,
    identifiers: Identifiers,
    alive: bool,
    draining: bool,
}

impl Backends {
    /// Makes an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stream, alive. Addresses are compared as addresses and names without regard to
    /// letter case; ranges that are none are left out.
    pub fn insert(&mut self, stream: StreamId, agent: AgentId, identifiers: Identifiers) {
        self.remove(stream);
        self.by_agent.insert(agent.clone(), stream);
        if identifiers.default_route {
            self.by_route.insert(agent.clone(), stream);
        }
        for host in hosts(&identifiers) {
            self.by_host.insert(host, stream);
        }
        for range in ranges(&identifiers) {
            self.by_range.insert(range, stream);
        }
        let backend = Backend {
            agent,
            identifiers,
            alive: true,
            draining: false,
        };
        self.streams.insert(stream, backend);
    }

    /// Removes a stream and no other, whatever they have in common.
    pub fn remove(&mut self, stream: StreamId) {
        let Some(backend) = self.streams.remove(&stream) else {
            return;
        };
        self.by_agent.remove(&backend.agent, stream);
        self.by_route.remove(&backend.agent, stream);
        for host in hosts(&backend.identifiers) {
            self.by_host.remove(&host, stream);
        }
        for range in ranges(&backend.identifiers) {
            self.by_range.remove(&range, stream);
        }
    }

    /// Marks a stream's agent as draining: it is dialed only when all others in question drain.
    pub fn set_draining(&mut self, stream: StreamId) {
        if let Some(backend) = self.streams.get_mut(&stream) {
            backend.draining = true;
        }
    }

    /// Sets whether a stream answers. One that does not is not dialed at all.
    pub fn set_alive(&mut self, stream: StreamId, alive: bool) {
        if let Some(backend) = self.streams.get_mut(&stream) {
            backend.alive = alive;
        }
    }

    /// Returns the number of streams, alive or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether there is no stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns how many agents, hosts or ranges a strategy knows of a stream that is alive for.
    #[must_use]
    pub fn ready(&self, strategy: Strategy) -> usize {
        let alive = |stream: StreamId| self.streams.get(&stream).is_some_and(|known| known.alive);
        match strategy {
            Strategy::Default => self.by_agent.count(alive),
            Strategy::DefaultRoute => self.by_route.count(alive),
            Strategy::DestCidr => self.by_range.count(alive),
            Strategy::DestHost => self.by_host.count(alive),
        }
    }

    /// Chooses a stream for a dial to `host` (see [`dial_host`]): the first strategy that knows
    /// one decides. Among the streams of a slot the newest alive is chosen, one that drains only
    /// for want of another; those in `tried` are not chosen again.
    ///
    /// `random` is drawn anew for each dial.
    #[must_use]
    pub fn pick(
        &self,
        strategies: &[Strategy],
        host: &str,
        random: u64,
        tried: &[StreamId],
    ) -> Option<StreamId> {
        let mut picks = strategies.iter();
        picks.find_map(|strategy| self.pick_by(*strategy, host, random, tried))
    }

    fn pick_by(
        &self,
        strategy: Strategy,
        host: &str,
        random: u64,
        tried: &[StreamId],
    ) -> Option<StreamId> {
        let mut best = Best {
            backends: self,
            tried,
            draining: None,
        };
        let found = match strategy {
            Strategy::Default => best.of_any(self.by_agent.rotated(random)),
            Strategy::DefaultRoute => best.of_any(self.by_route.rotated(random)),
            Strategy::DestCidr => {
                let address: IpAddr = host.parse().ok()?;
                let address = address.to_canonical();
                best.of_any(self.by_range.iter().filter_map(|((_, range), streams)| {
                    range.contains(&address).then_some(streams)
                }))
            }
            Strategy::DestHost => best.of_any(self.by_host.find(&canonical(host)).into_iter()),
        };
        found.or(best.draining)
    }
}

/// The search for a stream through slots, in the order of preference.
struct Best<'a> {
    backends: &'a Backends,
    tried: &'a [StreamId],
    draining: Option<StreamId>,
}

impl Best<'_> {
    fn of_any<'s>(&mut self, mut slots: impl Iterator<Item = &'s [StreamId]>) -> Option<StreamId> {
        slots.find_map(|streams| self.of(streams))
    }

    fn of(&mut self, streams: &[StreamId]) -> Option<StreamId> {
        // Newest first: of two streams of one agent the older is the likelier to be dead.
        for &stream in streams.iter().rev() {
            let Some(backend) = self.backends.streams.get(&stream) else {
                continue;
            };
            if !backend.alive || self.tried.contains(&stream) {
                continue;
            }
            if !backend.draining {
                return Some(stream);
            }
            self.draining = self.draining.or(Some(stream));
        }
        None
    }
}

fn hosts(identifiers: &Identifiers) -> impl Iterator<Item = String> {
    let addresses = identifiers.ipv4.iter().chain(&identifiers.ipv6);
    addresses
        .chain(&identifiers.host)
        .map(|host| canonical(host))
}

fn ranges(identifiers: &Identifiers) -> impl Iterator<Item = (Reverse<u8>, IpNet)> {
    let ranges = identifiers.cidr.iter();
    ranges
        .filter_map(|text| parse_range(text))
        .map(|range| (Reverse(range.prefix_len()), range))
}

#[cfg(test)]
mod tests;
