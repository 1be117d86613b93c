//! Which sessions a pair of keys has, and when something is due.
//!
//! ```text
//!   handshake ─▶ Sessions::begin ─▶ (confirmed by a packet of the peer) ─▶ in use ─▶ ended by age
//!   initiated, established, heard, sent ─▶ Schedule ─▶ is_initiation_due, is_keepalive_due
//! ```
//!
//! Numbers and times only: the keys of a session are kept by its creator.

use std::time::{Duration, Instant};

use super::Refused;

/// How long a session is used. A second less than WireGuard's 180 s (paper §6.1), so that this end
/// never uses one that the library behind has already forgotten.
const LIFE: Duration = Duration::from_secs(179);
/// When the initiator makes the next session.
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// For how long a response is waited for.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The same when there is a cookie to go with the next attempt.
const COOKIE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// For how long nothing is sent to a peer that sends.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// Sessions there may be at once: as many as boringtun has, in the same places.
const SLOTS: usize = 8;

/// One session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The index the peer names it by.
    pub(super) local: u32,
    /// The index this end names it by.
    pub(super) peer: u32,
    pub(super) since: Instant,
    /// Whether the peer is known to have it, so that packets can be sealed with it.
    pub(super) is_confirmed: bool,
}

/// The sessions of one pair of keys.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// By the index modulo their number, with the place in the order in which they began.
    slots: [Option<(u64, Session)>; SLOTS],
    /// How many were begun since the process started: indices repeat, this does not.
    begun: u64,
    /// Of `slots`: the latest that is known to be confirmed.
    in_use: Option<usize>,
}

impl Sessions {
    /// Adds a session. One whose index has the same remainder is gone.
    pub(super) fn begin(&mut self, session: Session) {
        self.begun += 1;
        let at = slot(session.local);
        if let Some(entry) = self.slots.get_mut(at) {
            *entry = Some((self.begun, session));
        }
        if session.is_confirmed || self.in_use == Some(at) {
            self.in_use = session.is_confirmed.then_some(at);
        }
    }

    /// Ends every session. Those that follow are still later in the order than those that were.
    pub(super) fn clear(&mut self) {
        *self = Self {
            begun: self.begun,
            ..Self::default()
        };
    }

    /// Returns the place of a session in the order in which the pair's sessions began.
    pub(super) fn order_of(&self, local: u32) -> Option<u64> {
        let (order, session) = self.slots.get(slot(local))?.as_ref()?;
        (session.local == local).then_some(*order)
    }

    /// Returns whether sessions of these two own indices cannot be there at once.
    pub(super) fn share_place(one: u32, other: u32) -> bool {
        slot(one) == slot(other)
    }

    /// Returns whether a packet for that index can be opened.
    pub(super) fn find(&self, now: Instant, local: u32) -> Result<(), Refused> {
        let entry = self.slots.get(slot(local)).and_then(Option::as_ref);
        match entry.filter(|(_, session)| session.local == local) {
            Some((_, session)) if session.is_live(now) => Ok(()),
            Some(_) => Err(Refused::Stale),
            None => Err(Refused::Index),
        }
    }

    /// Records an authentic packet and returns whether it was the session's first.
    pub(super) fn confirm(&mut self, local: u32) -> bool {
        let in_use = self.in_use.and_then(|at| self.slots.get(at).copied());
        let newest = in_use.flatten().map_or(0, |(order, _)| order);
        let at = slot(local);
        let entry = self.slots.get_mut(at).and_then(Option::as_mut);
        let Some((order, session)) = entry.filter(|(_, session)| session.local == local) else {
            return false;
        };
        // A late packet of an older session does not bring that session back.
        if *order >= newest {
            self.in_use = Some(at);
        }
        !std::mem::replace(&mut session.is_confirmed, true)
    }

    /// Returns the session to seal with.
    pub(super) fn in_use(&self) -> Option<&Session> {
        let (_, session) = self.slots.get(self.in_use?)?.as_ref()?;
        Some(session)
    }

    /// Returns whether a packet for the peer's index is sealed with something the peer has.
    pub(super) fn is_sealed_with(&self, peer: u32) -> bool {
        let fits = |session: &Session| session.is_confirmed && session.peer == peer;
        let all = || self.slots.iter().flatten();
        self.in_use().is_some_and(fits) || all().any(|(_, session)| fits(session))
    }

    /// Returns whether any session, confirmed or not, is young enough.
    pub(super) fn is_any_live(&self, now: Instant) -> bool {
        let mut all = self.slots.iter().flatten();
        all.any(|(_, session)| session.is_live(now))
    }

    /// Forgets sessions that are too old.
    pub(super) fn end_old(&mut self, now: Instant) {
        for entry in &mut self.slots {
            if entry.is_some_and(|(_, session)| !session.is_live(now)) {
                *entry = None;
            }
        }
    }
}

impl Session {
    pub(super) fn is_live(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < LIFE
    }
}

fn slot(local: u32) -> usize {
    local as usize % SLOTS
}

/// When something is due.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Since a handshake was first asked for.
    next_initiation: Option<Instant>,
    /// Since when packets came and none went.
    owed: Option<Instant>,
}

impl Schedule {
    pub(super) fn initiated(&mut self, now: Instant) {
        self.next_initiation = Some(now + RETRY_AFTER);
    }

    /// The session that was to be renewed some time is gone.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next_initiation = self.next_initiation.map(|next| next.min(now));
    }

    /// This end's initiation made a session.
    pub(super) fn established(&mut self, since: Instant) {
        self.next_initiation = Some(since + REKEY_AFTER);
        self.owed = None; // the confirmation is a keepalive
    }

    /// A cookie came for the initiation on its way.
    pub(super) fn cookie_came(&mut self, now: Instant) {
        let sooner = now + COOKIE_RETRY_AFTER;
        self.next_initiation = self.next_initiation.map(|next| next.min(sooner));
    }

    /// A packet with content came.
    pub(super) fn heard(&mut self, now: Instant) {
        self.owed.get_or_insert(now);
    }

    /// A packet went, whatever its content.
    pub(super) fn sent(&mut self) {
        self.owed = None;
    }

    pub(super) fn is_initiation_due(&self, now: Instant) -> bool {
        self.next_initiation.is_some_and(|next| now >= next)
    }

    pub(super) fn is_keepalive_due(&self, now: Instant) -> bool {
        let since = |owed| now.saturating_duration_since(owed);
        self.owed.is_some_and(|owed| since(owed) >= KEEPALIVE_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(local: u32, since: Instant, is_confirmed: bool) -> Session {
        Session {
            local,
            peer: local + 1000,
            since,
            is_confirmed,
        }
    }

    fn now() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    #[test]
    fn session_is_used_once_the_peer_uses_it() {
        let (mut sessions, now) = (Sessions::default(), now());
        sessions.begin(session(1, now, true));
        sessions.begin(session(2, now, false));
        assert_eq!(sessions.in_use().unwrap().local, 1);
        assert!(sessions.is_sealed_with(1001) && !sessions.is_sealed_with(1002));
        assert!(sessions.confirm(2), "the first packet");
        assert!(!sessions.confirm(2));
        assert_eq!(sessions.in_use().unwrap().local, 2);
    }

    #[test]
    fn late_packet_does_not_revive_older_session() {
        let (mut sessions, now) = (Sessions::default(), now());
        sessions.begin(session(1, now, true));
        sessions.begin(session(2, now, true));
        sessions.confirm(1);
        assert_eq!(sessions.in_use().unwrap().local, 2);
    }

    #[test]
    fn index_of_other_session_in_slot_is_unknown() {
        let (mut sessions, now) = (Sessions::default(), now());
        sessions.begin(session(1, now, true));
        assert_eq!(sessions.find(now, 1), Ok(()));
        assert_eq!(sessions.find(now, 9), Err(Refused::Index));
        assert!(!sessions.confirm(9));
        sessions.begin(session(9, now, false));
        assert_eq!(sessions.find(now, 1), Err(Refused::Index));
        assert!(
            sessions.in_use().is_none(),
            "it was replaced, and the new one is unconfirmed"
        );
    }

    #[test]
    fn order_goes_on_after_clear() {
        let (mut sessions, now) = (Sessions::default(), now());
        sessions.begin(session(7, now, true));
        let before = sessions.order_of(7).unwrap();
        assert_eq!(sessions.order_of(15), None, "another one's place");
        sessions.clear();
        assert_eq!(sessions.order_of(7), None);
        assert!(sessions.in_use().is_none() && !sessions.is_any_live(now));
        sessions.begin(session(1, now, true));
        assert!(sessions.order_of(1).unwrap() > before);
    }

    #[test]
    fn old_sessions_end() {
        let (mut sessions, now) = (Sessions::default(), now());
        sessions.begin(session(1, now, true));
        let later = now + LIFE;
        assert_eq!(sessions.find(later, 1), Err(Refused::Stale));
        assert!(!sessions.is_any_live(later));
        sessions.end_old(later);
        assert!(sessions.in_use().is_none());
        assert_eq!(sessions.find(later, 1), Err(Refused::Index));
    }

    #[test]
    fn cookie_brings_the_next_attempt_forward() {
        let (mut schedule, now) = (Schedule::default(), now());
        schedule.cookie_came(now);
        assert!(
            !schedule.is_initiation_due(now + RETRY_AFTER),
            "none was asked for"
        );
        schedule.initiated(now);
        assert!(!schedule.is_initiation_due(now + COOKIE_RETRY_AFTER));
        schedule.cookie_came(now);
        assert!(schedule.is_initiation_due(now + COOKIE_RETRY_AFTER));
    }
}
