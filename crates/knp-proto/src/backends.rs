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

pub use host::dial_host;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::id::{AgentId, StreamId};
use crate::identifiers::Identifiers;
use host::{canonical, parse_range};

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
    #[error("proxy strategy {0} is given twice")]
    Twice(Strategy),
    /// A name that means nothing.
    #[error("unknown proxy strategy {0:?}; known are default, destHost, defaultRoute and destCIDR")]
    Unknown(String),
}

impl Strategy {
    /// Reads a list separated by commas; empty entries are skipped.
    ///
    /// # Errors
    /// [`StrategyError`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, StrategyError> {
        let mut strategies = Vec::new();
        for name in text.split(',').map(str::trim) {
            let strategy = match name {
                "" => continue,
                "default" => Self::Default,
                "defaultRoute" => Self::DefaultRoute,
                "destCIDR" => Self::DestCidr,
                "destHost" => Self::DestHost,
                name => return Err(StrategyError::Unknown(name.to_owned())),
            };
            if strategies.contains(&strategy) {
                return Err(StrategyError::Twice(strategy));
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
    by_agent: Table<AgentId>,
    by_host: Table<String>,
    /// Smaller ranges come first.
    by_range: Table<(Reverse<u8>, IpNet)>,
    by_route: Table<AgentId>,
}

#[derive(Debug)]
struct Backend {
    agent: AgentId,
    identifiers: Identifiers,
    alive: bool,
    draining: bool,
}

impl Backends {
    /// Adds a stream, alive. Addresses are compared as addresses and names without regard to
    /// letter case; ranges that are none are left out.
    pub fn insert(&mut self, stream: StreamId, agent: AgentId, identifiers: Identifiers) {
        self.remove(stream);
        let backend = Backend {
            agent,
            identifiers,
            alive: true,
            draining: false,
        };
        self.set(stream, &backend, Some(true));
        self.streams.insert(stream, backend);
    }

    /// Removes a stream and no other, whatever they have in common.
    pub fn remove(&mut self, stream: StreamId) {
        if let Some(backend) = self.streams.remove(&stream) {
            self.set(stream, &backend, None);
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
        // Taken out for as long as the tables change.
        let Some(mut backend) = self.streams.remove(&stream) else {
            return;
        };
        if backend.alive != alive {
            backend.alive = alive;
            self.set(stream, &backend, Some(alive));
        }
        self.streams.insert(stream, backend);
    }

    /// Sets under all its keys whether a stream is alive; with nothing it is removed.
    fn set(&mut self, stream: StreamId, backend: &Backend, alive: Option<bool>) {
        let Backend {
            agent, identifiers, ..
        } = backend;
        self.by_agent.set(agent.clone(), stream, alive);
        if identifiers.default_route {
            self.by_route.set(agent.clone(), stream, alive);
        }
        for host in hosts(identifiers) {
            self.by_host.set(host, stream, alive);
        }
        for range in ranges(identifiers) {
            self.by_range.set(range, stream, alive);
        }
    }

    /// Returns how many agents, hosts or ranges a strategy knows of a stream that is alive for. Nothing is
    /// searched: this is asked whenever a stream comes, goes or falls silent.
    #[must_use]
    pub fn ready(&self, strategy: Strategy) -> usize {
        match strategy {
            Strategy::Default => self.by_agent.ready,
            Strategy::DefaultRoute => self.by_route.ready,
            Strategy::DestCidr => self.by_range.ready,
            Strategy::DestHost => self.by_host.ready,
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
        match strategy {
            Strategy::Default => self.newest(rotated(&self.by_agent, random), tried),
            Strategy::DefaultRoute => self.newest(rotated(&self.by_route, random), tried),
            Strategy::DestCidr => {
                let address = host.parse::<IpAddr>().ok()?.to_canonical();
                let ranges = self.by_range.slots.iter();
                let ranges = ranges.filter(|((_, range), _)| range.contains(&address));
                self.newest(ranges.map(|(_, slot)| slot), tried)
            }
            Strategy::DestHost => {
                let slot = self.by_host.slots.get(&canonical(host));
                self.newest(slot.into_iter(), tried)
            }
        }
    }

    /// Returns the newest stream of the first slot that has one to choose.
    fn newest<'s>(
        &self,
        slots: impl Iterator<Item = &'s Slot> + Clone,
        tried: &[StreamId],
    ) -> Option<StreamId> {
        // Newest first: of two streams of one agent the older is the likelier to be dead.
        let mut streams = slots.flat_map(|slot| slot.streams.keys().rev());
        let usable = |stream: &StreamId, draining| {
            let backend = self.streams.get(stream);
            backend.is_some_and(|known| known.alive && known.draining == draining)
                && !tried.contains(stream)
        };
        let mut all = streams.clone();
        all.find(|stream| usable(stream, false))
            .or_else(|| streams.find(|stream| usable(stream, true)))
            .copied()
    }
}

/// Streams under a key; no key is without any.
#[derive(Debug)]
struct Table<K> {
    slots: BTreeMap<K, Slot>,
    /// Slots in which a stream is alive.
    ready: usize,
}

#[derive(Debug, Default)]
struct Slot {
    /// Each with whether it is alive.
    streams: BTreeMap<StreamId, bool>,
    alive: usize,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            ready: 0,
        }
    }
}

impl<K: Clone + Ord> Table<K> {
    /// Sets whether a stream is alive, with nothing removes it; once under a key, however often it names it.
    fn set(&mut self, key: K, stream: StreamId, alive: Option<bool>) {
        let slot = self.slots.entry(key.clone()).or_default();
        self.ready -= usize::from(slot.alive > 0);
        let before = match alive {
            Some(alive) => slot.streams.insert(stream, alive),
            None => slot.streams.remove(&stream),
        };
        slot.alive += usize::from(alive == Some(true));
        slot.alive -= usize::from(before == Some(true));
        self.ready += usize::from(slot.alive > 0);
        if slot.streams.is_empty() {
            self.slots.remove(&key);
        }
    }
}

/// Returns all slots once, in order, from one on that `random` decides.
fn rotated<K>(table: &Table<K>, random: u64) -> impl Iterator<Item = &Slot> + Clone {
    let slots = &table.slots;
    // Scales 64 random bits to the number of slots; the bias is below 2^-40.
    let scaled = (u128::from(random) * slots.len() as u128) >> 64;
    let start = usize::try_from(scaled).unwrap_or_default();
    let values = slots.values();
    values.clone().skip(start).chain(values.take(start))
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
