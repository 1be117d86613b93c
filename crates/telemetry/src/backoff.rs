//! How long an accept loop pauses after a failure: not at all when the new connection is at fault, and
//! longer each time when descriptors or memory ran out.
//!
//! Neither accepts nor sleeps.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;

use crate::throttle::Throttle;

/// Pauses double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// At most one warning of a listener in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// The growing pause of one accept loop.
#[derive(Debug)]
pub struct AcceptBackoff {
    next: Duration,
    warnings: Throttle,
}

impl Default for AcceptBackoff {
    fn default() -> Self {
        Self {
            next: FIRST_PAUSE,
            warnings: Throttle::new(WARNING_INTERVAL),
        }
    }
}

impl AcceptBackoff {
    /// Begins anew after a connection was accepted.
    pub fn accepted(&mut self) {
        self.next = FIRST_PAUSE;
    }

    /// Returns how long to pause before accepting at `listener` again, and warns of it; `None` for an
    /// error of the connection itself, after which the next one is accepted at once.
    pub fn failed(&mut self, listener: impl Display, error: &io::Error) -> Option<Duration> {
        if is_of_connection(error) {
            return None;
        }
        if let Some(suppressed) = self.warnings.permit(Instant::now().into_std()) {
            tracing::warn!(%listener, %error, suppressed, "accept failed, pausing");
        }
        let pause = self.next;
        self.next = (pause * 2).min(MAX_PAUSE);
        Some(pause)
    }
}

/// Tells whether accepting failed because of that one connection (accept(2): treat network errors of
/// the new socket like EAGAIN).
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::PROTO
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                | Errno::TIMEDOUT
                | Errno::CONNRESET
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_double_up_to_a_second_and_begin_anew() {
        let mut backoff = AcceptBackoff::default();
        let full = io::Error::from(Errno::MFILE);
        let mut pause = || backoff.failed("a", &full).unwrap().as_millis();
        let pauses: Vec<_> = (0..10).map(|_| pause()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.accepted();
        assert_eq!(backoff.failed("a", &full), Some(FIRST_PAUSE));
    }

    #[tokio::test]
    async fn errors_of_a_connection_cause_no_pause() {
        let mut backoff = AcceptBackoff::default();
        assert_eq!(backoff.failed("a", &Errno::CONNABORTED.into()), None);
        assert_eq!(backoff.failed("a", &Errno::CONNRESET.into()), None);
    }
}
