//! Who is meant by an id on one stream.
//!
//! The ids of DIAL_REQ and of the other packets are two name spaces, and each stream has its own:
//! a table belongs to one [`Link`](crate::Link), so an id is looked up under (tenant, stream, id)
//! by where the packet came in. Nothing here is shared between streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::{ConnectId, DialId};

/// The ids in use on one stream, and the slots of their tunnels.
#[derive(Debug, Default)]
pub(crate) struct Dispatch {
    pending: BTreeMap<DialId, u32>,
    established: BTreeMap<ConnectId, u32>,
    /// Unknown connections whose closing was requested, so that it is requested once.
    strays: BTreeSet<ConnectId>,
    /// Connections that the peer was told to close, and has not answered for in time.
    given_up: BTreeSet<ConnectId>,
    /// The same, the oldest first; those that were answered since are no longer in the set.
    given_up_order: VecDeque<ConnectId>,
}

impl Dispatch {
    pub(crate) fn is_pending(&self, random: DialId) -> bool {
        self.pending.contains_key(&random)
    }

    pub(crate) fn expect(&mut self, random: DialId, slot: u32) {
        self.pending.insert(random, slot);
    }

    /// Ends a dial, answered or not; returns whose it was.
    pub(crate) fn take_dial(&mut self, random: DialId) -> Option<u32> {
        self.pending.remove(&random)
    }

    /// Gives `connect_id` to a tunnel; false, and no change, if another one has it.
    pub(crate) fn establish(&mut self, connect_id: ConnectId, slot: u32) -> bool {
        if self.established.contains_key(&connect_id) {
            return false;
        }
        self.forget_stray(connect_id);
        self.established.insert(connect_id, slot);
        true
    }

    pub(crate) fn find(&self, connect_id: ConnectId) -> Option<u32> {
        self.established.get(&connect_id).copied()
    }

    /// Forgets a tunnel's connection.
    pub(crate) fn release(&mut self, connect_id: ConnectId, slot: u32) {
        if self.find(connect_id) == Some(slot) {
            self.established.remove(&connect_id);
        }
    }

    /// Returns whether a connection that is not known should be complained about: the first time,
    /// as far as that is remembered.
    pub(crate) fn is_new_stray(&mut self, connect_id: ConnectId) -> bool {
        if self.strays.len() >= MAX_STRAYS {
            self.strays.clear();
        }
        self.strays.insert(connect_id)
    }

    /// A connection is forgotten here, and the peer may not know yet. The last ones are remembered.
    pub(crate) fn give_up(&mut self, connect_id: ConnectId) {
        if self.given_up_order.len() >= MAX_GIVEN_UP
            && let Some(oldest) = self.given_up_order.pop_front()
        {
            self.given_up.remove(&oldest);
        }
        self.given_up.insert(connect_id);
        self.given_up_order.push_back(connect_id);
    }

    /// Returns whether DATA of a connection that is not known may come from a peer that was told to close it and
    /// has not read that yet.
    pub(crate) fn is_given_up(&self, connect_id: ConnectId) -> bool {
        self.given_up.contains(&connect_id)
    }

    /// The peer has forgotten a connection.
    pub(crate) fn forget_stray(&mut self, connect_id: ConnectId) {
        self.strays.remove(&connect_id);
        self.given_up.remove(&connect_id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.established.is_empty()
    }
}

/// Enough for what crosses a close; a peer that makes ids up is told again now and then.
const MAX_STRAYS: usize = 1024;
/// As many as an agent has tunnels by default, and more.
const MAX_GIVEN_UP: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_in_use_is_not_given_away() {
        let mut dispatch = Dispatch::default();
        assert!(dispatch.establish(ConnectId(1), 7));
        assert!(!dispatch.establish(ConnectId(1), 8));
        dispatch.release(ConnectId(1), 8);
        assert_eq!(dispatch.find(ConnectId(1)), Some(7));
        dispatch.release(ConnectId(1), 7);
        assert!(dispatch.is_empty());
    }

    #[test]
    fn strays_are_noticed_once_and_bounded() {
        let mut dispatch = Dispatch::default();
        assert!(dispatch.is_new_stray(ConnectId(5)));
        assert!(!dispatch.is_new_stray(ConnectId(5)));
        dispatch.forget_stray(ConnectId(5));
        assert!(dispatch.is_new_stray(ConnectId(5)));
        for id in 0..10_000 {
            dispatch.is_new_stray(ConnectId(id));
        }
        assert!(dispatch.strays.len() <= MAX_STRAYS);
    }
}
