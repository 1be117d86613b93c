//! Host names of endpoints, kept resolved by the time to live of their answers.
//!
//! ```text
//!     Resolver (control thread) ── one task per name ─▶ addresses, swapped whole
//!     NameSet (one per snapshot) ── which names it needs ─▶ read without a lock when dialling
//! ```
//!
//! A name is asked again shortly before its answer expires. When that fails the old answer stays:
//! an address that may still work beats none. A task ends when no snapshot needs its name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// Answers are asked for again at least and at most this often, whatever they say themselves.
const SHORTEST_TTL: Duration = Duration::from_secs(1);
const LONGEST_TTL: Duration = Duration::from_secs(3600);

/// First and longest pause after a failed look-up.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Longest time for one look-up, all servers and attempts together.
const LOOKUP_LIMIT: Duration = Duration::from_secs(15);

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
    source: Source,
    names: Arc<Mutex<BTreeMap<String, Weak<Name>>>>,
}

/// Where answers come from: `/etc/resolv.conf` and `/etc/hosts`, read again after failures, or
/// given servers.
#[derive(Clone, Debug)]
enum Source {
    System,
    Fixed(Box<TokioResolver>),
}

/// The names that one snapshot needs.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    names: BTreeMap<String, Arc<Name>>,
}

#[derive(Debug)]
struct Name {
    addresses: ArcSwapOption<Vec<IpAddr>>,
    answered: Notify,
}

impl Resolver {
    /// Creates a resolver that uses the host's configuration and runs on `runtime`.
    #[must_use]
    pub fn system(runtime: Handle, family: Family) -> Self {
        Self {
            runtime,
            family,
            source: Source::System,
            names: Arc::default(),
        }
    }

    /// Creates a resolver that asks `resolver` instead of the host's configuration.
    #[must_use]
    pub fn fixed(runtime: Handle, family: Family, resolver: TokioResolver) -> Self {
        let source = Source::Fixed(Box::new(resolver));
        Self {
            runtime,
            family,
            source,
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
                let name = Arc::new(Name {
                    addresses: ArcSwapOption::empty(),
                    answered: Notify::new(),
                });
                known.insert(host.to_owned(), Arc::downgrade(&name));
                self.runtime
                    .spawn(self.clone().refresh(host.to_owned(), Arc::downgrade(&name)));
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
        let mut resolver = None;
        let mut retry = RETRY;
        while name.strong_count() > 0 {
            let pause = match self.look_up(&mut resolver, &host).await {
                Ok((addresses, ttl)) => {
                    let Some(name) = name.upgrade() else { return };
                    retry = RETRY;
                    let old = name.addresses.swap(Some(Arc::new(addresses.clone())));
                    if old.as_deref() != Some(&addresses) {
                        tracing::info!(host, ?addresses, ?ttl, "resolved");
                    }
                    name.answered.notify_waiters();
                    ttl.clamp(SHORTEST_TTL, LONGEST_TTL)
                }
                Err(error) => {
                    let stale = name.upgrade().is_some_and(|n| n.addresses.load().is_some());
                    tracing::warn!(host, error, stale_answer_kept = stale, "resolving failed");
                    resolver = None;
                    let pause = retry;
                    retry = (retry * 2).min(LONGEST_RETRY);
                    pause
                }
            };
            sleep(pause).await;
        }
    }

    async fn look_up(
        &self,
        resolver: &mut Option<TokioResolver>,
        host: &str,
    ) -> Result<(Vec<IpAddr>, Duration), String> {
        let resolver = match resolver {
            Some(resolver) => resolver,
            none => none.insert(self.source.resolver(self.family)?),
        };
        let answer = timeout(LOOKUP_LIMIT, resolver.lookup_ip(host))
            .await
            .map_err(|_| format!("no answer within {LOOKUP_LIMIT:?}"))?
            .map_err(|error| telemetry::chain(&error).to_string())?;
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

    fn wanted(&self, ip: IpAddr) -> bool {
        match self.family {
            Family::Auto => true,
            Family::Ipv4 => ip.is_ipv4(),
            Family::Ipv6 => ip.is_ipv6(),
        }
    }
}

impl Source {
    fn resolver(&self, family: Family) -> Result<TokioResolver, String> {
        match self {
            Self::Fixed(resolver) => Ok(TokioResolver::clone(resolver)),
            Self::System => {
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
        }
    }
}

impl NameSet {
    /// Returns the addresses of `name`, waiting for the first answer; empty for a name that is
    /// not in the set. The caller bounds the wait. Cancel-safe.
    pub async fn addresses(&self, name: &str) -> Arc<Vec<IpAddr>> {
        let Some(name) = self.names.get(name) else {
            return Arc::default();
        };
        loop {
            let answered = name.answered.notified();
            if let Some(addresses) = name.addresses.load_full() {
                return addresses;
            }
            answered.await;
        }
    }

    /// Tells whether every name has been answered at least once.
    #[must_use]
    pub fn resolved(&self) -> bool {
        self.names
            .values()
            .all(|name| name.addresses.load().is_some())
    }
}
