//! Which tunnel sends next: deficit round robin over bytes.
//!
//! ```text
//! ring:  tunnel 7 ─▶ tunnel 2 ─▶ tunnel 9 ─▶ …      each visit adds a quantum of bytes,
//!           ▲ sends now                              what is left of it waits for the next
//! ```
//!
//! After M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round Robin" (1996):
//! a tunnel with much to send gets no more than a quantum while another waits, at a constant cost
//! per packet. Knows tunnels by number only, and nothing of what they send.

use std::collections::VecDeque;

/// A ring of those that have something to send.
#[derive(Debug)]
pub(crate) struct FairQueue {
    ring: VecDeque<u32>,
    flows: Vec<Flow>,
    quantum: usize,
}

/// Permission to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The flow that may send.
    pub(crate) flow: u32,
    /// At most how many bytes, never 0.
    pub(crate) allowance: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// It has a place in the ring.
    placed: bool,
    /// It has something to send; if not, its place is skipped and lost.
    active: bool,
    /// It was given its quantum since it came to the front.
    charged: bool,
    deficit: usize,
}

impl FairQueue {
    /// Makes an empty ring whose flows get `quantum` bytes, at least 1.
    pub(crate) fn new(quantum: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            flows: Vec::new(),
            quantum: quantum.max(1),
        }
    }

    /// Marks `flow` as having something to send; it queues up unless it already does. Flows are
    /// small numbers: there is memory for each up to the highest.
    pub(crate) fn activate(&mut self, flow: u32) {
        let index = flow as usize;
        if self.flows.len() <= index {
            self.flows.resize(index + 1, Flow::default());
        }
        let Some(state) = self.flows.get_mut(index) else {
            return;
        };
        state.active = true;
        // One that still has its place goes on with what is left of its quantum; a new one for each
        // time it comes back would keep it in front for good.
        if !std::mem::replace(&mut state.placed, true) {
            self.ring.push_back(flow);
        }
    }

    /// Marks `flow` as having nothing to send.
    pub(crate) fn deactivate(&mut self, flow: u32) {
        if let Some(state) = self.flows.get_mut(flow as usize) {
            state.active = false;
        }
    }

    /// Returns whether the ring is empty; if not, [`FairQueue::next_flow`] may still return none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns the flow that may send now: the same one until [`FairQueue::spend`] is called.
    pub(crate) fn next_flow(&mut self) -> Option<Grant> {
        loop {
            let &flow = self.ring.front()?;
            let state = self.flows.get_mut(flow as usize)?;
            if !state.active {
                *state = Flow::default();
                self.ring.pop_front();
                continue;
            }
            if !state.charged {
                state.charged = true;
                state.deficit += self.quantum;
            }
            let allowance = state.deficit;
            return Some(Grant { flow, allowance });
        }
    }

    /// Charges `len` bytes to the flow in front. A packet without payload costs something
    /// too.
    pub(crate) fn spend(&mut self, len: usize) {
        let Some(&flow) = self.ring.front() else {
            return;
        };
        let Some(state) = self.flows.get_mut(flow as usize) else {
            return;
        };
        state.deficit = state.deficit.saturating_sub(len.max(MIN_COST));
        // What is left would only make for a tiny packet; it counts next time.
        if state.deficit < self.quantum.div_ceil(4) {
            state.charged = false;
            self.ring.rotate_left(1);
        }
    }
}

/// Bytes a packet costs at least: about what its heads take on the wire.
const MIN_COST: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUANTUM: usize = 1000;

    #[test]
    fn a_busy_flow_lets_others_in_after_a_quantum() {
        let mut fair = FairQueue::new(QUANTUM);
        fair.activate(0);
        let grant = fair.next_flow().unwrap();
        fair.activate(1);
        fair.spend(grant.allowance);
        assert_eq!(fair.next_flow().unwrap().flow, 1);
    }

    #[test]
    fn one_that_left_and_came_back_has_one_place() {
        let mut fair = FairQueue::new(QUANTUM);
        for _ in 0..5 {
            fair.activate(3);
            fair.deactivate(3);
        }
        fair.activate(3);
        assert_eq!(fair.ring.len(), 1);
        assert_eq!(fair.next_flow().map(|grant| grant.flow), Some(3));
        fair.deactivate(3);
        assert_eq!(fair.next_flow(), None);
        assert!(fair.ring.is_empty());
    }

    #[test]
    fn refilled_queue_moves_to_back() {
        let mut fair = FairQueue::new(QUANTUM);
        fair.activate(0);
        fair.activate(1);
        let mut first = 0;
        while fair.next_flow().unwrap().flow == 0 {
            first += 100;
            fair.deactivate(0);
            fair.spend(100);
            fair.activate(0);
        }
        assert!(first <= QUANTUM, "{first}");
    }

    proptest! {
        /// Of any two flows that always have something to send, neither gets ahead of the other by
        /// more than its quantum and what it may carry over.
        #[test]
        fn flows_get_equal_bytes(
            packets in proptest::collection::vec(1usize..3000, 100..400),
            flows in 2u32..6,
        ) {
            let mut fair = FairQueue::new(QUANTUM);
            let mut sent = vec![0usize; flows as usize];
            (0..flows).for_each(|flow| fair.activate(flow));
            for len in packets {
                let grant = fair.next_flow().unwrap();
                let len = len.clamp(MIN_COST, grant.allowance.max(MIN_COST));
                sent[grant.flow as usize] += len;
                fair.spend(len);
                let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
                prop_assert!(most - least <= QUANTUM * 2);
            }
        }
    }
}
