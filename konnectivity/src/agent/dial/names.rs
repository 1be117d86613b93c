//! Host names of destinations, resolved by the pod's own configuration.
//!
//! ```text
//! name ──▶ Names ──▶ serve::LookupClient ──▶ addresses, or a fault in Go's words
//!            └ answers kept for their time to live, at most 1024 of them
//! ```
//!
//! Chooses no address.

use std::net::IpAddr;
use std::time::Duration;

use serve::{Family, LookupClient, LookupError};

use super::error::LookupFault;

/// Answers kept at most.
const CACHED_ANSWERS: u64 = 1024;

/// How long "no such host" is believed: a Service that was just made is found soon.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// How long an answer is believed, whatever it says itself.
const MAX_TTL: Duration = Duration::from_secs(300);

/// Resolves names on the thread that owns it.
#[derive(Debug)]
pub(crate) struct Names(LookupClient);

impl Names {
    /// Makes a resolver for up to `max_lookups` names at once.
    pub(crate) fn new(max_lookups: usize) -> Self {
        Self(LookupClient::system(Family::Auto, move |options| {
            options.cache_size = CACHED_ANSWERS;
            options.negative_max_ttl = Some(MAX_NEGATIVE_TTL);
            options.positive_max_ttl = Some(MAX_TTL);
            // Of one connection to a server; a name has two families.
            options.max_active_requests = options.max_active_requests.max(2 * max_lookups);
        }))
    }

    /// Returns the addresses of `host`, in the order of preference; never none. Cancel-safe: the
    /// question is dropped with the future.
    ///
    /// # Errors
    /// Why there is none. The caller bounds the time.
    pub(crate) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, LookupFault> {
        let answer = Box::pin(self.0.look_up(host)).await;
        answer.map(|answer| answer.addresses).map_err(|error| {
            let chain = telemetry::chain(&error);
            if matches!(error, LookupError::Configuration(_)) {
                tracing::warn!(error = %chain, "resolving failed");
            } else {
                tracing::debug!(host, error = %chain, "resolving failed");
            }
            fault(&error)
        })
    }

    /// Reads the configuration anew for the next name.
    pub(crate) fn forget(&self) {
        self.0.forget();
    }
}

fn fault(error: &LookupError) -> LookupFault {
    // A malformed name cannot be found either.
    if matches!(error, LookupError::Malformed | LookupError::NotFound) {
        LookupFault::NoSuchHost
    } else if matches!(error, LookupError::Timeout) {
        LookupFault::Timeout
    } else {
        LookupFault::Misbehaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn localhost_is_resolved_without_server() {
        let names = Names::new(8);
        let addresses = names.addresses("localhost").await.unwrap();
        assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
        names.forget();
        assert!(names.addresses("localhost").await.is_ok());
        for host in ["x.invalid", "a..b", &"x".repeat(64), &"x.".repeat(200)] {
            let found = names.addresses(host).await;
            assert_eq!(found, Err(LookupFault::NoSuchHost), "{host}");
        }
    }
}
