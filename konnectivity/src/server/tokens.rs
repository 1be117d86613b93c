//! Checks the tokens that agents show: which tenant one belongs to, and whether it is good.
//!
//! ```text
//!     authorization ──▶ one bearer token ──▶ tenant it may be of ──▶ its keys, what was said lately
//!           by server name (a hint), or by issuer and audience          │              └──▶ verdict
//!                                                                       └─neither can tell─┐
//!     verdict ◀── its API server ◀── rate of this tenant and source ◀──────────────────────┘
//! ```
//!
//! Certificates are the registry's; what an agent may do once it is let in is not decided here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http::HeaderValue;
use knp_proto::TenantId;
use telemetry::lock;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::metrics::{ServerMetrics, TokenResult};
use crate::registry::{Registry, TenantSpec, Tenants, TokenSpec};
use crate::token::{
    Accepted, Candidate, Judge, Rates, Recalled, Review, Token, TokenRefused, Verdicts, choose,
};

/// Checks agents' tokens against the registry.
pub(crate) struct Tokens {
    registry: Arc<Registry>,
    metrics: Arc<ServerMetrics>,
    /// Where requests to API servers are made.
    runtime: Handle,
    verdicts: Verdicts,
    rates: Mutex<Rates>,
    judges: Mutex<Judges>,
}

/// The judge of each tenant whose tokens were seen, and by which rules it was made.
type Judges = BTreeMap<TenantId, (TokenSpec, Arc<Judge>)>;

impl Tokens {
    /// Checks by what `registry` says at that moment. Requests to API servers are made on
    /// `runtime`, for every caller.
    pub(crate) fn new(
        registry: Arc<Registry>,
        metrics: Arc<ServerMetrics>,
        runtime: Handle,
    ) -> Self {
        Self {
            registry,
            metrics,
            runtime,
            verdicts: Verdicts::default(),
            rates: Mutex::default(),
            judges: Mutex::default(),
        }
    }

    /// Returns the tenant whose agent shows `authorization`, all values of that metadata. `hint` is the tenant
    /// whose name was asked for, `source` where the connection comes from.
    ///
    /// Takes 10 s at most. Cancel-safe.
    ///
    /// # Errors
    /// Why the agent is refused.
    pub(crate) async fn check(
        &self,
        hint: Option<&Arc<TenantSpec>>,
        authorization: &[&HeaderValue],
        source: IpAddr,
    ) -> Result<Arc<TenantSpec>, TokenRefused> {
        let checked = self.check_uncounted(hint, authorization, source).await;
        self.metrics.token_checked(result(&checked));
        checked.map(|(tenant, _)| tenant)
    }

    async fn check_uncounted(
        &self,
        hint: Option<&Arc<TenantSpec>>,
        authorization: &[&HeaderValue],
        source: IpAddr,
    ) -> Result<(Arc<TenantSpec>, Accepted), TokenRefused> {
        let token = Token::from_authorization(authorization)?;
        let tenants = self.registry.current();
        let tenant = match hint {
            // As it is now: the hint is as old as the handshake.
            Some(hint) => tenants.get(&hint.id).ok_or(TokenRefused::Unwanted)?,
            None => choose(token.as_str(), candidates(&tenants))?,
        };
        let spec = tenant.tokens.as_ref().ok_or(TokenRefused::Unwanted)?;
        let judge = self.judge(&tenants, tenant, spec);
        let accepted = match judge.recall(&token, SystemTime::now())? {
            Recalled::Accepted(accepted) => accepted,
            Recalled::Unknown(question) => {
                // Agents of many tenants may share a source, so guesses at one tenant must cost
                // no other tenant's agents anything, nor those whose tokens are told here.
                if !lock(&self.rates).take(&tenant.id, source, Instant::now()) {
                    return Err(TokenRefused::Limited);
                }
                let accepted = judge.ask(&token, question).await?;
                lock(&self.rates).give_back(&tenant.id, source, Instant::now());
                accepted
            }
        };
        Ok((Arc::clone(tenant), accepted))
    }

    /// Returns the judge of `tenant`, a new one when its rules have changed.
    fn judge(&self, tenants: &Tenants, tenant: &TenantSpec, spec: &TokenSpec) -> Arc<Judge> {
        let mut judges = lock(&self.judges);
        match judges.get(&tenant.id) {
            Some((made_by, judge)) if made_by == spec => return Arc::clone(judge),
            Some(_) | None => {}
        }
        judges.retain(|id, _| tenants.get(id).is_some());
        let judge = Arc::new(spec.judge(&self.verdicts, self.runtime.clone()));
        judges.insert(tenant.id.clone(), (spec.clone(), Arc::clone(&judge)));
        judge
    }
}

impl TokenSpec {
    fn judge(&self, verdicts: &Verdicts, runtime: Handle) -> Judge {
        let review = match (&self.kubeconfig, &self.keys) {
            (Some(path), _) => Review::Kubeconfig(path.clone()),
            (None, Some(_)) => Review::Never,
            (None, None) => Review::InCluster,
        };
        let (rules, keys) = (self.rules.clone(), self.keys.clone());
        Judge::new(rules, keys, review, verdicts, runtime)
    }
}

fn candidates(tenants: &Tenants) -> impl Iterator<Item = Candidate<'_, &Arc<TenantSpec>>> {
    tenants.all().filter_map(|tenant| {
        let rules = &tenant.tokens.as_ref()?.rules;
        Some(Candidate {
            issuer: rules.issuer.as_deref(),
            audience: &rules.audience,
            username: rules.username(),
            tenant,
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

#[cfg(test)]
mod tests {
    mod tenants;
}
