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
use std::collections::{BTreeMap, BTreeSet};
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

/// Streams under a key; no key is without any.
type Slots<K> = BTreeMap<K, BTreeSet<StreamId>>;

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
    /// Adds a stream, alive. Addresses are compared as addresses and names without regard to
    /// letter case; ranges that are none are left out.
    pub fn insert(&mut self, stream: StreamId, agent: AgentId, identifiers: Identifiers) {
        self.remove(stream);
        add(&mut self.by_agent, agent.clone(), stream);
        if identifiers.default_route {
            add(&mut self.by_route, agent.clone(), stream);
        }
        for host in hosts(&identifiers) {
            add(&mut self.by_host, host, stream);
        }
        for range in ranges(&identifiers) {
            add(&mut self.by_range, range, stream);
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
        take(&mut self.by_agent, &backend.agent, stream);
        take(&mut self.by_route, &backend.agent, stream);
        for host in hosts(&backend.identifiers) {
            take(&mut self.by_host, &host, stream);
        }
        for range in ranges(&backend.identifiers) {
            take(&mut self.by_range, &range, stream);
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

    /// Returns how many agents, hosts or ranges a strategy knows of a stream that is alive for.
    #[must_use]
    pub fn ready(&self, strategy: Strategy) -> usize {
        let alive = |stream: &StreamId| self.streams.get(stream).is_some_and(|known| known.alive);
        let ready = |streams: &&BTreeSet<StreamId>| streams.iter().any(alive);
        match strategy {
            Strategy::Default => self.by_agent.values().filter(ready).count(),
            Strategy::DefaultRoute => self.by_route.values().filter(ready).count(),
            Strategy::DestCidr => self.by_range.values().filter(ready).count(),
            Strategy::DestHost => self.by_host.values().filter(ready).count(),
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
                let ranges = self.by_range.iter();
                let ranges = ranges.filter(|((_, range), _)| range.contains(&address));
                self.newest(ranges.map(|(_, streams)| streams), tried)
            }
            Strategy::DestHost => {
                self.newest(self.by_host.get(&canonical(host)).into_iter(), tried)
            }
        }
    }

    /// Returns the newest stream of the first slot that has one to choose.
    fn newest<'s>(
        &self,
        slots: impl Iterator<Item = &'s BTreeSet<StreamId>> + Clone,
        tried: &[StreamId],
    ) -> Option<StreamId> {
        // Newest first: of two streams of one agent the older is the likelier to be dead.
        let mut streams = slots.flat_map(|streams| streams.iter().rev());
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

/// Adds a stream; once under a key, however often it names it.
fn add<K: Ord>(slots: &mut Slots<K>, key: K, stream: StreamId) {
    slots.entry(key).or_default().insert(stream);
}

fn take<K: Ord>(slots: &mut Slots<K>, key: &K, stream: StreamId) {
    if let Some(streams) = slots.get_mut(key) {
        streams.remove(&stream);
        if streams.is_empty() {
            slots.remove(key);
        }
    }
}

/// Returns all slots once, in order, from one on that `random` decides.
fn rotated<K>(slots: &Slots<K>, random: u64) -> impl Iterator<Item = &BTreeSet<StreamId>> + Clone {
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
