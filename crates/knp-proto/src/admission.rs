//! What one tenant may have at a time, over all its streams: agents, dials, tunnels, bytes.
//!
//! ```text
//! dial ──▶ Tenant::pass_rate, admit_dial ──▶ Permit ── owned by the tunnel, gives all back in Drop
//! ```
//!
//! Counters are shared by threads and exact; nothing waits. What is refused is returned to the
//! caller and not counted here.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::budget::{Budget, Counter, Share};
use crate::config::STREAM_WINDOW;
use crate::credit::Headroom;
use crate::id::TenantId;

/// Bounds of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// Streams from agents.
    pub agents: usize,
    /// Bytes held for, and promised to, tunnels.
    pub buffered_bytes: usize,
    /// Dials begun per second, with as many at once; 0 for any number.
    pub dials_per_second: u32,
    /// Dials that wait for an answer.
    pub pending_dials: usize,
    /// Tunnels, those being dialed or closed included.
    pub tunnels: usize,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            agents: 1000,
            buffered_bytes: 64 << 20,
            dials_per_second: 200,
            pending_dials: 1000,
            tunnels: 10_000,
        }
    }
}

/// Why a dial was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialRefused {
    /// The id is taken by another dial of the stream: draw another.
    #[error("the dial's random number is in use")]
    DuplicateId,
    /// The stream has ended.
    #[error("the agent's stream has ended")]
    Ended,
    /// Too many dials wait for an answer.
    #[error("too many dials are pending")]
    PendingDials,
    /// Too many dials in this second.
    #[error("too many dials per second")]
    Rate,
    /// Too many tunnels.
    #[error("too many tunnels")]
    Tunnels,
}

/// A tenant's limits, and how much of them is used; shared by all streams of the tenant.
#[derive(Debug)]
pub struct Tenant {
    id: TenantId,
    agents: Counter,
    bytes: Share,
    pending: Counter,
    rate: Rate,
    tunnels: Counter,
}

impl Tenant {
    /// Makes a tenant without use yet, within `process`.
    #[must_use]
    pub fn new(id: TenantId, limits: TenantLimits, process: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self {
            id,
            agents: Counter::new(limits.agents),
            bytes: Share::new(process, limits.buffered_bytes),
            pending: Counter::new(limits.pending_dials),
            rate: Rate::new(limits.dials_per_second),
            tunnels: Counter::new(limits.tunnels),
        })
    }

    /// Changes the limits from now on. What is above stays until it ends by itself.
    pub fn set_limits(&self, limits: TenantLimits) {
        self.agents.set_limit(limits.agents);
        self.bytes.own.set_limit(limits.buffered_bytes);
        self.pending.set_limit(limits.pending_dials);
        self.rate.set(limits.dials_per_second);
        self.tunnels.set_limit(limits.tunnels);
    }

    /// Returns whose limits these are.
    #[must_use]
    pub fn id(&self) -> &TenantId {
        &self.id
    }

    /// Returns the number of agents' streams.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.agents.used()
    }

    /// Returns how many bytes are held or promised.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.own.used()
    }

    /// Returns the number of dials that wait for an answer.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        self.pending.used()
    }

    /// Returns the number of tunnels, those being dialed or closed included.
    #[must_use]
    pub fn tunnels(&self) -> usize {
        self.tunnels.used()
    }

    /// Returns how much of a stream's window is more than one tunnel can hold.
    pub(crate) fn unused_window(&self) -> usize {
        STREAM_WINDOW - (self.bytes.own.limit() / 4).clamp(FEW, STREAM_WINDOW)
    }

    /// Returns how much one that holds nothing may take.
    pub(crate) fn free(&self) -> usize {
        self.bytes.allowance(0)
    }

    /// Returns whether one that holds `own` bytes is refused more once this tenant has taken `more`.
    pub(crate) fn is_short(&self, own: usize, more: usize) -> bool {
        self.bytes.is_short(own, more)
    }

    /// Counts one agent's stream in; nothing when there are too many.
    pub(crate) fn admit_agent(self: &Arc<Self>) -> Option<AgentPermit> {
        self.agents.try_add().then(|| AgentPermit {
            tenant: Arc::clone(self),
        })
    }

    /// Counts a dial against the rate; false when there were too many in this second. To be asked once for
    /// each that arrives, before its first [`Link::dial`](crate::Link::dial): those that waited for an agent,
    /// or are tried with another, go out together.
    pub fn pass_rate(&self, now: Instant) -> bool {
        self.rate.try_pass(now)
    }

    /// Counts a dial in.
    pub(crate) fn admit_dial(self: &Arc<Self>) -> Result<Permit, DialRefused> {
        if !self.tunnels.try_add() {
            return Err(DialRefused::Tunnels);
        }
        let permit = Permit {
            bytes: Reserve::new(self),
            pending: self.pending.try_add(),
        };
        if !permit.pending {
            return Err(DialRefused::PendingDials);
        }
        Ok(permit)
    }
}

/// An agent's stream, counted.
#[derive(Debug)]
pub(crate) struct AgentPermit {
    tenant: Arc<Tenant>,
}

impl Drop for AgentPermit {
    fn drop(&mut self) {
        self.tenant.agents.sub(1);
    }
}

/// A tunnel, counted, and the bytes it is charged for.
#[derive(Debug)]
pub(crate) struct Permit {
    bytes: Reserve,
    pending: bool,
}

impl Permit {
    /// The dial has been answered.
    pub(crate) fn answered(&mut self) {
        if std::mem::take(&mut self.pending) {
            self.bytes.tenant.pending.sub(1);
        }
    }

    /// Charges the tunnel for `total` bytes; false, and no change, if it may not have more.
    pub(crate) fn try_charge(&mut self, total: usize) -> bool {
        let Reserve { tenant, charged } = &mut self.bytes;
        // Who holds little does not fall to those who hold much.
        let few = *charged < total && total <= FEW;
        if few && tenant.bytes.try_take_any(total - *charged) {
            *charged = total;
            return true;
        }
        self.bytes.try_set(total)
    }

    /// Charges the tunnel for `total` bytes, whatever is left.
    pub(crate) fn charge(&mut self, total: usize) {
        self.bytes.set(total);
    }

    /// Returns how many bytes more the tunnel may be charged for.
    pub(crate) fn allowance(&self) -> usize {
        self.bytes.tenant.bytes.allowance(self.bytes.charged)
    }

    /// Returns whether the tunnel's sender may be promised `more`.
    pub(crate) fn headroom(&self, more: usize) -> Headroom {
        self.bytes.tenant.bytes.headroom(self.bytes.charged, more)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.answered();
        self.bytes.tenant.tunnels.sub(1);
    }
}

/// Bytes that a tunnel may always hold while there are any: a request and its answer.
const FEW: usize = 64 << 10;

/// Bytes that a tenant is charged for until this is dropped, whether or not a tunnel holds them.
#[derive(Debug)]
pub struct Reserve {
    tenant: Arc<Tenant>,
    charged: usize,
}

impl Reserve {
    /// Charges nothing yet.
    #[must_use]
    pub fn new(tenant: &Arc<Tenant>) -> Self {
        Self {
            tenant: Arc::clone(tenant),
            charged: 0,
        }
    }

    /// Charges for `total` bytes; false, and no change, when the tenant may not have more.
    pub fn try_set(&mut self, total: usize) -> bool {
        let bytes = &self.tenant.bytes;
        if total <= self.charged {
            self.set(total);
        } else if bytes.try_take(self.charged, total - self.charged) {
            self.charged = total;
        }
        self.charged == total
    }

    fn set(&mut self, total: usize) {
        if total > self.charged {
            self.tenant.bytes.take(total - self.charged);
        } else if total < self.charged {
            self.tenant.bytes.give_back(self.charged - total);
        }
        self.charged = total;
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A token bucket that holds a second's worth, kept as the time at which it is full again.
#[derive(Debug)]
struct Rate {
    per_second: AtomicU32,
    full_at: Mutex<Option<Instant>>,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        Self {
            per_second: AtomicU32::new(per_second),
            full_at: Mutex::new(None),
        }
    }

    fn set(&self, per_second: u32) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    fn try_pass(&self, now: Instant) -> bool {
        let Some(token) = SECOND.checked_div(self.per_second.load(Ordering::Relaxed)) else {
            return true;
        };
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let next = full_at.map_or(now, |full_at| full_at.max(now)) + token;
        let pass = next.saturating_duration_since(now) <= SECOND;
        if pass {
            *full_at = Some(next);
        }
        pass
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::tests::start;

    fn tenant(limit: impl FnOnce(&mut TenantLimits)) -> Arc<Tenant> {
        let mut limits = TenantLimits::default();
        limit(&mut limits);
        Tenant::new(TenantId::new("a"), limits, Budget::new(1 << 30))
    }

    #[test]
    fn a_permit_gives_back_what_it_took() {
        let tenant = tenant(|_| {});
        let mut permit = tenant.admit_dial().unwrap();
        assert!(permit.try_charge(500));
        assert_eq!((tenant.tunnels(), tenant.pending_dials()), (1, 1));
        assert_eq!(tenant.buffered_bytes(), 500);
        permit.answered();
        assert_eq!((tenant.tunnels(), tenant.pending_dials()), (1, 0));
        drop(permit);
        assert_eq!((tenant.tunnels(), tenant.pending_dials()), (0, 0));
        assert_eq!(tenant.buffered_bytes(), 0);
    }

    #[test]
    fn each_limit_refuses_and_keeps_nothing() {
        let tenant = tenant(|limits| (limits.pending_dials, limits.tunnels) = (1, 2));
        let dial = || tenant.admit_dial();
        let mut first = dial().unwrap();
        assert_eq!(dial().err(), Some(DialRefused::PendingDials));
        first.answered();
        let second = dial().unwrap();
        assert_eq!(dial().err(), Some(DialRefused::Tunnels));
        drop((first, second));
        assert_eq!((tenant.tunnels(), tenant.pending_dials()), (0, 0));
    }

    #[test]
    fn dials_pass_at_the_rate_after_a_burst() {
        let (tenant, start) = (tenant(|limits| limits.dials_per_second = 10), start());
        for (milliseconds, expected) in [(0, 10), (250, 2), (60_250, 10)] {
            let now = start + Duration::from_millis(milliseconds);
            let passed = (0..50).filter(|_| tenant.pass_rate(now));
            assert_eq!(passed.count(), expected);
        }
    }

    #[test]
    fn a_stream_is_counted_while_it_lives() {
        let tenant = tenant(|limits| limits.agents = 1);
        let permit = tenant.admit_agent();
        assert!(permit.is_some() && tenant.admit_agent().is_none());
        drop(permit);
        assert_eq!(tenant.agents(), 0);
    }
}
