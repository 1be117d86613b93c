//! The timer of one relay: idle limit and maximum age in one runtime timer entry.
//!
//! Activity is recorded, not re-armed: when the timer fires it compares. Moves no bytes.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::outcome::{Direction, Meter, Outcome};

/// The limits in time of one relay; `None` means never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timers {
    /// Longest time without a byte either way.
    pub idle: Option<Duration>,
    /// When the connection is cut, however busy it is.
    pub deadline: Option<Instant>,
}

/// Exists only where a limit is set.
#[derive(Debug)]
pub(crate) struct Clock {
    timers: Timers,
    last_activity: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Clock {
    /// Returns a running clock; `None` when there is no limit.
    pub(crate) fn start(timers: Timers) -> Option<Box<Self>> {
        if timers.idle.is_none() && timers.deadline.is_none() {
            return None;
        }
        let now = Instant::now();
        let mut clock = Self {
            timers,
            last_activity: now,
            sleep: Box::pin(sleep_until(now)),
        };
        clock.arm();
        Some(Box::new(clock))
    }

    /// Counts `idle`, or the whole limit if that is less, as time without a byte before the start.
    pub(crate) fn resume(&mut self, idle: Duration) {
        let idle = idle.min(self.timers.idle.unwrap_or_default());
        if let Some(earlier) = self.last_activity.checked_sub(idle) {
            self.last_activity = earlier;
            self.arm();
        }
    }

    /// Returns the time since a byte last moved; zero without an idle limit.
    pub(crate) fn idle(&self) -> Duration {
        let elapsed = |_| self.last_activity.elapsed();
        self.timers.idle.map(elapsed).unwrap_or_default()
    }

    fn arm(&mut self) {
        let idle = self.timers.idle.map(|idle| self.last_activity + idle);
        let next = match (idle, self.timers.deadline) {
            (Some(idle), Some(deadline)) => idle.min(deadline),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return,
        };
        self.sleep.as_mut().reset(next);
    }

    /// Ready once a limit is reached; `moved` bytes since the last call put the idle limit off.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>, moved: u64) -> Poll<Outcome> {
        if moved > 0 && self.timers.idle.is_some() {
            self.last_activity = Instant::now();
        }
        loop {
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if self.timers.deadline.is_some_and(|deadline| now >= deadline) {
                return Poll::Ready(Outcome::MaxAge);
            }
            let idle = self.timers.idle.map(|idle| self.last_activity + idle);
            if idle.is_some_and(|due| now >= due) {
                return Poll::Ready(Outcome::IdleTimeout);
            }
            self.arm();
        }
    }
}

/// Counts what one poll moved on the way to the caller's meter.
pub(crate) struct Moved<'a, M: ?Sized> {
    pub(crate) meter: &'a M,
    pub(crate) bytes: Cell<u64>,
}

impl<'a, M: Meter + ?Sized> Moved<'a, M> {
    pub(crate) fn new(meter: &'a M) -> Self {
        Self {
            meter,
            bytes: Cell::new(0),
        }
    }
}

impl<M: Meter + ?Sized> Meter for Moved<'_, M> {
    fn relayed(&self, direction: Direction, bytes: u64, copied: bool) {
        self.bytes.set(self.bytes.get() + bytes);
        self.meter.relayed(direction, bytes, copied);
    }
}
