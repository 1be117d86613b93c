//! Host names of destinations, resolved as the pod's own configuration says.
//!
//! ```text
//! name ──▶ Names ──▶ /etc/hosts, search domains and servers of /etc/resolv.conf ──▶ addresses
//!            └ answers kept for their time to live, at most 1024 of them
//! ```
//!
//! The configuration is read when first needed, and again after a failure when it is older than
//! five seconds, or when [`Names::forget`] was called. Chooses no address.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::NetError;
use tokio::time::Instant;

use super::error::LookupFault;

/// Answers kept at most.
const CACHED_ANSWERS: u64 = 1024;

/// How long "no such host" is believed: a Service that was just made is found soon.
const MAX_DENIAL_AGE: Duration = Duration::from_secs(5);

/// How long an answer is believed, whatever it says itself.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(300);

/// How long the configuration is used before a failure has it read again.
const CONFIGURATION_AGE: Duration = Duration::from_secs(5);

/// Addresses of one name that are looked at.
const MAX_ADDRESSES: usize = 64;

/// Longest name there can be, RFC 1035 §2.3.4, with a final dot.
const MAX_NAME: usize = 254;

/// Resolves names on the thread that owns it.
#[derive(Debug, Default)]
pub(crate) struct Names {
    client: RefCell<Option<(TokioResolver, Instant)>>,
    /// Questions that may be under way on one connection to a server.
    max_questions: usize,
}

impl Names {
    /// Makes a resolver for up to `max_questions` names at once.
    pub(crate) fn new(max_questions: usize) -> Self {
        Self {
            client: RefCell::default(),
            max_questions,
        }
    }

    /// Returns the addresses of `host`, in the order of preference; never none. Cancel-safe: the
    /// question is dropped with the future.
    ///
    /// # Errors
    /// Why there is none. The caller bounds the time.
    pub(crate) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, LookupFault> {
        if host.len() > MAX_NAME {
            return Err(LookupFault::NoSuchHost);
        }
        let client = self.client()?;
        let answer = Box::pin(client.lookup_ip(host)).await;
        let mut addresses: Vec<IpAddr> = match answer {
            Ok(answer) => answer.iter().take(MAX_ADDRESSES).collect(),
            Err(error) => {
                tracing::debug!(host, error = %telemetry::chain(&error), "resolving failed");
                let fault = fault(&error);
                if fault != LookupFault::NoSuchHost {
                    self.forget_old();
                }
                return Err(fault);
            }
        };
        let mut seen = std::collections::BTreeSet::new();
        addresses.retain(|address| seen.insert(*address));
        if addresses.is_empty() {
            return Err(LookupFault::NoSuchHost);
        }
        Ok(addresses)
    }

    /// Reads the configuration anew for the next name.
    pub(crate) fn forget(&self) {
        self.client.borrow_mut().take();
    }

    fn forget_old(&self) {
        let mut client = self.client.borrow_mut();
        client.take_if(|(_, since)| since.elapsed() >= CONFIGURATION_AGE);
    }

    fn client(&self) -> Result<TokioResolver, LookupFault> {
        let mut client = self.client.borrow_mut();
        if let Some((client, _)) = &*client {
            return Ok(client.clone());
        }
        let made = system_client(self.max_questions).map_err(|error| {
            tracing::warn!(error = %telemetry::chain(&error), "the resolver's configuration");
            LookupFault::Misbehaving
        })?;
        *client = Some((made.clone(), Instant::now()));
        Ok(made)
    }
}

fn system_client(max_questions: usize) -> Result<TokioResolver, NetError> {
    let mut builder = TokioResolver::builder_tokio()?;
    let options = builder.options_mut();
    options.cache_size = CACHED_ANSWERS;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.negative_max_ttl = Some(MAX_DENIAL_AGE);
    options.positive_max_ttl = Some(MAX_ANSWER_AGE);
    options.max_active_requests = options.max_active_requests.max(2 * max_questions);
    builder.build()
}

fn fault(error: &NetError) -> LookupFault {
    // A name that is no name cannot be found either.
    if error.is_no_records_found() || matches!(error, NetError::Proto(_)) {
        LookupFault::NoSuchHost
    } else if matches!(error, NetError::Timeout) {
        LookupFault::Timeout
    } else {
        LookupFault::Misbehaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_cannot_be_is_no_host() {
        let names = Names::new(8);
        for host in ["x.invalid", "a..b", &"x".repeat(64), &"x.".repeat(200)] {
            assert_eq!(
                names.addresses(host).await,
                Err(LookupFault::NoSuchHost),
                "{host}"
            );
        }
    }

    #[tokio::test]
    async fn localhost_is_found_without_a_server() {
        let names = Names::new(8);
        let addresses = names.addresses("localhost").await.unwrap();
        assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
        names.forget();
        assert!(names.addresses("localhost").await.is_ok());
    }
}
