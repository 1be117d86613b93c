//! Equal shares of a thread for the clusters that keep it busy.
//!
//! ```text
//!   piece of cluster a ──▶ within its quantum of this round? ── yes ──▶ moved at once
//!                                        └── no ──▶ waits ──▶ next round: everybody has had a turn
//! ```
//!
//! A round ends when the thread has come round to all who were ready, so a cluster with a thousand
//! busy tunnels gets no more octets through than one with a single tunnel, and alone it gets all.
//! Counts octets, knows no links, and has no say in what one cluster's tunnels get of each other;
//! that is the link's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use tokio::task::yield_now;

/// The shares of one thread. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    round: u64,
    shares: Vec<Entry>,
    free: Vec<usize>,
    /// Pieces that wait, of all clusters.
    waiting: usize,
    /// Whoever begins the rounds.
    rounds: Option<Waker>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The round in which `used` was counted.
    round: u64,
    used: usize,
    waiting: VecDeque<(Waker, Rc<Cell<bool>>)>,
}

/// One cluster's share. Clones are the same; the last one gives it back.
#[derive(Clone, Debug)]
pub(crate) struct Share(Rc<Slot>);

/// A share that lives for as long as somebody else has it.
#[derive(Debug)]
pub(crate) struct WeakShare(Weak<Slot>);

impl WeakShare {
    /// Returns the share, if somebody still has it.
    pub(crate) fn upgrade(&self) -> Option<Share> {
        self.0.upgrade().map(Share)
    }
}

#[derive(Debug)]
struct Slot {
    shares: Shares,
    index: usize,
}

impl Shares {
    /// Makes the share of one more cluster.
    pub(crate) fn share(&self) -> Share {
        let mut state = self.0.borrow_mut();
        let index = state.free.pop().unwrap_or(state.shares.len());
        if index == state.shares.len() {
            state.shares.push(Entry::default());
        }
        let shares = self.clone();
        Share(Rc::new(Slot { shares, index }))
    }

    /// Begins rounds for ever, whenever somebody waits for one. Spawn it once on the thread.
    pub(crate) async fn run(&self) {
        loop {
            poll_fn(|cx| self.poll_begin(cx)).await;
            // Comes back when all who were ready have run and sockets were looked at, so that
            // nobody misses a round for having waited for its socket.
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

impl Share {
    /// Returns a handle that does not keep the share.
    pub(crate) fn downgrade(&self) -> WeakShare {
        WeakShare(Rc::downgrade(&self.0))
    }

    /// Makes the place of one more who moves the cluster's octets.
    pub(crate) fn turn(&self) -> Turn {
        Turn {
            share: self.clone(),
            waits: Rc::default(),
        }
    }
}

/// One mover's place in its cluster's share.
#[derive(Debug)]
pub(crate) struct Turn {
    share: Share,
    /// It stands in the queue already.
    waits: Rc<Cell<bool>>,
}

impl Turn {
    /// Waits until the cluster has something left of this round. Who no longer wants to move need
    /// not say so.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
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

    /// Counts octets that were moved.
    pub(crate) fn charge(&self, octets: usize) {
        let Slot { shares, index } = &*self.share.0;
        let mut state = shares.0.borrow_mut();
        let round = state.round;
        if let Some(entry) = state.shares.get_mut(*index) {
            entry.used = entry.used_in(round) + octets;
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

/// Octets of a cluster in one round: enough that a round costs next to nothing beside them.
const QUANTUM: usize = 1 << 20;
/// Who is woken of a cluster in one round: enough pieces to use a quantum up.
const PER_ROUND: usize = 32;

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    const PIECE: usize = 64 << 10;

    /// Moves pieces for ever, as a relay that never lacks them does.
    async fn move_pieces(share: Share, moved: Rc<Cell<usize>>) {
        let turn = share.turn();
        loop {
            poll_fn(|cx| turn.poll(cx)).await;
            turn.charge(PIECE);
            moved.set(moved.get() + PIECE);
            yield_now().await;
        }
    }

    fn busy(shares: &Shares, tunnels: usize) -> Rc<Cell<usize>> {
        let (share, moved) = (shares.share(), Rc::new(Cell::new(0)));
        for _ in 0..tunnels {
            spawn_local(move_pieces(share.clone(), Rc::clone(&moved)));
        }
        moved
    }

    async fn run(shares: &Shares, rounds: u64) {
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
    fn many_tunnels_of_one_cluster_get_no_more_than_few_of_another() {
        thread(async {
            let shares = Shares::default();
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
    fn a_cluster_that_is_alone_is_never_left_waiting() {
        thread(async {
            let shares = Shares::default();
            let rounds = shares.clone();
            spawn_local(async move { rounds.run().await });
            let alone = busy(&shares, 3);
            run(&shares, 50).await;
            assert!(alone.get() >= 45 * QUANTUM, "{}", alone.get());
        });
    }

    #[test]
    fn a_share_given_back_takes_its_waiters_along() {
        let shares = Shares::default();
        let cx = Context::from_waker(Waker::noop());
        let turn = shares.share().turn();
        turn.charge(QUANTUM);
        assert!(turn.poll(&cx).is_pending());
        assert!(turn.poll(&cx).is_pending());
        assert_eq!(shares.0.borrow().waiting, 1, "one mover waits once");
        drop(turn);
        assert_eq!(shares.0.borrow().waiting, 0);
        let next = shares.share();
        assert_eq!(next.0.index, 0);
        assert!(next.turn().poll(&cx).is_ready());
    }
}
