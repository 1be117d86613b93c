//! Draining: unready at once, stop accepting after a delay, let connections finish, then cut.
//!
//! ```text
//!     Serving ─begin─▶ Unready ─delay─▶ Closing ─timeout─▶ Cut
//!                         └────────────── cut ──────────────▲
//! ```
//!
//! Holds the phase and its clock. Workers follow it. Knows neither sockets nor connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How long draining waits at each step.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainParams {
    /// From unready to no longer accepting, so that load balancers notice first.
    pub delay: Duration,
    /// From no longer accepting to cutting what is left.
    pub timeout: Duration,
}

/// How far a process has drained; phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Normal service.
    Serving,
    /// Reported unready, still accepting.
    Unready,
    /// No longer accepting; connections finish.
    Closing,
    /// What is left is cut.
    Cut,
}

/// The phase of this process; clones share it.
#[derive(Clone, Debug)]
pub struct Drain {
    phase: Arc<watch::Sender<Phase>>,
    params: DrainParams,
    handed_over: Arc<watch::Sender<HandedOver>>,
}

/// How far another process has taken over from this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOver {
    /// None does.
    No,
    /// It takes what there is.
    UnderWay,
    /// It serves already, and whether this one ends then.
    Done { exit: bool },
}

impl Drain {
    /// Creates a process in service.
    pub fn new(params: DrainParams) -> Self {
        Self {
            phase: Arc::new(watch::Sender::new(Phase::Serving)),
            params,
            handed_over: Arc::new(watch::Sender::new(HandedOver::No)),
        }
    }

    /// Returns the phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Has the process not end while another takes over from it, or end as before if that came to nothing.
    pub(crate) fn hand_over_begins(&self, begins: bool) {
        self.handed_over.send_replace(match begins {
            true => HandedOver::UnderWay,
            false => HandedOver::No,
        });
    }

    /// Has a later drain not wait before nothing is accepted, since another process has the listeners; drains
    /// now if the process is to `exit`.
    pub(crate) fn hand_over(&self, exit: bool) {
        self.handed_over.send_replace(HandedOver::Done { exit });
        if self.phase() == Phase::Unready {
            self.advance(Phase::Closing);
        }
        if exit {
            self.begin();
        }
    }

    /// Waits until another process serves instead of this one. Cancel-safe.
    pub async fn handed_over(&self) {
        let mut receiver = self.handed_over.subscribe();
        let is_done = |now: &HandedOver| matches!(now, HandedOver::Done { .. });
        let _ = receiver.wait_for(is_done).await;
    }

    /// Returns whether the process ends once its last connection has.
    pub(crate) fn exits(&self) -> bool {
        *self.handed_over.borrow() == HandedOver::Done { exit: true }
    }

    /// Returns whether the process stays for the sake of one that takes over, though no connection is left: each
    /// step of that has a limit, and a cut ends it.
    pub(crate) fn is_handing_over(&self) -> bool {
        *self.handed_over.borrow() == HandedOver::UnderWay && self.phase() < Phase::Cut
    }

    /// Returns a receiver that tells when one of the last two answers may be another.
    pub(crate) fn watch_handover(&self) -> watch::Receiver<HandedOver> {
        self.handed_over.subscribe()
    }

    /// Starts draining; does nothing if it has begun. Must be called within a runtime, on which
    /// the clock of the later phases then runs.
    pub fn begin(&self) {
        if !self.advance(Phase::Unready) {
            return;
        }
        tracing::info!(delay = ?self.params.delay, timeout = ?self.params.timeout, "draining");
        let drain = self.clone();
        if matches!(*self.handed_over.borrow(), HandedOver::Done { .. }) {
            self.advance(Phase::Closing);
        }
        tokio::spawn(async move {
            if drain.phase() < Phase::Closing {
                tokio::time::sleep(drain.params.delay).await;
            }
            drain.advance(Phase::Closing);
            tokio::time::sleep(drain.params.timeout).await;
            drain.advance(Phase::Cut);
        });
    }

    /// Cuts everything now.
    pub fn cut(&self) {
        self.advance(Phase::Cut);
    }

    /// Waits until `phase` is reached or passed. Cancel-safe.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.phase.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }

    fn advance(&self, to: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let later = *phase < to;
            if later {
                *phase = to;
            }
            later
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: DrainParams = DrainParams {
        delay: Duration::from_secs(5),
        timeout: Duration::from_secs(30),
    };

    #[tokio::test(start_paused = true)]
    async fn phases_advance_by_the_clock() {
        let drain = Drain::new(PARAMS);
        assert_eq!(drain.phase(), Phase::Serving);
        let start = tokio::time::Instant::now();
        drain.begin();
        drain.begin();
        assert_eq!(drain.phase(), Phase::Unready);
        drain.reached(Phase::Closing).await;
        assert_eq!(start.elapsed(), PARAMS.delay);
        drain.reached(Phase::Cut).await;
        assert_eq!(start.elapsed(), PARAMS.delay + PARAMS.timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn cut_is_final() {
        let drain = Drain::new(PARAMS);
        drain.begin();
        drain.cut();
        assert_eq!(drain.phase(), Phase::Cut);
        tokio::time::sleep(PARAMS.delay * 2).await;
        assert_eq!(drain.phase(), Phase::Cut);
    }
}
