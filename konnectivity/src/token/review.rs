//! Asks an API server whose a token is (TokenReview, `authentication.k8s.io/v1`).
//!
//! ```text
//!     token ──one of 256 that wait──▶ one of 16 under way ──TokenReview, at most 10 s──▶ API server
//! ```
//!
//! Requests are made on one runtime. Remembers nothing: that is `cache`'s.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, PostParams};
use telemetry::Throttle;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::jwt::TokenRules;
use super::refused::TokenRefused;
use super::secret::Token;
use crate::api_server::{ApiServer, ApiServerError};
use crate::link::now;

/// Asks one API server.
pub(super) struct Reviewer {
    api: ApiServer,
    runtime: Handle,
    waiting: Semaphore,
    under_way: Semaphore,
    complaints: Throttle,
}

#[derive(Debug, Error)]
enum ReviewError {
    #[error(transparent)]
    Client(#[from] ApiServerError),
    #[error("no answer within {REVIEW_LIMIT:?}")]
    Late,
    #[error("asking the API server to review a token")]
    Request(#[from] Box<kube::Error>),
    #[error("the API server answered without a status")]
    Status,
}

impl Reviewer {
    /// Asks `api`, on `runtime`.
    pub(super) fn new(api: ApiServer, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            api,
            runtime,
            waiting: Semaphore::new(MAX_WAITING),
            under_way: Semaphore::new(MAX_UNDER_WAY),
            complaints: Throttle::new(COMPLAINT_PERIOD),
        })
    }

    /// Asks whether `token`, which itself names the audience of `rules` or does not, is as those
    /// demand. Takes 10 s at most; cancel-safe.
    pub(super) async fn review(
        self: &Arc<Self>,
        token: &Token,
        rules: &TokenRules,
        names_audience: bool,
    ) -> Result<(), TokenRefused> {
        let (this, token, rules) = (Arc::clone(self), token.clone(), rules.clone());
        let review = async move {
            let status = this.status(&token, &rules).await?;
            judge(&status, &rules, names_audience)
        };
        // The set aborts its task when the caller stops waiting.
        let mut task = JoinSet::new();
        task.spawn_on(review, &self.runtime);
        let reviewed = task.join_next().await.and_then(Result::ok);
        // It ends otherwise only when the process does.
        reviewed.unwrap_or(Err(TokenRefused::Unavailable))
    }

    async fn status(
        &self,
        token: &Token,
        rules: &TokenRules,
    ) -> Result<TokenReviewStatus, TokenRefused> {
        let _waiting = self.waiting.try_acquire().map_err(|_| TokenRefused::Busy)?;
        let asked = timeout(REVIEW_LIMIT, async {
            let _under_way = self.under_way.acquire().await;
            self.ask(token, rules).await
        });
        let status = asked.await.unwrap_or(Err(ReviewError::Late));
        status.map_err(|error| {
            if self.complaints.permit(now()).is_some() {
                tracing::warn!(error = %telemetry::chain(&error), "reviewing tokens failed");
            }
            TokenRefused::Unavailable
        })
    }

    async fn ask(
        &self,
        token: &Token,
        rules: &TokenRules,
    ) -> Result<TokenReviewStatus, ReviewError> {
        let (client, _) = self.api.client().await?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![rules.audience.clone()]),
                token: token.as_str().to_owned(),
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(client);
        let created = reviews.create(&PostParams::default(), &review).await;
        created.map_err(Box::new)?.status.ok_or(ReviewError::Status)
    }
}

/// Returns what an answer means: only what the API server vouches for without reserve is good.
fn judge(
    status: &TokenReviewStatus,
    rules: &TokenRules,
    names_audience: bool,
) -> Result<(), TokenRefused> {
    let failed = status.error.as_ref().is_some_and(|text| !text.is_empty());
    if failed || status.authenticated != Some(true) {
        return Err(TokenRefused::Unauthenticated);
    }
    // An API server that knows no audiences leaves them out and vouches for what the token says,
    // so that the token must say whom it is for.
    let audiences = status.audiences.as_deref().unwrap_or_default();
    let for_us = audiences.contains(&rules.audience) || audiences.is_empty() && names_audience;
    if !for_us {
        return Err(TokenRefused::Audience);
    }
    let username = status.user.as_ref().and_then(|user| user.username.as_ref());
    if username != Some(&rules.username()) {
        return Err(TokenRefused::Subject);
    }
    Ok(())
}

/// How long a review may take, from when it is asked for.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);

/// Reviews of one tenant's tokens that are under way at a time, and those with the ones that wait
/// for it. A kube-apiserver lets one account ask for more than that.
const MAX_UNDER_WAY: usize = 16;
const MAX_WAITING: usize = 256;

/// An API server that is away for long is worth a line now and then.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;
    use crate::token::fixture::{AGENT, rules};

    fn status(username: &str, audiences: Option<&[&str]>) -> TokenReviewStatus {
        TokenReviewStatus {
            audiences: audiences.map(|all| all.iter().map(|one| (*one).to_owned()).collect()),
            authenticated: Some(true),
            error: None,
            user: Some(UserInfo {
                username: Some(username.to_owned()),
                ..UserInfo::default()
            }),
        }
    }

    #[test]
    fn account_and_audience_must_be_the_agents() {
        let subject = Err(TokenRefused::Subject);
        let audience = Err(TokenRefused::Audience);
        let agents = |end: &str| format!("{AGENT}{end}");
        let elsewhere = "system:serviceaccount:default:agent".to_owned();
        let ours = Some(&["kn"][..]);
        for (username, audiences, names_audience, expected) in [
            (agents(""), ours, false, Ok(())),
            // Without audiences it is left to what the token says.
            (agents(""), None, true, Ok(())),
            (agents(""), Some(&[]), true, Ok(())),
            (agents(""), None, false, audience.clone()),
            (agents(""), Some(&[]), false, audience.clone()),
            (agents(""), Some(&["other"]), true, audience),
            (agents("2"), ours, true, subject.clone()),
            (agents(":x"), ours, true, subject.clone()),
            (elsewhere, ours, true, subject.clone()),
            ("agent".to_owned(), ours, true, subject.clone()),
            (String::new(), ours, true, subject.clone()),
        ] {
            let judged = judge(&status(&username, audiences), &rules(None), names_audience);
            assert_eq!(
                judged, expected,
                "{username} {audiences:?} {names_audience}"
            );
        }
        let unnamed = TokenReviewStatus {
            user: None,
            ..status(AGENT, None)
        };
        assert_eq!(judge(&unnamed, &rules(None), true), subject);
    }

    #[test]
    fn partial_review_is_refused() {
        let unsure = TokenReviewStatus {
            error: Some("backend down".to_owned()),
            ..status(AGENT, Some(&["kn"]))
        };
        let unknown = TokenReviewStatus {
            authenticated: Some(false),
            ..status(AGENT, Some(&["kn"]))
        };
        for status in [unsure, unknown, TokenReviewStatus::default()] {
            let refused = judge(&status, &rules(None), true);
            assert_eq!(refused, Err(TokenRefused::Unauthenticated));
        }
    }
}
