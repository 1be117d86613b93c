//! Host names of endpoints, kept resolved by the time to live of their answers.
//!
//! ```text
//!     Resolver (control thread) ── one task per name ─▶ addresses, swapped whole
//!        └ a few look-ups at once, by one shared client            ▲ refresh, after failed connects
//!     NameSet (one per snapshot) ── which names it needs ─▶ read without a lock when dialing
//! ```
//!
//! A name is looked up again shortly before its answer expires. When that fails, the old answer stays:
//! an address that may still work beats none. A task ends when no snapshot needs its name.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use telemetry::lock;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::lookup::{Family, LookupClient, LookupError};

/// Bounds of the time until an answer expires, whatever it says itself.
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(3600);

/// First and longest pause after a failed look-up.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// How often [`NameSet::refresh`] has a name looked up at most.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// How long a reader waits for the look-up that a refresh began before it uses the old answer.
const REFRESH_WAIT: Duration = Duration::from_secs(1);

/// Longest time for one look-up, all servers and attempts together.
const LOOKUP_LIMIT: Duration = Duration::from_secs(15);

/// Look-ups at once; each may hold two sockets for each server it asks.
const LOOKUPS: usize = 16;

/// Keeps names resolved on the control runtime.
#[derive(Clone, Debug)]
pub struct Resolver {
    runtime: Handle,
    client: Arc<LookupClient>,
    lookups: Arc<Semaphore>,
    names: Arc<Mutex<BTreeMap<String, Weak<Name>>>>,
}

/// The names that one snapshot needs.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    names: BTreeMap<String, Arc<Name>>,
}

#[derive(Debug)]
struct Name {
    state: ArcSwap<State>,
    /// Notifies readers of each look-up's end.
    looked_up: Notify,
    /// Has the name looked up before its answer expires.
    wake: Arc<Notify>,
    /// Such a look-up has not ended yet.
    refreshing: AtomicBool,
    /// When the last look-up began.
    asked: Mutex<Instant>,
    /// Dropped with the name, which ends its task.
    _needed: oneshot::Sender<()>,
}

/// Addresses, and for how long they are good.
type Found = (Vec<IpAddr>, Duration);

#[derive(Clone, Debug, Default)]
struct State {
    /// Of the last answer.
    addresses: Arc<Vec<IpAddr>>,
    /// Looked up at least once, with or without an answer.
    looked_up: bool,
}

impl Resolver {
    /// Creates a resolver that uses the host's configuration and runs on `runtime`.
    pub fn system(runtime: Handle, family: Family) -> Self {
        // Answers are kept here.
        let client = LookupClient::system(family, |options| options.cache_size = 0);
        Self::new(runtime, client)
    }

    fn new(runtime: Handle, client: LookupClient) -> Self {
        Self {
            runtime,
            client: Arc::new(client),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            names: Arc::default(),
        }
    }

    /// Returns the set of `wanted` names, kept resolved for as long as the set lives. Names that
    /// another living set shares keep their answers.
    pub fn names<'a>(&self, wanted: impl IntoIterator<Item = &'a str>) -> NameSet {
        let mut known = lock(&self.names);
        known.retain(|_, name| name.strong_count() > 0);
        let wanted: BTreeSet<&str> = wanted.into_iter().collect();
        let names = wanted.into_iter().map(|host| {
            let name = known.get(host).and_then(Weak::upgrade).unwrap_or_else(|| {
                let name = self.keep_resolved(host);
                known.insert(host.to_owned(), Arc::downgrade(&name));
                name
            });
            (host.to_owned(), name)
        });
        NameSet {
            names: names.collect(),
        }
    }

    /// Starts the task of a name.
    fn keep_resolved(&self, host: &str) -> Arc<Name> {
        let (needed, unneeded) = oneshot::channel();
        let name = Arc::new(Name {
            state: ArcSwap::default(),
            looked_up: Notify::new(),
            wake: Arc::default(),
            refreshing: AtomicBool::new(false),
            asked: Mutex::new(Instant::now()),
            _needed: needed,
        });
        let (weak, wake) = (Arc::downgrade(&name), Arc::clone(&name.wake));
        let task = self.clone().run(host.to_owned(), weak, wake);
        self.runtime.spawn(async move {
            tokio::select! {
                _ = unneeded => {}
                () = task => {}
            }
        });
        name
    }

    /// Looks `host` up again and again until no set needs it.
    async fn run(self, host: String, name: Weak<Name>, wake: Arc<Notify>) {
        let mut retry = FIRST_RETRY;
        loop {
            if let Some(name) = name.upgrade() {
                *lock(&name.asked) = Instant::now();
            }
            let answer = self.look_up_anew(&host, &wake).await;
            let Some(name) = name.upgrade() else { return };
            let old = name.state.load_full();
            let (addresses, pause) = match answer {
                Ok((addresses, ttl)) => {
                    retry = FIRST_RETRY;
                    if *old.addresses != addresses {
                        tracing::info!(host, ?addresses, ?ttl, "resolved");
                    }
                    let pause = shortly_before(ttl.clamp(MIN_TTL, MAX_TTL), &host);
                    (Arc::new(addresses), pause)
                }
                Err(error) => {
                    let stale = !old.addresses.is_empty();
                    tracing::warn!(host, error, stale_answer_kept = stale, "resolving failed");
                    let pause = retry;
                    retry = (retry * 2).min(MAX_RETRY);
                    (Arc::clone(&old.addresses), pause)
                }
            };
            name.state.store(Arc::new(State {
                addresses,
                looked_up: true,
            }));
            name.refreshing.store(false, Ordering::Release);
            name.looked_up.notify_waiters();
            // The task must not keep the name alive while it waits.
            drop((name, old));
            tokio::select! {
                () = sleep(pause) => {}
                () = wake.notified() => self.client.forget_old(),
            }
        }
    }

    /// Looks `host` up; begins anew, once, when it is asked for again while the servers are silent,
    /// since a new client may get through to them.
    async fn look_up_anew(&self, host: &str, wake: &Notify) -> Result<Found, String> {
        tokio::select! {
            answer = self.look_up(host) => return answer,
            () = wake.notified() => self.client.forget_old(),
        }
        self.look_up(host).await
    }

    async fn look_up(&self, host: &str) -> Result<Found, String> {
        // The semaphore is never closed.
        let _permit = self.lookups.acquire().await;
        let answer = timeout(LOOKUP_LIMIT, self.client.look_up(host)).await;
        let answer = answer.unwrap_or_else(|_| {
            self.client.forget_old();
            Err(LookupError::Timeout)
        });
        let answer = answer.map_err(|error| telemetry::chain(&error).to_string())?;
        let mut addresses = answer.addresses;
        addresses.sort_unstable();
        let ttl = answer.valid_until;
        Ok((addresses, ttl.saturating_duration_since(Instant::now())))
    }
}

/// Returns 85 to 95 % of `ttl`, so that names that were looked up together do not stay together.
fn shortly_before(ttl: Duration, host: &str) -> Duration {
    let spread = RandomState::new().hash_one(host) % 100;
    ttl.mul_f64(0.85 + spread as f64 / 1000.0)
}

impl NameSet {
    /// Returns the addresses of `name`, waiting until it was looked up once, and up to a second for a
    /// look-up that [`NameSet::refresh`] began; empty without an answer, and for a name that is not in
    /// the set. The caller bounds the wait. Cancel-safe.
    pub async fn addresses(&self, name: &str) -> Arc<Vec<IpAddr>> {
        let Some(name) = self.names.get(name) else {
            return Arc::default();
        };
        name.until(|| name.state.load().looked_up).await;
        if name.refreshing.load(Ordering::Acquire) {
            let refreshed = name.until(|| !name.refreshing.load(Ordering::Acquire));
            drop(timeout(REFRESH_WAIT, refreshed).await);
        }
        Arc::clone(&name.state.load().addresses)
    }

    /// Has `name` looked up before its answer expires, since connecting to its addresses failed; not
    /// more often than every five seconds.
    pub fn refresh(&self, name: &str) {
        if let Some(name) = self.names.get(name) {
            let mut asked = lock(&name.asked);
            if asked.elapsed() >= REFRESH_INTERVAL {
                *asked = Instant::now();
                name.refreshing.store(true, Ordering::Release);
                name.wake.notify_one();
            }
        }
    }

    /// Returns the addresses of `name` as far as they are known now; empty without an answer, and
    /// for a name that is not in the set.
    pub fn known(&self, name: &str) -> Arc<Vec<IpAddr>> {
        let name = self.names.get(name);
        name.map(|name| Arc::clone(&name.state.load().addresses))
            .unwrap_or_default()
    }

    /// Waits until every name has been answered at least once. The caller bounds the wait.
    /// Cancel-safe.
    pub async fn answered(&self) {
        for name in self.names.values() {
            name.until(|| name.is_answered()).await;
        }
    }

    /// Tells whether every name has been answered at least once.
    pub fn resolved(&self) -> bool {
        self.names.values().all(|name| name.is_answered())
    }
}

impl Name {
    fn is_answered(&self) -> bool {
        !self.state.load().addresses.is_empty()
    }

    /// Waits until `done`, which only the end of a look-up changes. Cancel-safe.
    async fn until(&self, done: impl Fn() -> bool) {
        loop {
            let looked_up = self.looked_up.notified();
            if done() {
                return;
            }
            looked_up.await;
        }
    }
}

#[cfg(test)]
mod tests;
