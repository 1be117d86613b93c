//! One tenant as a server sees it: its agents' links, and how a dial finds its way to one of them.
//!
//! ```text
//!   dial ──▶ Backends::pick ──▶ link 1 ──no answer, lost──▶ link 2 ──▶ Tunnel
//!                └─ all were lost just now ─▶ wait for one to come again
//! ```
//!
//! Everything is looked up from here, so nothing of one tenant is in reach of another: neither
//! agents, nor ids, nor limits. Speaks to no socket; frontends and agents' connections do.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use knp_proto::{
    AgentId, Backends, Budget, DialId, DialRefused, DialTarget, EndReason, Identifiers, Strategy,
    StreamId, TenantId, dial_host,
};
use telemetry::lock;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::link::{self, DialError, LinkHandle, Tunnel};
use crate::metrics::{DialFailure, PeerPort, ServerMetrics, TenantMetrics};
use crate::registry::TenantSpec;

/// A tenant that is served.
pub(crate) struct Tenant {
    spec: ArcSwap<TenantSpec>,
    limits: Arc<knp_proto::Tenant>,
    metrics: TenantMetrics,
    agents: Mutex<Agents>,
    /// Told when an agent joins, or answers again.
    joined: Notify,
    /// Shared by the dials that wait for that.
    waiting: Arc<()>,
    /// Connections of API servers that were let in.
    frontends: AtomicU64,
    /// Shared by those that are open.
    open_frontends: Arc<()>,
    /// Shared by the gRPC streams on them, of which a connection may have many.
    open_streams: Arc<()>,
    /// Set once the tenant is no longer served.
    removed: watch::Sender<bool>,
    random: Random,
}

#[derive(Default)]
struct Agents {
    backends: Backends,
    links: BTreeMap<StreamId, Connected>,
    /// Until when an agent is expected to join, if there is none.
    expected: Option<Instant>,
}

impl Agents {
    /// Returns until when one is expected to join, or to answer again, where there is none that does.
    fn expected(&self) -> Option<Instant> {
        if self.backends.ready(Strategy::Default) > 0 {
            return None;
        }
        match self.links.is_empty() {
            true => self.expected,
            // Each is being asked: it answers, or its link is closed and the agent seeks the server anew.
            false => self.expected.max(Some(Instant::now() + RETURN)),
        }
    }
}

/// An agent, and its link.
#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) agent: AgentId,
    pub(crate) link: LinkHandle,
}

/// An agent's link, for as long as it can be dialed.
pub(crate) struct Joined {
    tenant: Arc<Tenant>,
    stream: StreamId,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.tenant.leave(self.stream);
    }
}

/// A tunnel, and who made it.
pub(crate) struct Dialed {
    pub(crate) tunnel: Tunnel,
    pub(crate) agent: AgentId,
}

/// Why there is no tunnel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TunnelError {
    /// The agent could not connect; its words.
    #[error("{error}")]
    Answered { error: String },
    #[error("Backend context error: the agent's stream has ended")]
    Lost,
    #[error("No agent available")]
    NoAgent,
    #[error("{0}")]
    Refused(DialRefused),
    #[error("Backend dial timeout: no answer within {limit:?}")]
    Timeout { limit: Duration },
}

impl TunnelError {
    /// Returns the label for logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Answered { .. } => "connect_failed",
            Self::Lost => "agent_lost",
            Self::NoAgent => "no_agent",
            Self::Refused(_) => "limit",
            Self::Timeout { .. } => "dial_timeout",
        }
    }
}

impl Tenant {
    /// Makes a tenant without agents. If it `expects` some, they are on their way: until [`FIRST_AGENT`] has
    /// passed dials wait for one.
    pub(crate) fn new(
        spec: Arc<TenantSpec>,
        budget: &Arc<Budget>,
        metrics: &Arc<ServerMetrics>,
        expects: bool,
    ) -> Arc<Self> {
        let agents = Agents {
            expected: expects.then(|| Instant::now() + FIRST_AGENT),
            ..Agents::default()
        };
        let limits = knp_proto::Tenant::new(spec.id.clone(), spec.limits, Arc::clone(budget));
        Arc::new(Self {
            metrics: metrics.tenant(&limits),
            limits,
            spec: ArcSwap::new(spec),
            agents: Mutex::new(agents),
            joined: Notify::new(),
            waiting: Arc::new(()),
            frontends: AtomicU64::new(0),
            open_frontends: Arc::new(()),
            open_streams: Arc::new(()),
            removed: watch::Sender::new(false),
            random: Random::default(),
        })
    }

    pub(crate) fn id(&self) -> &TenantId {
        self.limits.id()
    }

    /// Returns what is configured.
    pub(crate) fn spec(&self) -> Arc<TenantSpec> {
        self.spec.load_full()
    }

    /// Returns the limits, and how much of them is used.
    pub(crate) fn limits(&self) -> &Arc<knp_proto::Tenant> {
        &self.limits
    }

    pub(crate) fn metrics(&self) -> &TenantMetrics {
        &self.metrics
    }

    /// Counts a connection of an API server that is let in, for as long as what is returned lives; nothing
    /// when as many are open as the tenant may have tunnels and dials: it has no use for more, and other
    /// tenants need theirs.
    pub(crate) fn accept_frontend(&self, port: PeerPort) -> Option<Arc<()>> {
        let Some(open) = self.open(&self.open_frontends) else {
            self.metrics.server.peer_refused(port, "cluster_limit");
            return None;
        };
        self.frontends.fetch_add(1, Ordering::Relaxed);
        self.metrics.frontend_accepted(port);
        Some(open)
    }

    /// Counts a gRPC stream of an API server, as [`Tenant::accept_frontend`] does its connections.
    pub(crate) fn open_stream(&self) -> Option<Arc<()>> {
        self.open(&self.open_streams)
    }

    /// Takes one of as many as the tenant may have tunnels and dials.
    fn open(&self, all: &Arc<()>) -> Option<Arc<()>> {
        let limits = self.spec.load().limits;
        let open = Arc::clone(all);
        // One count is the tenant's own.
        let others = Arc::strong_count(&open) - 1;
        (others <= limits.tunnels.saturating_add(limits.pending_dials)).then_some(open)
    }

    /// Returns how many connections of API servers were let in.
    pub(crate) fn accepted_frontends(&self) -> u64 {
        self.frontends.load(Ordering::Relaxed)
    }

    /// Applies a changed configuration of the same identity; links and tunnels stay.
    pub(crate) fn reconfigure(&self, spec: Arc<TenantSpec>) {
        self.limits.set_limits(spec.limits);
        self.spec.store(spec);
        self.tell_ready(&lock(&self.agents));
    }

    /// Ends all that belongs to the tenant.
    pub(crate) fn remove(&self, why: &'static str) {
        self.removed.send_replace(true);
        self.close_links(why);
    }

    /// Waits until the tenant is no longer served. Cancel-safe.
    pub(crate) async fn removed(&self) {
        let mut removed = self.removed.subscribe();
        // The sender lives in `self`.
        drop(removed.wait_for(|removed| *removed).await);
    }

    // === Agents ===

    /// Adds an agent's link; it is dialed until what is returned is dropped. Nothing when the
    /// tenant was removed.
    pub(crate) fn join(
        self: &Arc<Self>,
        agent: AgentId,
        identifiers: Identifiers,
        link: LinkHandle,
    ) -> Option<Joined> {
        let mut agents = lock(&self.agents);
        // Looked at under the lock, so that `remove` finds the link, or the link finds it.
        if *self.removed.borrow() {
            return None;
        }
        let stream = link.stream();
        agents.backends.insert(stream, agent.clone(), identifiers);
        agents.links.insert(stream, Connected { agent, link });
        self.tell_ready(&agents);
        self.joined.notify_waiters();
        let tenant = Arc::clone(self);
        Some(Joined { tenant, stream })
    }

    /// Removes an agent's link; no other is touched.
    fn leave(&self, stream: StreamId) {
        let mut agents = lock(&self.agents);
        agents.backends.remove(stream);
        agents.links.remove(&stream);
        if agents.links.is_empty() {
            // The first agents of a new server may still be on their way.
            agents.expected = agents.expected.max(Some(Instant::now() + RETURN));
        }
        self.tell_ready(&agents);
    }

    /// Marks an agent as draining.
    pub(crate) fn set_draining(&self, stream: StreamId) {
        lock(&self.agents).backends.set_draining(stream);
    }

    /// Sets whether an agent can be expected to answer.
    pub(crate) fn set_alive(&self, stream: StreamId, alive: bool) {
        let mut agents = lock(&self.agents);
        agents.backends.set_alive(stream, alive);
        self.tell_ready(&agents);
        if alive {
            self.joined.notify_waiters();
        }
    }

    /// Ends every agent's stream, which ends the tunnels.
    pub(crate) fn close_links(&self, why: &'static str) {
        for connected in lock(&self.agents).links.values() {
            connected.link.close(why);
        }
    }

    /// Has every agent find another server while the tunnels go on.
    pub(crate) fn drain_links(&self) {
        for connected in lock(&self.agents).links.values() {
            connected.link.drain();
        }
    }

    /// Returns whether a strategy has an agent to choose.
    pub(crate) fn is_ready(&self) -> bool {
        self.any_is_ready(&self.spec.load().strategies)
    }

    /// Returns whether the first strategy has an agent to choose, which is all that upstream looks at.
    pub(crate) fn is_ready_by_first(&self) -> bool {
        let spec = self.spec.load();
        self.any_is_ready(spec.strategies.get(..1).unwrap_or_default())
    }

    fn any_is_ready(&self, strategies: &[Strategy]) -> bool {
        let agents = lock(&self.agents);
        let mut strategies = strategies.iter();
        strategies.any(|strategy| agents.backends.ready(*strategy) > 0)
    }

    /// Returns the agents that are connected.
    pub(crate) fn connected(&self) -> Vec<Connected> {
        lock(&self.agents).links.values().cloned().collect()
    }

    fn tell_ready(&self, agents: &Agents) {
        for (position, strategy) in self.spec.load().strategies.iter().enumerate() {
            let ready = agents.backends.ready(*strategy);
            self.metrics.ready_backends(*strategy, ready);
            if position == 0 {
                self.metrics.ready_connections(ready);
            }
        }
    }

    // === Dialing ===

    /// Asks an agent for a connection; if it does not answer, one more, and of those that are lost [`MAX_ASKED`]. While agents are expected
    /// ([`RETURN`], [`FIRST_AGENT`]) and no other is to be asked, waits until one joins or answers again. It takes `limit`
    /// at most. Dropping the future calls the dial off.
    pub(crate) async fn dial(
        &self,
        target: DialTarget,
        limit: Duration,
    ) -> Result<Dialed, TunnelError> {
        let pending = self.metrics.pending_dial();
        let result = self.dial_some(&target, limit).await;
        drop(pending);
        let failed = |failure| self.metrics.dial_failure(failure);
        match &result {
            Ok(_) => {}
            Err(TunnelError::Answered { .. }) => failed(DialFailure::ErrorResponse),
            Err(TunnelError::Lost) => failed(DialFailure::BackendClose),
            Err(TunnelError::NoAgent) => failed(DialFailure::NoAgent),
            Err(TunnelError::Refused(refused)) => self.metrics.dial_refused(*refused),
            Err(TunnelError::Timeout { .. }) => failed(DialFailure::BackendDialTimeout),
        }
        result
    }

    async fn dial_some(&self, target: &DialTarget, limit: Duration) -> Result<Dialed, TunnelError> {
        // Once, not with each attempt: those that wait for an agent, or lose one, all go out at once.
        if !self.limits.pass_rate(link::now()) {
            return Err(TunnelError::Refused(DialRefused::Rate));
        }
        let deadline = Instant::now() + limit;
        let mut tried = Vec::new();
        let mut unanswered = 0;
        let mut expected: Option<Instant> = None;
        let mut failure = TunnelError::NoAgent;
        loop {
            // From here on, so that no agent joins unseen between the look and the wait.
            let joined = self.joined.notified();
            let Some((connected, another)) = self.pick(&target.address, &tried) else {
                expected = expected.or_else(|| lock(&self.agents).expected());
                let until = expected.map(|until| deadline.min(until));
                if self.waits_for(joined, until).await {
                    continue;
                }
                return Err(failure);
            };
            tried.push(connected.link.stream());
            let left = deadline.saturating_duration_since(Instant::now());
            let patience = if another {
                left.mul_f64(FIRST_SHARE)
            } else {
                left
            };
            let Connected { agent, link } = connected;
            failure = match self.dial_one(&link, target, patience).await {
                Ok(tunnel) => return Ok(Dialed { tunnel, agent }),
                Err(TunnelError::Timeout { .. }) => {
                    unanswered += 1;
                    TunnelError::Timeout { limit }
                }
                Err(TunnelError::Lost) => {
                    expected = expected.or_else(|| Some(Instant::now() + RETURN));
                    TunnelError::Lost
                }
                Err(failure) => return Err(failure),
            };
            if unanswered == 2 || tried.len() == MAX_ASKED {
                return Err(failure);
            }
            if another {
                self.metrics.server.dials_retried.inc();
            }
        }
    }

    /// Waits, until a moment, for an agent to join or to answer again: what led to those that were lost, a gateway
    /// for instance, was replaced, and they are on their way. False when none came, when none is
    /// expected, and when as many wait already as may be under way.
    async fn waits_for(&self, joined: Notified<'_>, until: Option<Instant>) -> bool {
        let Some(until) = until.filter(|_| !*self.removed.borrow()) else {
            return false;
        };
        let _waiting = Arc::clone(&self.waiting);
        // One count is the tenant's own.
        if Arc::strong_count(&self.waiting) - 1 > self.spec.load().limits.pending_dials {
            return false;
        }
        tokio::select! {
            joined = timeout_at(until, joined) => joined.is_ok(),
            () = self.removed() => false,
        }
    }

    async fn dial_one(
        &self,
        link: &LinkHandle,
        target: &DialTarget,
        patience: Duration,
    ) -> Result<Tunnel, TunnelError> {
        let random = DialId::from_random(self.random.next());
        match link.dial(random, target.clone(), patience).await {
            Ok(tunnel) => Ok(tunnel),
            Err(DialError::Ended(EndReason::DialTimeout)) => {
                link.suspect();
                Err(TunnelError::Timeout { limit: patience })
            }
            Err(DialError::Ended(EndReason::DialFailed { error })) => {
                Err(TunnelError::Answered { error })
            }
            Err(DialError::Ended(EndReason::Violation(_))) => {
                let error = "the agent's answer makes no sense".to_owned();
                Err(TunnelError::Answered { error })
            }
            Err(DialError::Ended(_)) => Err(TunnelError::Lost),
            // Another number would have done, but of 2⁶³ none comes twice in a server's life.
            Err(DialError::Refused(DialRefused::DuplicateId | DialRefused::Ended)) => {
                Err(TunnelError::Lost)
            }
            Err(DialError::Refused(refused)) => Err(TunnelError::Refused(refused)),
        }
    }

    /// Chooses whom to ask: the first time with whether there is another, if that one should not
    /// answer.
    fn pick(&self, address: &str, tried: &[StreamId]) -> Option<(Connected, bool)> {
        let spec = self.spec.load();
        let (host, random) = (dial_host(address), self.random.next());
        let agents = lock(&self.agents);
        let choose =
            |tried: &[StreamId]| (agents.backends).pick(&spec.strategies, host, random, tried);
        let stream = choose(tried)?;
        let another = tried.is_empty() && choose(&[stream]).is_some();
        let connected = agents.links.get(&stream)?.clone();
        Some((connected, another))
    }
}

/// Numbers that cannot be guessed without the key, which is the kernel's: SipHash of a counter. A
/// system call for each would be felt.
#[derive(Debug, Default)]
struct Random {
    key: RandomState,
    drawn: AtomicU64,
}

impl Random {
    fn next(&self) -> u64 {
        self.key
            .hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }
}

/// How much of the time for a dial the first agent gets when there is a second: more than the 5 s
/// that an agent's own dial may take out of the 10 s that are usual.
const FIRST_SHARE: f64 = 0.6;

/// Agents that are asked at most: as many as a cluster usually has, all of which what led to them may have taken
/// along, and one that came again. A dial that ends each link it is sent on ends no more.
const MAX_ASKED: usize = 4;

/// How long dials wait for agents that were all lost, or fell silent, at once: an agent seeks a server that it lost after
/// a tenth of a second, and again at growing distance.
const RETURN: Duration = Duration::from_secs(5);

/// How long dials wait for the first agent of a tenant of a registry, or after the start of a server with a lease.
/// Agents connect within seconds of the lease; the rest is for the API server that takes it.
const FIRST_AGENT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
