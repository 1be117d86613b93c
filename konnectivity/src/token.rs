//! Tokens of agents: whose agent is it that shows this one?
//!
//! ```text
//!     authorization ──▶ one bearer token ──▶ cluster it may be of ──▶ its keys, what was said lately
//!           by server name (a hint), or by issuer and audience          │              └──▶ verdict
//!                                                                       └─neither can tell─┐
//!     verdict ◀── its API server ◀── rate of this cluster and source ◀─────────────────────┘
//! ```
//!
//! A token is never logged and never kept: what is remembered of it is a hash. Certificates are the
//! registry's; what an agent may do once it is let in is the server's.

mod bounded;
mod cache;
mod choose;
#[cfg(test)]
mod fixture;
mod judge;
mod jwt;
mod keys;
mod rate;
mod refused;
mod review;
mod secret;
mod strict_json;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::HeaderValue;
use knp_proto::ClusterId;
use tokio::runtime::Handle;
use tokio::time::Instant;

use self::choose::{Candidate, choose};
use self::judge::Recalled;
use self::rate::Rates;
use crate::metrics::{ServerMetrics, TokenResult};
use crate::registry::{ClusterSpec, Clusters, Registry, TokenSpec};

pub use judge::{Accepted, Judge, Review, Verdicts};
pub use jwt::TokenRules;
pub use keys::{KeySet, KeySetError};
pub use refused::TokenRefused;
pub use secret::Token;

/// Checks agents' tokens against the registry. Clones are the same.
#[derive(Clone)]
pub(crate) struct Tokens {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    metrics: ServerMetrics,
    /// Where requests to API servers are made.
    runtime: Handle,
    verdicts: Verdicts,
    rates: Mutex<Rates>,
    judges: Mutex<Judges>,
}

/// The judge of each cluster whose tokens were seen, and by which rules it was made.
type Judges = BTreeMap<ClusterId, (TokenSpec, Arc<Judge>)>;

impl Tokens {
    /// Checks by what `registry` says at that moment. Requests to API servers are made on
    /// `runtime`, for every caller.
    pub(crate) fn new(registry: Registry, metrics: ServerMetrics, runtime: Handle) -> Self {
        let inner = Inner {
            registry,
            metrics,
            runtime,
            verdicts: Verdicts::default(),
            rates: Mutex::new(Rates::new(MAX_BUCKETS)),
            judges: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Says whose agent shows `authorization`, all values of that metadata. `hint` is the cluster
    /// whose name was asked for, `source` where the connection comes from.
    ///
    /// Takes 10 s at most. Cancel-safe.
    ///
    /// # Errors
    /// Why the agent is refused.
    pub(crate) async fn check(
        &self,
        hint: Option<&Arc<ClusterSpec>>,
        authorization: &[&HeaderValue],
        source: IpAddr,
    ) -> Result<Arc<ClusterSpec>, TokenRefused> {
        let checked = self.inner.check(hint, authorization, source).await;
        self.inner.metrics.token_checked(result(&checked));
        checked.map(|(cluster, _)| cluster)
    }
}

impl Inner {
    async fn check(
        &self,
        hint: Option<&Arc<ClusterSpec>>,
        authorization: &[&HeaderValue],
        source: IpAddr,
    ) -> Result<(Arc<ClusterSpec>, Accepted), TokenRefused> {
        let token = Token::from_authorization(authorization)?;
        let clusters = self.registry.current();
        let cluster = match hint {
            // As it is now: the hint is as old as the handshake.
            Some(hint) => clusters.get(&hint.id).ok_or(TokenRefused::Unwanted)?,
            None => choose(token.as_str(), candidates(&clusters))?,
        };
        let spec = cluster.tokens.as_ref().ok_or(TokenRefused::Unwanted)?;
        let judge = self.judge(&clusters, cluster, spec);
        let accepted = match judge.recall(&token, SystemTime::now())? {
            Recalled::Accepted(accepted) => accepted,
            Recalled::Unknown(question) => {
                // Agents of many clusters may share a source, so guesses at one cluster must cost
                // no other cluster's agents anything, nor those whose tokens are told here.
                if !lock(&self.rates).take(&cluster.id, source, Instant::now()) {
                    return Err(TokenRefused::Limited);
                }
                let accepted = judge.ask(&token, question).await?;
                lock(&self.rates).give_back(&cluster.id, source, Instant::now());
                accepted
            }
        };
        Ok((Arc::clone(cluster), accepted))
    }

    /// Returns the judge of `cluster`, a new one when its rules have changed.
    fn judge(&self, clusters: &Clusters, cluster: &ClusterSpec, spec: &TokenSpec) -> Arc<Judge> {
        let mut judges = lock(&self.judges);
        match judges.get(&cluster.id) {
            Some((made_by, judge)) if made_by == spec => return Arc::clone(judge),
            Some(_) | None => {}
        }
        judges.retain(|id, _| clusters.get(id).is_some());
        let judge = Arc::new(spec.judge(&self.verdicts, self.runtime.clone()));
        judges.insert(cluster.id.clone(), (spec.clone(), Arc::clone(&judge)));
        judge
    }
}

impl TokenSpec {
    fn rules(&self) -> TokenRules {
        TokenRules {
            issuer: self.issuer.clone(),
            audience: self.audience.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    fn judge(&self, verdicts: &Verdicts, runtime: Handle) -> Judge {
        let rules = self.rules();
        let keys = self.jwks_bytes.as_deref().and_then(|bytes| {
            KeySet::parse(bytes)
                .inspect_err(|error| {
                    let error = telemetry::chain(error);
                    tracing::warn!(jwks = ?self.jwks, %error, "keys that cannot be used");
                })
                .ok()
        });
        let review = match (&self.kubeconfig, &self.jwks) {
            (Some(path), _) => Review::Kubeconfig(path.clone()),
            (None, Some(_)) => Review::Never,
            (None, None) => Review::InCluster,
        };
        Judge::new(rules, keys, review, verdicts, runtime)
    }
}

fn candidates(clusters: &Clusters) -> impl Iterator<Item = Candidate<'_, &Arc<ClusterSpec>>> {
    clusters.all().filter_map(|cluster| {
        let spec = cluster.tokens.as_ref()?;
        Some(Candidate {
            issuer: spec.issuer.as_deref(),
            audience: &spec.audience,
            username: spec.rules().username(),
            cluster,
        })
    })
}

fn result<T>(checked: &Result<(T, Accepted), TokenRefused>) -> TokenResult {
    match checked {
        Ok((_, Accepted { cached: true })) => TokenResult::Cached,
        Ok((_, Accepted { cached: false })) => TokenResult::Accepted,
        Err(TokenRefused::Busy | TokenRefused::Limited) => TokenResult::Limited,
        Err(TokenRefused::Unavailable) => TokenResult::Unavailable,
        Err(_) => TokenResult::Refused,
    }
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half done in these tables when a thread ends.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clusters and sources whose reviews are counted at a time; the pair heard of longest ago is
/// forgotten first.
const MAX_BUCKETS: usize = 10_000;
