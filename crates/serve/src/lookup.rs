//! Single DNS look-ups: the client that asks by the host's configuration, and why a look-up failed.
//!
//! ```text
//!     name ─▶ LookupClient ─▶ /etc/hosts, search domains and servers of /etc/resolv.conf ─▶ addresses
//! ```
//!
//! Keeps no name resolved (`resolve` does) and bounds no time: that is the caller's.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::IntoName;
use tokio::time::Instant;

/// How long the host's configuration is used before a failed look-up has it read again.
const CONFIGURATION_AGE: Duration = Duration::from_secs(5);

/// Addresses of one answer that are used.
pub(crate) const MAX_ADDRESSES: usize = 64;

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

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The host's configuration cannot be used.
    #[error("reading the host's resolver configuration")]
    Configuration(#[source] NetError),
    /// The servers cannot be asked, or gave an unusable answer.
    #[error("asking the DNS servers")]
    Failed(#[source] NetError),
    /// It is not a domain name.
    #[error("not a name")]
    Malformed,
    /// There is no such name, or it has no address of the wanted family.
    #[error("no such name")]
    NotFound,
    /// No server answered in time.
    #[error("no DNS server answered in time")]
    Timeout,
}

impl LookupError {
    /// Returns the label for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Configuration(_) => "configuration",
            Self::Failed(_) => "failed",
            Self::Malformed => "malformed",
            Self::NotFound => "not_found",
            Self::Timeout => "timeout",
        }
    }
}

impl From<NetError> for LookupError {
    fn from(error: NetError) -> Self {
        if matches!(error, NetError::Timeout) {
            Self::Timeout
        } else if error.is_no_records_found() || error.is_nx_domain() {
            Self::NotFound
        } else {
            Self::Failed(error)
        }
    }
}

/// The addresses of a name.
#[derive(Clone, Debug)]
pub struct Answer {
    /// At least one, each once, in the order of the servers; 64 at most.
    pub addresses: Vec<IpAddr>,
    /// When it expires.
    pub valid_until: Instant,
}

type Options = Box<dyn Fn(&mut ResolverOpts) + Send + Sync>;

/// Looks names up.
pub struct LookupClient {
    /// Options on top of the host's configuration; `None` for a client that was given.
    options: Option<Options>,
    client: Mutex<Option<(TokioResolver, Instant)>>,
}

impl LookupClient {
    /// Asks for addresses of `family` by the host's configuration, with `options` changed. It is read for
    /// the first look-up, and again after a failed one.
    #[must_use]
    pub fn system(
        family: Family,
        options: impl Fn(&mut ResolverOpts) + Send + Sync + 'static,
    ) -> Self {
        let options = move |all: &mut ResolverOpts| {
            all.ip_strategy = match family {
                Family::Auto => LookupIpStrategy::Ipv4AndIpv6,
                Family::Ipv4 => LookupIpStrategy::Ipv4Only,
                Family::Ipv6 => LookupIpStrategy::Ipv6Only,
            };
            options(all);
        };
        Self {
            options: Some(Box::new(options)),
            client: Mutex::default(),
        }
    }

    /// Asks the servers that `client` knows.
    #[must_use]
    pub fn given(client: TokioResolver) -> Self {
        Self {
            options: None,
            client: Mutex::new(Some((client, Instant::now()))),
        }
    }

    /// Returns the addresses of `host`. Cancel-safe: a dropped look-up is abandoned.
    ///
    /// # Errors
    /// [`LookupError`].
    pub async fn look_up(&self, host: &str) -> Result<Answer, LookupError> {
        host.into_name().map_err(|_| LookupError::Malformed)?;
        let client = self.client()?;
        let found = match client.lookup_ip(host).await {
            Ok(found) => found,
            Err(error) => {
                let error = LookupError::from(error);
                let caches = client.options().cache_size > 0;
                // A cache full of answers is not given up for a name that does not exist.
                if !(caches && matches!(error, LookupError::NotFound)) {
                    self.forget_old();
                }
                return Err(error);
            }
        };
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.iter() {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(LookupError::NotFound);
        }
        Ok(Answer {
            addresses,
            valid_until: Instant::from_std(found.valid_until()),
        })
    }

    /// Has the host's configuration read again for the next look-up.
    pub fn forget(&self) {
        self.forget_if(|_| true);
    }

    /// As [`LookupClient::forget`], unless it was just read.
    pub(crate) fn forget_old(&self) {
        self.forget_if(|since| since.elapsed() >= CONFIGURATION_AGE);
    }

    fn forget_if(&self, old: impl FnOnce(&Instant) -> bool) {
        if self.options.is_some() {
            let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            client.take_if(|(_, since)| old(since));
        }
    }

    fn client(&self) -> Result<TokioResolver, LookupError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((client, _)) = &*client {
            return Ok(client.clone());
        }
        let mut builder = TokioResolver::builder_tokio().map_err(LookupError::Configuration)?;
        if let Some(options) = &self.options {
            options(builder.options_mut());
        }
        let made = builder.build().map_err(LookupError::Configuration)?;
        *client = Some((made.clone(), Instant::now()));
        Ok(made)
    }
}

impl fmt::Debug for LookupClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupClient").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> LookupClient {
        LookupClient::system(Family::Auto, |options| options.cache_size = 8)
    }

    #[tokio::test]
    async fn malformed_names_are_not_asked_for() {
        for host in ["a..b", &"x".repeat(64), &"x.".repeat(200)] {
            let error = client().look_up(host).await.unwrap_err();
            assert!(matches!(error, LookupError::Malformed), "{host}: {error}");
        }
    }

    #[tokio::test]
    async fn localhost_is_found_without_a_server() {
        let client = client();
        let answer = client.look_up("localhost").await.unwrap();
        assert!(answer.addresses.iter().all(IpAddr::is_loopback));
        client.forget();
        assert!(client.look_up("localhost").await.is_ok());
    }
}
