//! Decides whether a token is one of a tenant's agents.
//!
//! ```text
//!     token ──recall──▶ keys known? ──yes──▶ signature, claims ─────────────▶ verdict
//!                          └──no key of that name, or none at all──▶ cache ──▶ verdict
//!                                                                     └─none─▶ Question
//!     Question ──ask──▶ review ──────────────────────────────────────────────▶ verdict
//! ```
//!
//! Which tenant a token may be of is decided before; how often one may ask is decided between the
//! two, since a review costs the API server.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use telemetry::lock;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::cache::{self, Cache};
use super::jwt::{Jwt, TokenRules};
use super::keys::KeySet;
use super::refused::TokenRefused;
use super::review::Reviewer;
use super::secret::Token;
use crate::api_server::ApiServer;

/// Who can tell whether a token is good, besides keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    /// The API server of the cluster in which this is a pod.
    InCluster,
    /// The API server of a kubeconfig.
    Kubeconfig(PathBuf),
    /// None.
    Never,
}

/// What API servers have said, of all tenants: at most 10,000 verdicts. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    cache: Arc<Mutex<Cache>>,
    /// Tells judges apart, so that none is given another's verdict.
    judges: Arc<AtomicU64>,
}

/// Judges the tokens of one tenant's agents.
pub struct Judge {
    rules: TokenRules,
    keys: Option<KeySet>,
    reviewer: Option<Arc<Reviewer>>,
    verdicts: Verdicts,
    serial: u64,
}

/// A token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The API server said so a short while ago.
    pub cached: bool,
}

impl Judge {
    /// Judges by `keys`, and where these cannot tell as `review` says, with requests on `runtime`.
    #[must_use]
    pub fn new(
        rules: TokenRules,
        keys: Option<KeySet>,
        review: Review,
        verdicts: &Verdicts,
        runtime: Handle,
    ) -> Self {
        let api = match review {
            Review::InCluster => Some(ApiServer::new(None)),
            Review::Kubeconfig(path) => Some(ApiServer::new(Some(path))),
            Review::Never => None,
        };
        Self {
            rules,
            keys,
            reviewer: api.map(|api| Reviewer::new(api, runtime)),
            serial: verdicts.judges.fetch_add(1, Ordering::Relaxed),
            verdicts: verdicts.clone(),
        }
    }

    /// Judges `token` at `now`. Takes 10 s at most; cancel-safe.
    ///
    /// # Errors
    /// Why it is refused: `Unavailable` or `Busy` when that says nothing about the token.
    pub async fn judge(&self, token: &Token, now: SystemTime) -> Result<Accepted, TokenRefused> {
        match self.recall(token, now)? {
            Recalled::Accepted(accepted) => Ok(accepted),
            Recalled::Unknown(question) => self.ask(token, question).await,
        }
    }

    /// Judges `token` at `now` by what is known here, without a review.
    ///
    /// # Errors
    /// Why it is refused, as far as that can be told.
    pub(crate) fn recall(&self, token: &Token, now: SystemTime) -> Result<Recalled, TokenRefused> {
        let jwt = Jwt::read(token.as_str());
        if let Some(keys) = &self.keys {
            let jwt = jwt.as_ref().map_err(Clone::clone)?;
            match keys.verify(jwt) {
                // The set may be older than the key: who else knows it may be asked.
                Err(TokenRefused::Key) if self.reviewer.is_some() => {}
                verified => {
                    verified.and_then(|()| jwt.claims.check(&self.rules, now))?;
                    return Ok(Recalled::Accepted(Accepted { cached: false }));
                }
            }
        }
        if self.reviewer.is_none() {
            return Err(TokenRefused::Unavailable);
        }
        if self.rules.issuer.is_some() {
            let claims = &jwt.as_ref().map_err(Clone::clone)?.claims;
            // What the API server confirms is then this issuer's.
            if claims.issuer != self.rules.issuer {
                return Err(TokenRefused::Issuer);
            }
        }
        let key = cache::key(self.serial, token.as_str());
        if let Some(verdict) = lock(&self.verdicts.cache).get(&key, Instant::now()) {
            return verdict.map(|()| Recalled::Accepted(Accepted { cached: true }));
        }
        let claims = jwt.ok().map(|jwt| jwt.claims);
        Ok(Recalled::Unknown(Question {
            key,
            left: claims.as_ref().and_then(|claims| claims.left(now)),
            names_audience: claims.is_some_and(|claims| claims.is_for(&self.rules.audience)),
        }))
    }

    /// Asks an API server about `token`. Takes 10 s at most; cancel-safe.
    ///
    /// # Errors
    /// Why it is refused: `Unavailable` or `Busy` when that says nothing about the token.
    pub(crate) async fn ask(
        &self,
        token: &Token,
        question: Question,
    ) -> Result<Accepted, TokenRefused> {
        let Some(reviewer) = &self.reviewer else {
            return Err(TokenRefused::Unavailable);
        };
        // What a verdict lasts counts from when it was asked for.
        let asked = Instant::now();
        let review = reviewer.review(token, &self.rules, question.names_audience);
        let verdict = review.await;
        let mut verdicts = lock(&self.verdicts.cache);
        verdicts.put(question.key, verdict.clone(), question.left, asked);
        verdict.map(|()| Accepted { cached: false })
    }
}

/// What is known of a token without asking.
#[derive(Debug)]
pub(crate) enum Recalled {
    /// It is good.
    Accepted(Accepted),
    /// Only an API server can tell.
    Unknown(Question),
}

/// What is to be asked about a token, and how the answer is kept.
#[derive(Debug)]
pub(crate) struct Question {
    key: cache::Key,
    /// How long the token lasts, if it says so.
    left: Option<Duration>,
    /// Whether the token itself says that it is for the tenant's audience.
    names_audience: bool,
}
