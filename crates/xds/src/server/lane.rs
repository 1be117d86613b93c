//! Names to be sent, some of which wait until something else is acknowledged.
//!
//! ```text
//!   push ──▶ now (behind a gate) ──take──▶ sent
//!      └───▶ later ──when now is taken──▶ now, behind a gate of its own
//! ```
//!
//! Two sets, so that what waits is not overtaken forever by what comes after it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Names that are due.
#[derive(Debug, Default)]
pub(super) struct Lane {
    now: BTreeSet<Arc<str>>,
    later: BTreeSet<Arc<str>>,
    gate: Option<Gate>,
}

/// What must have been acknowledged before a lane is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    /// Everything up to this sequence number.
    pub(super) seq: u64,
    since: Instant,
}

impl Gate {
    /// When it opens by itself.
    pub(super) fn deadline(self, wait: Duration) -> Instant {
        self.since + wait
    }
}

impl Lane {
    pub(super) fn is_empty(&self) -> bool {
        self.now.is_empty()
    }

    /// Adds a name that became due when the store was at `seq`.
    pub(super) fn push(&mut self, name: Arc<str>, seq: u64, now: Instant) {
        match self.gate {
            // What is due already has changed again, and may refer to what is newer than its gate.
            Some(gate) if gate.seq != seq => {
                self.now.remove(&name);
                self.later.insert(name);
                self.promote(Gate { seq, ..gate });
            }
            Some(_) => {
                self.now.insert(name);
            }
            None => {
                self.gate = Some(Gate { seq, since: now });
                self.now.insert(name);
            }
        }
    }

    /// The gate of what is due, if anything is.
    pub(super) fn gate(&self) -> Option<Gate> {
        self.gate
    }

    /// Removes and returns the due names; later ones become due next, gated at `seq`.
    pub(super) fn take(&mut self, seq: u64, now: Instant) -> BTreeSet<Arc<str>> {
        self.gate = (!self.later.is_empty()).then_some(Gate { seq, since: now });
        std::mem::replace(&mut self.now, std::mem::take(&mut self.later))
    }

    /// Removes and returns all names, ignoring the gate.
    pub(super) fn take_all(&mut self) -> BTreeSet<Arc<str>> {
        self.gate = None;
        let mut all = std::mem::take(&mut self.now);
        all.append(&mut self.later);
        all
    }

    /// Moves the due names behind another gate.
    pub(super) fn gate_anew(&mut self, seq: u64, now: Instant) {
        self.now.append(&mut self.later);
        self.gate = (!self.now.is_empty()).then_some(Gate { seq, since: now });
    }

    /// Drops a name that is no longer subscribed.
    pub(super) fn forget(&mut self, name: &str) {
        self.now.remove(name);
        self.later.remove(name);
        match self.gate {
            Some(_) if self.later.is_empty() && self.now.is_empty() => self.gate = None,
            Some(gate) => self.promote(gate),
            None => {}
        }
    }

    /// The names that are due now or later.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.now.iter().chain(&self.later)
    }

    /// Makes what comes later due when nothing else is left, without a longer wait.
    fn promote(&mut self, gate: Gate) {
        if self.now.is_empty() {
            self.now = std::mem::take(&mut self.later);
            self.gate = Some(gate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(set: BTreeSet<Arc<str>>) -> Vec<String> {
        set.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn later_names_do_not_delay_waiting_names() {
        let (mut lane, now) = (Lane::default(), Instant::now());
        lane.push("a".into(), 1, now);
        lane.push("b".into(), 1, now);
        lane.push("c".into(), 2, now);
        assert_eq!(lane.gate().unwrap().seq, 1);
        assert_eq!(names(lane.take(5, now)), ["a", "b"]);
        assert_eq!(lane.gate().unwrap().seq, 5);
        assert_eq!(names(lane.take(6, now)), ["c"]);
        assert!(lane.gate().is_none() && lane.is_empty());
    }

    #[test]
    fn changed_name_waits_for_its_latest_gate() {
        let (mut lane, now) = (Lane::default(), Instant::now());
        lane.push("a".into(), 1, now);
        lane.push("b".into(), 1, now);
        lane.push("a".into(), 2, now + Duration::from_secs(1));
        assert_eq!(names(lane.take(2, now)), ["b"]);
        lane.push("a".into(), 3, now + Duration::from_secs(2));
        let gate = lane.gate().unwrap();
        assert_eq!(gate.seq, 3);
        assert_eq!(
            gate.deadline(Duration::ZERO),
            now,
            "its wait is not begun anew"
        );
        assert_eq!(names(lane.take(3, now)), ["a"]);
    }

    #[test]
    fn forgotten_name_promotes_later_names() {
        let (mut lane, now) = (Lane::default(), Instant::now());
        lane.push("a".into(), 1, now);
        lane.push("b".into(), 2, now);
        lane.forget("a");
        assert!(!lane.is_empty());
        lane.forget("b");
        assert!(lane.is_empty() && lane.gate().is_none());
        lane.push("c".into(), 3, now);
        assert_eq!(names(lane.take_all()), ["c"]);
        assert!(lane.gate().is_none());
    }
}
