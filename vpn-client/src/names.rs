//! The addresses of the gateway's name.
//!
//! ```text
//!   resolver ── by the time to live of its answers ─▶ current ─▶ attempts to connect
//!      ▲                                                             │ failed
//!      └───────────────── asked anew, at most each 5 s ◀─────────────┘
//! ```
//!
//! An answer may live longer than the gateway at its addresses, so that a failed attempt has the
//! name asked for again. Until there is a new answer, the old one is used. Connects nowhere.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serve::{NameSet, Resolver};
use tokio::time::{Instant, timeout};

/// How often a failure has the name asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long an attempt waits for the new answer before it uses the old one.
const PATIENCE: Duration = Duration::from_secs(1);

/// One name and what is known of it.
pub(crate) struct Names {
    host: String,
    resolver: Box<dyn Fn() -> Resolver + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    current: NameSet,
    /// Asked for after a failure.
    fresh: Option<NameSet>,
    asked: Instant,
}

impl Names {
    /// Begins to resolve `host` with what `resolver` makes; each asks for itself.
    pub(crate) fn new(
        host: String,
        resolver: impl Fn() -> Resolver + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            current: resolver().names([host.as_str()]),
            fresh: None,
            asked: Instant::now(),
        };
        Self {
            host,
            resolver: Box::new(resolver),
            state: Mutex::new(state),
        }
    }

    /// Returns the set to look the name up in. Cancel-safe.
    pub(crate) async fn current(&self) -> NameSet {
        let fresh = self.with(|state| state.fresh.clone());
        if let Some(fresh) = fresh {
            let answer = timeout(PATIENCE, fresh.addresses(&self.host)).await;
            if answer.is_ok_and(|addresses| !addresses.is_empty()) {
                self.with(|state| {
                    if state.fresh.take().is_some() {
                        state.current = fresh;
                    }
                });
            }
        }
        self.with(|state| state.current.clone())
    }

    /// Records that nobody could be reached: what is known may be out of date.
    pub(crate) fn doubt(&self) {
        self.with(|state| {
            if state.asked.elapsed() >= ASK_AGAIN {
                state.asked = Instant::now();
                state.fresh = Some((self.resolver)().names([self.host.as_str()]));
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Names").field(&self.host).finish()
    }
}

#[cfg(test)]
mod tests;
