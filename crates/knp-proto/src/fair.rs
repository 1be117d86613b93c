//! Whose turn it is to send: deficit round robin over octets.
//!
//! ```text
//! ring:  tunnel 7 ─▶ tunnel 2 ─▶ tunnel 9 ─▶ …      each turn is worth a quantum of octets,
//!           ▲ in turn                                what is left of it waits for the next
//! ```
//!
//! After M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round Robin" (1996):
//! a tunnel with much to send gets no more than a quantum while another waits, at a constant cost
//! per packet. Knows tunnels by number only, and nothing of what they send.

use std::collections::VecDeque;

/// A ring of those that have something to send.
#[derive(Debug)]
pub struct Fair {
    ring: VecDeque<u32>,
    flows: Vec<Flow>,
    quantum: usize,
}

/// Leave to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who may send.
    pub flow: u32,
    /// At most how many octets, never 0.
    pub allowance: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// It has a place in the ring.
    placed: bool,
    /// It has something to send; if not, its place is skipped and lost.
    active: bool,
    /// It was given its quantum since it came to the front.
    in_turn: bool,
    deficit: usize,
}

impl Fair {
    /// Makes an empty ring whose turns are worth `quantum` octets, at least 1.
    #[must_use]
    pub fn new(quantum: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            flows: Vec::new(),
            quantum: quantum.max(1),
        }
    }

    /// Says that `flow` has something to send; it queues up unless it already does. Flows are
    /// small numbers: there is memory for each up to the highest.
    pub fn activate(&mut self, flow: u32) {
        let index = flow as usize;
        if self.flows.len() <= index {
            self.flows.resize(index + 1, Flow::default());
        }
        let Some(state) = self.flows.get_mut(index) else {
            return;
        };
        state.active = true;
        // One that still has its place goes on with what is left of its turn; a new turn for each
        // time it comes back would keep it in front for good.
        if !std::mem::replace(&mut state.placed, true) {
            self.ring.push_back(flow);
        }
    }

    /// Says that `flow` has nothing to send any more.
    pub fn deactivate(&mut self, flow: u32) {
        if let Some(state) = self.flows.get_mut(flow as usize) {
            state.active = false;
        }
    }

    /// Returns whether nobody has a place; while somebody has, [`Fair::turn`] may still say no.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns who may send now, until [`Fair::spend`] is called the same one again.
    pub fn turn(&mut self) -> Option<Turn> {
        loop {
            let &flow = self.ring.front()?;
            let state = self.flows.get_mut(flow as usize)?;
            if !state.active {
                *state = Flow::default();
                self.ring.pop_front();
                continue;
            }
            if !state.in_turn {
                state.in_turn = true;
                state.deficit += self.quantum;
            }
            let allowance = state.deficit;
            return Some(Turn { flow, allowance });
        }
    }

    /// Takes `len` octets from the one whose turn it is. A packet without payload costs something
    /// too.
    pub fn spend(&mut self, len: usize) {
        let Some(&flow) = self.ring.front() else {
            return;
        };
        let Some(state) = self.flows.get_mut(flow as usize) else {
            return;
        };
        state.deficit = state.deficit.saturating_sub(len.max(LEAST_COST));
        // What is left would only make for a tiny packet; it counts next time.
        if state.deficit < self.quantum.div_ceil(4) {
            state.in_turn = false;
            self.ring.rotate_left(1);
        }
    }
}

/// Octets a packet costs at least: about what its heads take on the wire.
const LEAST_COST: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUANTUM: usize = 1000;

    #[test]
    fn a_busy_flow_lets_others_in_after_a_quantum() {
        let mut fair = Fair::new(QUANTUM);
        fair.activate(0);
        let turn = fair.turn().unwrap();
        fair.activate(1);
        fair.spend(turn.allowance);
        assert_eq!(fair.turn().unwrap().flow, 1);
    }

    #[test]
    fn one_that_left_and_came_back_has_one_place() {
        let mut fair = Fair::new(QUANTUM);
        for _ in 0..5 {
            fair.activate(3);
            fair.deactivate(3);
        }
        fair.activate(3);
        assert_eq!(fair.ring.len(), 1);
        assert_eq!(fair.turn().map(|turn| turn.flow), Some(3));
        fair.deactivate(3);
        assert_eq!(fair.turn(), None);
        assert!(fair.ring.is_empty());
    }

    #[test]
    fn one_that_empties_and_refills_does_not_stay_in_front() {
        let mut fair = Fair::new(QUANTUM);
        fair.activate(0);
        fair.activate(1);
        let mut first = 0;
        while fair.turn().unwrap().flow == 0 {
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
        fn nobody_gets_ahead(
            packets in proptest::collection::vec(1usize..3000, 100..400),
            flows in 2u32..6,
        ) {
            let mut fair = Fair::new(QUANTUM);
            let mut sent = vec![0usize; flows as usize];
            (0..flows).for_each(|flow| fair.activate(flow));
            for len in packets {
                let turn = fair.turn().unwrap();
                let len = len.clamp(LEAST_COST, turn.allowance.max(LEAST_COST));
                sent[turn.flow as usize] += len;
                fair.spend(len);
                let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
                prop_assert!(most - least <= QUANTUM * 2);
            }
        }
    }
}
