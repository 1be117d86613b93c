//! Equal shares of a thread for the tenants that keep it busy.
//!
//! ```text
//!   chunk of tenant a ──▶ within its quantum of this round? ── yes ──▶ moved at once
//!                                        └── no ──▶ waits ──▶ next round: every tenant was served
//! ```
//!
//! A round ends when the thread has run all tasks that were ready, so a tenant with a thousand
//! busy tunnels gets no more bytes through than one with a single tunnel, and alone it gets all.
//! Counts bytes, knows no links, and has no say in what one tenant's tunnels get of each other;
//! that is the link's.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use knp_proto::TenantId;
use tokio::task::yield_now;

/// The shares of one thread. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairScheduler(Rc<State>);

#[derive(Debug, Default)]
struct State {
    round: Cell<u64>,
    tenants: RefCell<BTreeMap<TenantId, Weak<TenantShare>>>,
    /// Flows that wait, of all tenants.
    waiting: Cell<usize>,
    /// The task that begins rounds.
    rounds: RefCell<Option<Waker>>,
}

/// One tenant's share.
#[derive(Debug)]
pub(crate) struct TenantShare {
    scheduler: FairScheduler,
    /// The round in which `used` was counted.
    round: Cell<u64>,
    used: Cell<usize>,
    waiting: RefCell<VecDeque<(Waker, Rc<Cell<bool>>)>>,
}

impl FairScheduler {
    /// Returns what the flows of `tenant` have together.
    pub(crate) fn share(&self, tenant: &TenantId) -> Rc<TenantShare> {
        let mut tenants = self.0.tenants.borrow_mut();
        if let Some(share) = tenants.get(tenant).and_then(Weak::upgrade) {
            return share;
        }
        tenants.retain(|_, share| share.strong_count() > 0);
        let share = Rc::new(TenantShare {
            scheduler: self.clone(),
            round: Cell::default(),
            used: Cell::default(),
            waiting: RefCell::default(),
        });
        tenants.insert(tenant.clone(), Rc::downgrade(&share));
        share
    }

    /// Begins rounds for ever, whenever a flow waits for one. Spawn it once on the thread.
    pub(crate) async fn run(&self) {
        loop {
            poll_fn(|cx| self.poll_begin(cx)).await;
            // Comes back when all who were ready have run and sockets were looked at, so that
            // no flow misses a round for having waited for its socket.
            yield_now().await;
        }
    }

    fn poll_begin(&self, cx: &Context<'_>) -> Poll<()> {
        let state = &*self.0;
        if state.waiting.get() == 0 {
            *state.rounds.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.round.update(|round| round + 1);
        for share in state.tenants.borrow().values().filter_map(Weak::upgrade) {
            let mut waiting = share.waiting.borrow_mut();
            let woken = waiting.len().min(PER_ROUND);
            state.waiting.update(|waiting| waiting - woken);
            for (waker, waits) in waiting.drain(..woken) {
                waits.set(false);
                waker.wake();
            }
        }
        Poll::Ready(())
    }
}

impl TenantShare {
    /// Returns what was used in this round, and of earlier ones beyond what they had.
    fn used(&self) -> usize {
        let round = self.scheduler.0.round.get();
        let passed = usize::try_from(round - self.round.replace(round)).unwrap_or(usize::MAX);
        let used = self.used.get();
        self.used
            .set(used.saturating_sub(QUANTUM.saturating_mul(passed)));
        self.used.get()
    }
}

impl Drop for TenantShare {
    fn drop(&mut self) {
        let gone = self.waiting.get_mut().len();
        self.scheduler.0.waiting.update(|waiting| waiting - gone);
    }
}

/// The bytes of one tunnel, or of one agent's connection, within its tenant's share; without one,
/// they never wait.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    share: OnceCell<Rc<TenantShare>>,
    /// It is queued already.
    waits: Rc<Cell<bool>>,
}

impl Flow {
    /// Makes one more flow of the tenant's bytes.
    pub(crate) fn new(share: Option<Rc<TenantShare>>) -> Self {
        let flow = Self::default();
        share.into_iter().for_each(|share| flow.join(share));
        flow
    }

    /// Counts within `share` from now on, unless it does within another one.
    pub(crate) fn join(&self, share: Rc<TenantShare>) {
        let _ = self.share.set(share);
    }

    /// Waits until the tenant has something left of this round. A flow may stop waiting
    /// at any time.
    pub(crate) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let Some(share) = self.share.get().filter(|own| own.used() >= QUANTUM) else {
            return Poll::Ready(());
        };
        let state = &*share.scheduler.0;
        if !self.waits.replace(true) {
            let waiting = (cx.waker().clone(), Rc::clone(&self.waits));
            share.waiting.borrow_mut().push_back(waiting);
            state.waiting.update(|waiting| waiting + 1);
        }
        if let Some(rounds) = state.rounds.take() {
            rounds.wake();
        }
        Poll::Pending
    }

    /// Counts bytes that were moved.
    pub(crate) fn charge(&self, bytes: usize) {
        if let Some(share) = self.share.get() {
            share.used.set(share.used() + bytes);
        }
    }
}

/// Bytes of a tenant in one round: enough that a round costs next to nothing beside them.
const QUANTUM: usize = 1 << 20;
/// Flows of a tenant woken in one round: enough to use a quantum up.
const PER_ROUND: usize = 32;

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    const CHUNK: usize = 64 << 10;

    /// Moves chunks for ever, as a relay that never lacks them does.
    async fn move_chunks(share: Rc<TenantShare>, moved: Rc<Cell<usize>>) {
        let flow = Flow::new(Some(share));
        loop {
            poll_fn(|cx| flow.poll_ready(cx)).await;
            flow.charge(CHUNK);
            moved.set(moved.get() + CHUNK);
            yield_now().await;
        }
    }

    /// Returns how much tenants with so many busy tunnels move in a number of rounds.
    fn moved<const N: usize>(rounds: u64, tunnels: [usize; N]) -> [usize; N] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            let shares = FairScheduler::default();
            let scheduler = shares.clone();
            spawn_local(async move { scheduler.run().await });
            let mut tenants = ["a", "b"].into_iter();
            let moved = tunnels.map(|tunnels| {
                let share = shares.share(&TenantId::new(tenants.next().unwrap()));
                let moved = Rc::new(Cell::new(0));
                for _ in 0..tunnels {
                    spawn_local(move_chunks(Rc::clone(&share), Rc::clone(&moved)));
                }
                moved
            });
            while shares.0.round.get() < rounds {
                yield_now().await;
            }
            moved.map(|moved| moved.get())
        })
    }

    #[test]
    fn tenants_share_equally_whatever_their_tunnels() {
        let [many, some] = moved(100, [400, 20]);
        assert!(many > 50 * QUANTUM, "{many}");
        assert!(
            many < some * 5 / 4 && some < many * 5 / 4,
            "{many} and {some}"
        );
    }

    #[test]
    fn a_tenant_that_is_alone_is_never_left_waiting() {
        let [alone] = moved(50, [3]);
        assert!(alone >= 45 * QUANTUM, "{alone}");
    }

    #[test]
    fn a_share_given_back_takes_its_waiters_along() {
        let (shares, tenant) = (FairScheduler::default(), TenantId::new("a"));
        let cx = Context::from_waker(Waker::noop());
        let flow = Flow::new(Some(shares.share(&tenant)));
        flow.charge(QUANTUM);
        assert!(flow.poll_ready(&cx).is_pending());
        assert!(flow.poll_ready(&cx).is_pending());
        assert_eq!(shares.0.waiting.get(), 1, "one flow waits once");
        let other = Flow::new(Some(shares.share(&tenant)));
        assert!(other.poll_ready(&cx).is_pending(), "it is the same share");
        drop((flow, other));
        assert_eq!(shares.0.waiting.get(), 0);
        let next = Flow::new(Some(shares.share(&tenant)));
        assert_eq!(shares.0.tenants.borrow().len(), 1);
        assert!(next.poll_ready(&cx).is_ready());
        // Where a tenant has the thread for itself, it never waits.
        let alone = Flow::new(None);
        alone.charge(QUANTUM);
        assert!(alone.poll_ready(&cx).is_ready());
    }
}
