//! Waiting for something to become true, with an end to the wait.
//!
//! The only room of the workspace's test support that reads the clock and sleeps. A wait polls a
//! condition; it never stands for "long enough, surely".
#![expect(
    clippy::disallowed_methods,
    reason = "test support runs on plain threads: there is no runtime whose clock could be used"
)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        Self {
            at: Instant::now() + limit,
        }
    }

    /// Returns the time that is left, zero when it has passed.
    pub fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub fn passed(self) -> bool {
        self.left().is_zero()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    pub fn elapsed(self) -> Duration {
        self.started.elapsed()
    }
}

/// Polls `condition` every 10 ms until it holds.
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    until_some(what, limit, || condition().then_some(()))
}

/// Polls `probe` every 10 ms until it yields a value, and returns that.
pub fn until_some<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T> {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(value) = probe() {
            return Ok(value);
        }
        ensure!(!deadline.passed(), "waited {limit:?} in vain for {what}");
        pause(POLL);
    }
}

/// Polls a fallible `probe` until it succeeds, and returns its value.
pub fn until_ok<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Deadline::after(limit);
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(error) if deadline.passed() => {
                return Err(error.context(format!("waited {limit:?} in vain for {what}")));
            }
            Err(_) => pause(POLL),
        }
    }
}

/// Blocks the calling thread: for the gap between two polls and for a load's own pace, never to
/// wait for an effect.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

const POLL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_name_of_what_was_awaited() {
        let error = until("the moon", Duration::ZERO, || false).unwrap_err();
        assert!(error.to_string().contains("the moon"), "{error}");
    }

    #[test]
    fn a_probe_is_asked_again_until_it_yields() {
        let mut left = 3;
        let value = until_some("a value", Duration::from_secs(60), || {
            left -= 1;
            (left == 0).then_some("here")
        });
        assert_eq!(value.unwrap(), "here");
    }
}
