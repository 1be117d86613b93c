//! When to connect next, in search of all servers behind one address.
//!
//! ```text
//!   connected(id, count), failed, lost, drains, leases ──▶ Connector ──▶ due(): when, or not at all
//! ```
//!
//! A load balancer leads each attempt to a server of its choice. One that is known already is left
//! again. While servers are missing attempts follow each other within a fifth of the interval, and grow
//! rarer when nothing new is found: a load balancer that always leads to the same server is not flooded.
//! A server that was lost is sought at once, and another than one that drains.
//!
//! Has no clock, no randomness and no sockets: they are its caller's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::config::{ConnectParams, CountSource};

/// Servers that are believed to exist at most.
const MAX_SERVERS: u32 = 1000;

/// Attempts per server, in quick succession, that may lead to known ones before attempts grow rarer.
/// Of up to five servers chosen at random that finds the last one in 99 of 100 searches.
const PATIENCE: u32 = 5;

/// Servers for which there are that many attempts, at most.
const MAX_SOUGHT: u32 = 5;

/// Part of the interval between them, more or less by half, so that agents do not keep step: API servers wait
/// for an agent of a new server.
const QUICK: u32 = 5;

/// Connections in a row that may end soon after they were made and still be sought at once; a
/// server that takes connections and drops them is not helped by more.
const LENIENCE: u32 = 3;

/// How much of the interval passes before the first attempt after a success or a loss.
const SOON: u32 = 10;

/// What to do with a connection that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Leads to a server that is connected already: close it.
    Duplicate,
    /// Leads to a new one.
    Keep,
}

/// Decides when to connect.
#[derive(Debug)]
pub(crate) struct Connector {
    params: ConnectParams,
    /// Servers that are connected, and since when.
    known: BTreeMap<String, Instant>,
    /// Those of them that are about to end.
    draining_servers: BTreeSet<String>,
    /// Connections in a row that were lost soon.
    short_lived: u32,
    /// The count in the last answer of a server.
    told: u32,
    leases: Option<u32>,
    /// Attempts in a row that led to known servers.
    duplicates: u32,
    pause: Duration,
    next: Instant,
    draining: bool,
}

impl Connector {
    /// Begins at `now`, with an attempt that is due.
    pub(crate) fn new(params: ConnectParams, now: Instant) -> Self {
        Self {
            params,
            known: BTreeMap::new(),
            draining_servers: BTreeSet::new(),
            short_lived: 0,
            told: 1,
            leases: None,
            duplicates: 0,
            pause: params.interval,
            next: now,
            draining: false,
        }
    }

    /// Returns when the next attempt is due; nothing when none is until something changes.
    pub(crate) fn due(&self) -> Option<Instant> {
        let sought = self.params.forever || self.is_missing();
        (sought && !self.draining).then_some(self.next)
    }

    /// Returns how many servers there are thought to be, at least 1.
    pub(crate) fn servers(&self) -> u32 {
        let told = self.told;
        let count = match (self.leases, self.params.source) {
            (Some(leases), CountSource::Default) => leases,
            (Some(leases), CountSource::Max) => leases.max(told),
            (None, _) => told,
        };
        count.clamp(1, MAX_SERVERS)
    }

    /// Records a connection to `server`, which counts `count` servers. `random` spreads
    /// the next attempt.
    pub(crate) fn connected(
        &mut self,
        now: Instant,
        random: u64,
        server: &str,
        count: u32,
    ) -> Verdict {
        self.told = count;
        if !self.known.contains_key(server) {
            self.known.insert(server.to_owned(), now);
            if self.short_lived <= LENIENCE {
                // Whatever failed before is over.
                self.pause = self.params.interval;
                self.duplicates = 0;
            }
            self.look_soon(now, random);
            return Verdict::Keep;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        let patience = self.servers().min(MAX_SOUGHT) * PATIENCE;
        let quick = self.short_lived <= LENIENCE && self.duplicates <= patience;
        if self.is_missing() && quick {
            self.pause = self.params.interval;
            self.next = now + spread(self.pause / QUICK, random);
        } else {
            self.pause = self.pause.max(self.params.interval);
            self.back_off(now, random);
        }
        Verdict::Duplicate
    }

    /// Records a failed attempt.
    pub(crate) fn failed(&mut self, now: Instant, random: u64) {
        self.back_off(now, random);
    }

    /// Records the end of the connection to `server`.
    pub(crate) fn lost(&mut self, now: Instant, random: u64, server: &str) {
        let Some(since) = self.known.remove(server) else {
            return;
        };
        self.draining_servers.remove(server);
        if now.saturating_duration_since(since) >= self.params.interval_cap {
            self.short_lived = 0;
        } else {
            self.short_lived = self.short_lived.saturating_add(1);
        }
        if self.short_lived <= LENIENCE {
            self.hurry(now, random);
        } else {
            self.back_off(now, random);
        }
    }

    /// Records that `server` is about to end: another one is sought while its connection goes on.
    pub(crate) fn server_drains(&mut self, now: Instant, random: u64, server: &str) {
        if self.known.contains_key(server) && self.draining_servers.insert(server.to_owned()) {
            self.hurry(now, random);
        }
    }

    /// Applies the number of leases.
    pub(crate) fn counted(&mut self, now: Instant, random: u64, leases: Option<u32>) {
        let before = self.servers();
        self.leases = leases;
        if self.servers() > before {
            self.hurry(now, random);
        }
    }

    /// Stops connecting.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    fn is_missing(&self) -> bool {
        let staying = self.known.len() - self.draining_servers.len();
        staying < usize::try_from(self.servers()).unwrap_or(usize::MAX)
    }

    /// Has the next attempt follow soon, and those after it at growing distance.
    fn hurry(&mut self, now: Instant, random: u64) {
        self.pause = self.params.interval / SOON;
        self.duplicates = 0;
        self.look_soon(now, random);
    }

    fn look_soon(&mut self, now: Instant, random: u64) {
        // With nothing missing there is no hurry.
        let soon = if self.is_missing() { SOON } else { 1 };
        self.next = now + jittered(self.params.interval / soon, random);
    }

    fn back_off(&mut self, now: Instant, random: u64) {
        self.next = now + jittered(self.pause, random);
        let grown = if self.pause < self.params.interval {
            self.pause * 2
        } else {
            self.pause * 3 / 2
        };
        self.pause = grown.min(self.params.interval_cap);
    }
}

/// Half of it to one and a half.
fn spread(pause: Duration, random: u64) -> Duration {
    let thousandths = u32::try_from(random % 1000).unwrap_or(0);
    pause / 2 + pause * thousandths / 1000
}

/// Adds up to a tenth, so that agents which lost one server do not come back as one.
fn jittered(pause: Duration, random: u64) -> Duration {
    let thousandths = u32::try_from(random % 1000).unwrap_or(0);
    pause + pause / 10 * thousandths / 1000
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
