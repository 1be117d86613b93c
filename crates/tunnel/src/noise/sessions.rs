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
    /// The place in that order of the latest that is known to be confirmed, and its index.
    in_use: Option<(u64, u32)>,
}

impl Sessions {
    /// Adds a session. One whose index has the same remainder is gone.
    pub(super) fn begin(&mut self, session: Session) {
        self.begun += 1;
        let local = session.local;
        self.slots[slot(local)] = Some((self.begun, session));
        if session.is_confirmed {
            self.in_use = Some((self.begun, local));
        }
    }

    /// Ends every session. Those that follow are still later in the order than those that were.
    pub(super) fn clear(&mut self) {
        *self = Self {
            begun: self.begun,
            ..Self::default()
        };
    }

    fn entry(&self, local: u32) -> Option<&(u64, Session)> {
        let entry = self.slots[slot(local)].as_ref();
        entry.filter(|(_, session)| session.local == local)
    }

    /// Returns the place of a session in the order in which the pair's sessions began.
    pub(super) fn order_of(&self, local: u32) -> Option<u64> {
        self.entry(local).map(|(order, _)| *order)
    }

    /// Returns whether sessions of these two own indices cannot be there at once.
    pub(super) fn share_place(one: u32, other: u32) -> bool {
        slot(one) == slot(other)
    }

    /// Returns whether a packet for that index can be opened.
    pub(super) fn find(&self, now: Instant, local: u32) -> Result<(), Refused> {
        match self.entry(local) {
            Some((_, session)) if session.is_live(now) => Ok(()),
            Some(_) => Err(Refused::Stale),
            None => Err(Refused::Index),
        }
    }

    /// Records an authentic packet and returns whether it was the session's first.
    pub(super) fn confirm(&mut self, local: u32) -> bool {
        let newest = self.in_use().and(self.in_use);
        let entry = self.slots[slot(local)].as_mut();
        let Some((order, session)) = entry.filter(|(_, session)| session.local == local) else {
            return false;
        };
        // A late packet of an older session does not bring that session back.
        self.in_use = newest.max(Some((*order, local)));
        !std::mem::replace(&mut session.is_confirmed, true)
    }

    /// Returns the session to seal with.
    pub(super) fn in_use(&self) -> Option<&Session> {
        let (order, local) = self.in_use?;
        let (found, session) = self.entry(local)?;
        (*found == order).then_some(session)
    }

    /// Returns whether a packet for the peer's index is sealed with something the peer has.
    pub(super) fn is_sealed_with(&self, peer: u32) -> bool {
        let fits = |session: &Session| session.is_confirmed && session.peer == peer;
        let mut all = self.slots.iter().flatten();
        self.in_use().is_some_and(fits) || all.any(|(_, session)| fits(session))
    }

    /// Returns whether any session, confirmed or not, is young enough.
    pub(super) fn is_any_live(&self, now: Instant) -> bool {
        let mut all = self.slots.iter().flatten();
        all.any(|(_, session)| session.is_live(now))
    }

    /// Forgets sessions that are too old.
    pub(super) fn end_old(&mut self, now: Instant) {
        for entry in &mut self.slots {
            entry.take_if(|(_, session)| !session.is_live(now));
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
    fn latest_confirmed_session_is_used() {
        let (mut sessions, now) = (Sessions::default(), now());
        let in_use = |sessions: &Sessions| sessions.in_use().map(|session| session.local);
        sessions.begin(session(1, now, true));
        sessions.begin(session(2, now, false));
        assert_eq!(in_use(&sessions), Some(1));
        assert!(sessions.is_sealed_with(1001) && !sessions.is_sealed_with(1002));
        assert!(sessions.confirm(2), "the first packet");
        assert!(!sessions.confirm(2));
        assert_eq!(in_use(&sessions), Some(2));
        assert!(!sessions.confirm(1), "a late packet of an older session");
        assert_eq!(in_use(&sessions), Some(2));
        assert_eq!(sessions.find(now, 2), Ok(()));
        assert_eq!(sessions.find(now, 10), Err(Refused::Index));
        assert!(!sessions.confirm(10));
        sessions.begin(session(10, now, false));
        assert_eq!(sessions.find(now, 2), Err(Refused::Index));
        assert_eq!(in_use(&sessions), None, "replaced by an unconfirmed one");
    }

    #[test]
    fn order_goes_on_when_sessions_end() {
        let (mut sessions, now) = (Sessions::default(), now());
        sessions.begin(session(7, now, true));
        let before = sessions.order_of(7).unwrap();
        assert_eq!(sessions.order_of(15), None, "another one's place");
        let later = now + LIFE;
        assert_eq!(sessions.find(later, 7), Err(Refused::Stale));
        assert!(sessions.is_any_live(now) && !sessions.is_any_live(later));
        let ends: [fn(&mut Sessions, Instant); 2] =
            [Sessions::end_old, |sessions, _| sessions.clear()];
        for (local, end) in [7, 1].into_iter().zip(ends) {
            end(&mut sessions, later);
            assert!(sessions.in_use().is_none() && !sessions.is_any_live(now));
            assert_eq!(sessions.find(later, local), Err(Refused::Index));
            assert_eq!(sessions.order_of(local), None);
            sessions.begin(session(1, now, true));
            assert!(sessions.order_of(1).unwrap() > before);
        }
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
