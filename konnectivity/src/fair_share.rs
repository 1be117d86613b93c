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

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use tokio::task::yield_now;

/// The shares of one thread. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairScheduler(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    round: u64,
    shares: Vec<Entry>,
    free: Vec<usize>,
    /// Flows that wait, of all tenants.
    waiting: usize,
    /// The task that begins rounds.
    rounds: Option<Waker>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The round in which `used` was counted.
    round: u64,
    used: usize,
    waiting: VecDeque<(Waker, Rc<Cell<bool>>)>,
}

/// One tenant's share. Clones are the same; the last one gives it back.
#[derive(Clone, Debug)]
pub(crate) struct TenantShare(Rc<Slot>);

/// A share that lives as long as another handle.
#[derive(Debug)]
pub(crate) struct WeakTenantShare(Weak<Slot>);

impl WeakTenantShare {
    /// Returns the share, if another handle still lives.
    pub(crate) fn upgrade(&self) -> Option<TenantShare> {
        self.0.upgrade().map(TenantShare)
    }
}

#[derive(Debug)]
struct Slot {
    shares: FairScheduler,
    index: usize,
}

impl FairScheduler {
    /// Makes the share of one more tenant.
    pub(crate) fn share(&self) -> TenantShare {
        let mut state = self.0.borrow_mut();
        let index = state.free.pop().unwrap_or(state.shares.len());
        if index == state.shares.len() {
            state.shares.push(Entry::default());
        }
        let shares = self.clone();
        TenantShare(Rc::new(Slot { shares, index }))
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
        let mut state = self.0.borrow_mut();
        if state.waiting == 0 {
            state.rounds = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.begin_round();
        Poll::Ready(())
    }
}

impl State {
    fn begin_round(&mut self) {
        self.round += 1;
        for entry in &mut self.shares {
            let woken = entry.waiting.len().min(PER_ROUND);
            self.waiting -= woken;
            for (waker, waits) in entry.waiting.drain(..woken) {
                waits.set(false);
                waker.wake();
            }
        }
    }
}

impl TenantShare {
    /// Returns a handle that does not keep the share.
    pub(crate) fn downgrade(&self) -> WeakTenantShare {
        WeakTenantShare(Rc::downgrade(&self.0))
    }

    /// Makes one more flow of the tenant's bytes.
    pub(crate) fn flow(&self) -> Flow {
        Flow {
            share: self.clone(),
            waits: Rc::default(),
        }
    }
}

/// One tunnel's bytes within its tenant's share.
#[derive(Debug)]
pub(crate) struct Flow {
    share: TenantShare,
    /// It is queued already.
    waits: Rc<Cell<bool>>,
}

impl Flow {
    /// Waits until the tenant has something left of this round. A flow may stop waiting
    /// at any time.
    pub(crate) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let Slot { shares, index } = &*self.share.0;
        let mut state = shares.0.borrow_mut();
        let state = &mut *state;
        let Some(entry) = state.shares.get_mut(*index) else {
            return Poll::Ready(());
        };
        if entry.used_in(state.round) < QUANTUM {
            return Poll::Ready(());
        }
        if !self.waits.replace(true) {
            let waker = cx.waker().clone();
            entry.waiting.push_back((waker, Rc::clone(&self.waits)));
            state.waiting += 1;
        }
        if let Some(rounds) = state.rounds.take() {
            rounds.wake();
        }
        Poll::Pending
    }

    /// Counts bytes that were moved.
    pub(crate) fn charge(&self, bytes: usize) {
        let Slot { shares, index } = &*self.share.0;
        let mut state = shares.0.borrow_mut();
        let round = state.round;
        if let Some(entry) = state.shares.get_mut(*index) {
            entry.used = entry.used_in(round) + bytes;
        }
    }
}

impl Entry {
    /// Returns what was used in this round, which is now the entry's.
    fn used_in(&mut self, round: u64) -> usize {
        if self.round != round {
            self.round = round;
            self.used = 0;
        }
        self.used
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.shares.0.borrow_mut();
        let state = &mut *state;
        if let Some(entry) = state.shares.get_mut(self.index) {
            state.waiting -= entry.waiting.len();
            *entry = Entry::default();
            state.free.push(self.index);
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
    async fn move_chunks(share: TenantShare, moved: Rc<Cell<usize>>) {
        let flow = share.flow();
        loop {
            poll_fn(|cx| flow.poll_ready(cx)).await;
            flow.charge(CHUNK);
            moved.set(moved.get() + CHUNK);
            yield_now().await;
        }
    }

    fn busy(shares: &FairScheduler, tunnels: usize) -> Rc<Cell<usize>> {
        let (share, moved) = (shares.share(), Rc::new(Cell::new(0)));
        for _ in 0..tunnels {
            spawn_local(move_chunks(share.clone(), Rc::clone(&moved)));
        }
        moved
    }

    async fn run(shares: &FairScheduler, rounds: u64) {
        while shares.0.borrow().round < rounds {
            yield_now().await;
        }
    }

    fn thread(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn many_tunnels_of_one_tenant_get_no_more_than_few_of_another() {
        thread(async {
            let shares = FairScheduler::default();
            let rounds = shares.clone();
            spawn_local(async move { rounds.run().await });
            let many = busy(&shares, 400);
            let some = busy(&shares, 20);
            run(&shares, 100).await;
            let (many, some) = (many.get(), some.get());
            assert!(many > 50 * QUANTUM, "{many}");
            assert!(
                many < some * 5 / 4 && some < many * 5 / 4,
                "{many} and {some}"
            );
        });
    }

    #[test]
    fn a_tenant_that_is_alone_is_never_left_waiting() {
        thread(async {
            let shares = FairScheduler::default();
            let rounds = shares.clone();
            spawn_local(async move { rounds.run().await });
            let alone = busy(&shares, 3);
            run(&shares, 50).await;
            assert!(alone.get() >= 45 * QUANTUM, "{}", alone.get());
        });
    }

    #[test]
    fn a_share_given_back_takes_its_waiters_along() {
        let shares = FairScheduler::default();
        let cx = Context::from_waker(Waker::noop());
        let flow = shares.share().flow();
        flow.charge(QUANTUM);
        assert!(flow.poll_ready(&cx).is_pending());
        assert!(flow.poll_ready(&cx).is_pending());
        assert_eq!(shares.0.borrow().waiting, 1, "one flow waits once");
        drop(flow);
        assert_eq!(shares.0.borrow().waiting, 0);
        let next = shares.share();
        assert_eq!(next.0.index, 0);
        assert!(next.flow().poll_ready(&cx).is_ready());
    }
}
