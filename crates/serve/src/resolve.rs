//! Host names of endpoints, kept resolved by the time to live of their answers.
//!
//! ```text
//!     Resolver (control thread) ── one task per name ─▶ addresses, swapped whole
//!        └ a few look-ups at once, by one shared client
//!     NameSet (one per snapshot) ── which names it needs ─▶ read without a lock when dialling
//! ```
//!
//! A name is asked again shortly before its answer expires. When that fails the old answer stays:
//! an address that may still work beats none. A task ends when no snapshot needs its name.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// Answers are asked for again at least and at most this often, whatever they say themselves.
const SHORTEST_TTL: Duration = Duration::from_secs(1);
const LONGEST_TTL: Duration = Duration::from_secs(3600);

/// First and longest pause after a failed look-up.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Longest time for one look-up, all servers and attempts together.
const LOOKUP_LIMIT: Duration = Duration::from_secs(15);

/// Look-ups at once; each may hold two sockets for each server it asks.
const LOOKUPS: usize = 16;

/// How long the host's resolver configuration is used before a failure has it read again.
const CONFIGURATION_AGE: Duration = Duration::from_secs(5);

/// Addresses kept of one answer.
const MOST_ADDRESSES: usize = 64;

/// Which addresses of a name are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    #[default]
    Auto,
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
}

/// Keeps names resolved on the control runtime.
#[derive(Clone, Debug)]
pub struct Resolver {
    runtime: Handle,
    family: Family,
    client: Arc<Mutex<Client>>,
    lookups: Arc<Semaphore>,
    names: Arc<Mutex<BTreeMap<String, Weak<Name>>>>,
}

/// Who is asked: the servers of `/etc/resolv.conf` (and `/etc/hosts`), read again after failures,
/// or given ones.
#[derive(Debug)]
enum Client {
    Given(TokioResolver),
    System(Option<(TokioResolver, Instant)>),
}

/// The names that one snapshot needs.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    names: BTreeMap<String, Arc<Name>>,
}

#[derive(Debug)]
struct Name {
    state: ArcSwap<State>,
    asked: Notify,
    /// Dropped with the name, which ends its task.
    _needed: oneshot::Sender<()>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Of the last answer.
    addresses: Arc<Vec<IpAddr>>,
    /// Asked at least once, with or without an answer.
    asked: bool,
}

impl Resolver {
    /// Creates a resolver that uses the host's configuration and runs on `runtime`.
    #[must_use]
    pub fn system(runtime: Handle, family: Family) -> Self {
        Self::new(runtime, family, Client::System(None))
    }

    /// Creates a resolver that asks `client` instead of the servers of the host's configuration.
    #[must_use]
    pub fn given(runtime: Handle, family: Family, client: TokioResolver) -> Self {
        Self::new(runtime, family, Client::Given(client))
    }

    fn new(runtime: Handle, family: Family, client: Client) -> Self {
        let client = Arc::new(Mutex::new(client));
        let lookups = Arc::new(Semaphore::new(LOOKUPS));
        Self {
            runtime,
            family,
            client,
            lookups,
            names: Arc::default(),
        }
    }

    /// Returns the set of `wanted` names, kept resolved for as long as the set lives. Names that
    /// another living set shares keep their answers.
    #[must_use]
    pub fn names<'a>(&self, wanted: impl IntoIterator<Item = &'a str>) -> NameSet {
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, name| name.strong_count() > 0);
        let wanted: BTreeSet<&str> = wanted.into_iter().collect();
        let names = wanted.into_iter().map(|host| {
            let name = known.get(host).and_then(Weak::upgrade).unwrap_or_else(|| {
                let (needed, unneeded) = oneshot::channel();
                let name = Arc::new(Name {
                    state: ArcSwap::default(),
                    asked: Notify::new(),
                    _needed: needed,
                });
                known.insert(host.to_owned(), Arc::downgrade(&name));
                let refresh = self.clone().refresh(host.to_owned(), Arc::downgrade(&name));
                self.runtime.spawn(async move {
                    tokio::select! {
                        _ = unneeded => {}
                        () = refresh => {}
                    }
                });
                name
            });
            (host.to_owned(), name)
        });
        NameSet {
            names: names.collect(),
        }
    }

    /// Asks for `host` again and again until nobody needs it.
    async fn refresh(self, host: String, name: Weak<Name>) {
        let mut retry = RETRY;
        loop {
            let answer = self.look_up(&host).await;
            let Some(name) = name.upgrade() else { return };
            let old = name.state.load_full();
            let pause = match answer {
                Ok((addresses, ttl)) => {
                    retry = RETRY;
                    if *old.addresses != addresses {
                        tracing::info!(host, ?addresses, ?ttl, "resolved");
                    }
                    let addresses = Arc::new(addresses);
                    name.state.store(Arc::new(State {
                        addresses,
                        asked: true,
                    }));
                    shortly_before(ttl.clamp(SHORTEST_TTL, LONGEST_TTL), &host)
                }
                Err(error) => {
                    let stale = !old.addresses.is_empty();
                    tracing::warn!(host, error, stale_answer_kept = stale, "resolving failed");
                    let addresses = Arc::clone(&old.addresses);
                    name.state.store(Arc::new(State {
                        addresses,
                        asked: true,
                    }));
                    let pause = retry;
                    retry = (retry * 2).min(LONGEST_RETRY);
                    pause
                }
            };
            name.asked.notify_waiters();
            drop((name, old));
            sleep(pause).await;
        }
    }

    async fn look_up(&self, host: &str) -> Result<(Vec<IpAddr>, Duration), String> {
        // The semaphore is never closed.
        let _place = self.lookups.acquire().await;
        let client = self.client()?;
        let answer = timeout(LOOKUP_LIMIT, client.lookup_ip(host))
            .await
            .map_err(|_| format!("no answer within {LOOKUP_LIMIT:?}"))
            .and_then(|answer| answer.map_err(|error| telemetry::chain(&error).to_string()));
        let answer = answer.inspect_err(|_| self.forget_old_client())?;
        let mut addresses: Vec<IpAddr> = answer.iter().filter(|ip| self.wanted(*ip)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MOST_ADDRESSES);
        if addresses.is_empty() {
            return Err("the answer holds no address of the wanted family".to_owned());
        }
        let ttl = answer
            .valid_until()
            .saturating_duration_since(Instant::now().into_std());
        Ok((addresses, ttl))
    }

    /// Returns the shared client, made from the host's configuration where there is none.
    fn client(&self) -> Result<TokioResolver, String> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *client {
            Client::Given(given) => Ok(given.clone()),
            Client::System(Some((made, _))) => Ok(made.clone()),
            Client::System(none) => {
                let made = system_client(self.family)?;
                *none = Some((made.clone(), Instant::now()));
                Ok(made)
            }
        }
    }

    /// After a failure the host's configuration is read again, unless it just was.
    fn forget_old_client(&self) {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Client::System(made) = &mut *client {
            made.take_if(|(_, since)| since.elapsed() >= CONFIGURATION_AGE);
        }
    }

    fn wanted(&self, ip: IpAddr) -> bool {
        match self.family {
            Family::Auto => true,
            Family::Ipv4 => ip.is_ipv4(),
            Family::Ipv6 => ip.is_ipv6(),
        }
    }
}

fn system_client(family: Family) -> Result<TokioResolver, String> {
    let mut builder = TokioResolver::builder_tokio()
        .map_err(|error| format!("the host's resolver configuration: {error}"))?;
    let options = builder.options_mut();
    options.cache_size = 0;
    options.ip_strategy = match family {
        Family::Auto => LookupIpStrategy::Ipv4AndIpv6,
        Family::Ipv4 => LookupIpStrategy::Ipv4Only,
        Family::Ipv6 => LookupIpStrategy::Ipv6Only,
    };
    builder.build().map_err(|error| error.to_string())
}

/// Returns 85 to 95 % of `ttl`, so that names which were asked together are not for ever.
fn shortly_before(ttl: Duration, host: &str) -> Duration {
    let spread = RandomState::new().hash_one(host) % 100;
    ttl.mul_f64(0.85 + spread as f64 / 1000.0)
}

impl NameSet {
    /// Returns the addresses of `name`, waiting until it was asked for once; empty without an
    /// answer, and for a name that is not in the set. The caller bounds the wait. Cancel-safe.
    pub async fn addresses(&self, name: &str) -> Arc<Vec<IpAddr>> {
        let Some(name) = self.names.get(name) else {
            return Arc::default();
        };
        loop {
            let asked = name.asked.notified();
            let state = name.state.load();
            if state.asked {
                return Arc::clone(&state.addresses);
            }
            drop(state);
            asked.await;
        }
    }

    /// Returns the addresses of `name` as far as they are known now; empty without an answer, and
    /// for a name that is not in the set.
    #[must_use]
    pub fn known(&self, name: &str) -> Arc<Vec<IpAddr>> {
        let name = self.names.get(name);
        name.map(|name| Arc::clone(&name.state.load().addresses))
            .unwrap_or_default()
    }

    /// Waits until every name has been answered at least once. The caller bounds the wait.
    /// Cancel-safe.
    pub async fn answered(&self) {
        for name in self.names.values() {
            loop {
                let asked = name.asked.notified();
                if !name.state.load().addresses.is_empty() {
                    break;
                }
                asked.await;
            }
        }
    }

    /// Tells whether every name has been answered at least once.
    #[must_use]
    pub fn resolved(&self) -> bool {
        self.names
            .values()
            .all(|name| !name.state.load().addresses.is_empty())
    }
}
