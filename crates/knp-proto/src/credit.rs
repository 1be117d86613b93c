//! How much may be sent on a tunnel before its receiver asks for more.
//!
//! ```text
//!  sender: SendCredit ──DATA──▶ receiver: RecvWindow ──▶ socket
//!          SendCredit ◀──CREDIT────────── RecvWindow ◀── consumed
//! ```
//!
//! Both ends start with [`INITIAL_WINDOW`]. Every byte the receiver's socket took is granted
//! again, in steps of half a window. A window doubles while the socket keeps up with a sender that
//! uses it quickly, and halves when memory runs short. Where the bytes wait, and who pays for
//! them, is not decided here.

use std::time::{Duration, Instant};

/// Bytes that may be sent on a new tunnel in each direction before any CREDIT.
pub const INITIAL_WINDOW: u64 = 256 << 10;

/// A peer broke the rules of credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// More credit than any window could have.
    #[error("credit beyond {MAX_CREDIT} bytes")]
    Overflow,
    /// DATA beyond what was granted.
    #[error("DATA beyond the window")]
    Overrun,
}

/// What the peer still takes.
#[derive(Debug)]
pub(crate) struct SendCredit {
    left: u64,
}

impl SendCredit {
    pub(crate) fn new() -> Self {
        Self {
            left: INITIAL_WINDOW,
        }
    }

    /// Returns how many bytes may be sent now.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    pub(crate) fn spend(&mut self, sent: usize) {
        self.left = self.left.saturating_sub(sent as u64);
    }

    pub(crate) fn grant(&mut self, bytes: u64) -> Result<(), CreditError> {
        let left = self.left.checked_add(bytes);
        let left = left.filter(|&left| left <= MAX_CREDIT);
        self.left = left.ok_or(CreditError::Overflow)?;
        Ok(())
    }
}

/// What the peer may still send, and what has to be granted again.
///
/// At any time `granted` + bytes held + `unreturned` = `window`.
#[derive(Debug)]
pub(crate) struct RecvWindow {
    window: u64,
    granted: u64,
    unreturned: u64,
    since: Instant,
}

impl RecvWindow {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            window: INITIAL_WINDOW,
            granted: INITIAL_WINDOW,
            unreturned: 0,
            since: now,
        }
    }

    /// Returns how far the window has grown: what it may fill beyond the initial one.
    pub(crate) fn grown(&self) -> usize {
        usize::try_from(self.window - INITIAL_WINDOW).unwrap_or(usize::MAX)
    }

    /// Counts bytes that came.
    pub(crate) fn receive(&mut self, len: usize) -> Result<(), CreditError> {
        let left = self.granted.checked_sub(len as u64);
        self.granted = left.ok_or(CreditError::Overrun)?;
        Ok(())
    }

    /// Counts bytes the socket took, and returns the credit to send for them, often 0.
    ///
    /// `drained` says that nothing is left waiting; `headroom` what memory there is, asked only when a
    /// grant is due.
    pub(crate) fn consume(
        &mut self,
        now: Instant,
        len: usize,
        drained: bool,
        max: u64,
        headroom: impl FnOnce(usize) -> Headroom,
    ) -> u64 {
        self.unreturned = (self.unreturned + len as u64).min(self.window);
        if self.unreturned < self.window / 2 {
            return 0;
        }
        let fast = drained && now.saturating_duration_since(self.since) < GROW_WITHIN;
        self.since = now;
        let doubled = (self.window * 2).min(max.max(INITIAL_WINDOW));
        let growth = usize::try_from(doubled.saturating_sub(self.window)).unwrap_or(usize::MAX);
        match headroom(growth) {
            Headroom::Ample if fast => {
                self.unreturned += doubled.saturating_sub(self.window);
                self.window = self.window.max(doubled);
            }
            Headroom::Ample | Headroom::Enough => {}
            Headroom::Short => {
                let halved = (self.window / 2).max(INITIAL_WINDOW);
                self.unreturned = self.unreturned.saturating_sub(self.window - halved);
                self.window = halved;
            }
        }
        // What was halved may leave nothing worth a packet.
        if self.unreturned < self.window / 2 {
            return 0;
        }
        self.granted += self.unreturned;
        std::mem::take(&mut self.unreturned)
    }
}

/// What memory there is for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headroom {
    /// It may double.
    Ample,
    /// It may stay.
    Enough,
    /// It should shrink.
    Short,
}

/// No window is ever that large; more is a mistake or an attempt to overflow.
const MAX_CREDIT: u64 = 1 << 30;
/// A half window that took longer than this to consume is not what limits the sender: at a round
/// trip of twice as much it would still be used up in time.
const GROW_WITHIN: Duration = Duration::from_millis(250);

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = 4 << 20;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do to count from"
    )]
    pub(crate) fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn window_doubles_up_to_limit() {
        let now = start();
        let mut window = RecvWindow::new(now);
        for _ in 0..10 {
            let len = usize::try_from(window.granted).unwrap();
            window.receive(len).unwrap();
            window.consume(now, len, true, MAX, |_| Headroom::Ample);
        }
        assert_eq!(window.window, MAX);
        assert_eq!(window.granted, MAX);
    }

    #[test]
    fn slow_use_does_not_grow_it() {
        let mut now = start();
        let mut window = RecvWindow::new(now);
        for _ in 0..100 {
            now += Duration::from_millis(10);
            window.receive(4096).unwrap();
            window.consume(now, 4096, true, MAX, |_| Headroom::Ample);
        }
        assert_eq!(window.window, INITIAL_WINDOW);
    }

    #[test]
    fn breaking_the_rules_is_noticed() {
        let mut window = RecvWindow::new(start());
        window.receive(256 << 10).unwrap();
        assert_eq!(window.receive(1), Err(CreditError::Overrun));
        let mut credit = SendCredit::new();
        assert_eq!(credit.grant(u64::MAX), Err(CreditError::Overflow));
        assert_eq!(credit.grant(MAX_CREDIT), Err(CreditError::Overflow));
    }

    proptest! {
        /// Sender and receiver agree, whatever the order of growing and shrinking, and neither ever
        /// waits for the other.
        #[test]
        fn both_ends_agree_and_never_deadlock(
            steps in proptest::collection::vec((0u64..600_000, 0u64..600_000, 0u8..3), 1..80),
        ) {
            let now = start();
            let (mut send, mut recv) = (SendCredit::new(), RecvWindow::new(now));
            let mut held = 0u64;
            for (want, take, headroom) in steps {
                let sent = (send.left() as u64).min(want);
                send.spend(sent as usize);
                recv.receive(sent as usize).unwrap();
                held += sent;
                let taken = held.min(take);
                held -= taken;
                let headroom = [Headroom::Ample, Headroom::Enough, Headroom::Short][headroom as usize];
                let grant = recv.consume(now, taken as usize, held == 0, MAX, |_| headroom);
                send.grant(grant).unwrap();
                prop_assert_eq!(send.left() as u64, recv.granted);
                prop_assert_eq!(recv.granted + held + recv.unreturned, recv.window);
                prop_assert!(recv.window <= MAX);
                prop_assert!(held > 0 || send.left() > 0, "neither end can go on");
            }
        }
    }
}
