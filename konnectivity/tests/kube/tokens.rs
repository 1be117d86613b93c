//! Real tokens of service accounts, reviewed by the API server and checked by its keys.

use std::time::SystemTime;

use konnectivity::token::{
    Accepted, Judge, KeySet, Review, Token, TokenRefused, TokenRules, Verdicts,
};
use testkit::http::Connection;
use testkit::wait;
use tokio::runtime::{Handle, Runtime};

use crate::stage::{LIMIT, Stage};

const AUDIENCE: &str = "system:konnectivity-server";

fn rules(issuer: Option<&str>) -> TokenRules {
    TokenRules {
        issuer: issuer.map(str::to_owned),
        audience: AUDIENCE.to_owned(),
        namespace: "kube-system".to_owned(),
        service_account: "konnectivity-agent".to_owned(),
    }
}

async fn judged(judge: &Judge, text: &str) -> Result<Accepted, TokenRefused> {
    let value = format!("Bearer {text}").parse().unwrap();
    let token = Token::from_authorization(&[&value]).unwrap();
    judge.judge(&token, SystemTime::now()).await
}

/// Starts a cluster with agents' accounts, the right one and two wrong ones.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name, "konnectivity-server", "server: tokens");
    stage.account("kube-system", "konnectivity-agent");
    stage.account("kube-system", "other");
    stage.account("elsewhere", "konnectivity-agent");
    stage
}

const ANSWERED: Result<Accepted, TokenRefused> = Ok(Accepted { cached: false });

#[tokio::test]
async fn api_server_reviews_agent_tokens() {
    let stage = stage("kube-reviews");
    let review = Review::Kubeconfig(stage.kubeconfig("konnectivity-server"));
    let verdicts = Verdicts::default();
    let judge = Judge::new(rules(None), None, review, &verdicts, Handle::current());

    let good = stage.token("kube-system", "konnectivity-agent", AUDIENCE);
    assert_eq!(judged(&judge, &good).await, ANSWERED);
    let remembered = Ok(Accepted { cached: true });
    assert_eq!(judged(&judge, &good).await, remembered);

    let unknown = Err(TokenRefused::Unauthenticated);
    let for_another = stage.token("kube-system", "konnectivity-agent", "other");
    assert_eq!(judged(&judge, &for_another).await, unknown);
    assert_eq!(judged(&judge, "garbage").await, unknown);
    let (signed, _) = good.rsplit_once('.').unwrap();
    let (_, signature) = for_another.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{signature}");
    assert_eq!(judged(&judge, &forged).await, unknown);

    let another = Err(TokenRefused::Subject);
    let elsewhere = stage.token("elsewhere", "konnectivity-agent", AUDIENCE);
    assert_eq!(judged(&judge, &elsewhere).await, another);
    let other = stage.token("kube-system", "other", AUDIENCE);
    assert_eq!(judged(&judge, &other).await, another);
}

#[test]
fn a_token_ends_with_its_account() {
    let stage = stage("kube-deleted");
    let review = Review::Kubeconfig(stage.kubeconfig("konnectivity-server"));
    let token = stage.token("kube-system", "konnectivity-agent", AUDIENCE);
    let runtime = Runtime::new().unwrap();
    // Each time by a judge that remembers nothing.
    let judged_anew = || {
        let (verdicts, runner) = (Verdicts::default(), runtime.handle().clone());
        let judge = Judge::new(rules(None), None, review.clone(), &verdicts, runner);
        runtime.block_on(judged(&judge, &token))
    };
    assert_eq!(judged_anew(), ANSWERED);

    let path = "/api/v1/namespaces/kube-system/serviceaccounts/konnectivity-agent";
    stage.must("DELETE", path, None);
    // The API server itself takes a moment to notice.
    let noticed = wait::until_some("the deletion being noticed", LIMIT, || {
        Some(judged_anew()).filter(|judged| *judged != ANSWERED)
    });
    assert_eq!(noticed.unwrap(), Err(TokenRefused::Unauthenticated));
}

#[tokio::test]
async fn forbidden_review_leaves_token_undecided() {
    let stage = stage("kube-forbidden");
    let review = Review::Kubeconfig(stage.kubeconfig("other"));
    let verdicts = Verdicts::default();
    let judge = Judge::new(rules(None), None, review, &verdicts, Handle::current());
    let token = stage.token("kube-system", "konnectivity-agent", AUDIENCE);
    assert_eq!(judged(&judge, &token).await, Err(TokenRefused::Unavailable));
}

#[tokio::test]
async fn the_api_servers_keys_are_enough_to_tell() {
    let stage = stage("kube-keys");
    let mut connection = Connection::open(&stage.server.target()).unwrap();
    let jwks = connection.request("GET", "/openid/v1/jwks", None).unwrap();
    assert_eq!(jwks.status, 200, "{}", jwks.text());
    let keys = KeySet::parse(jwks.text().as_bytes()).unwrap();
    let rules = rules(Some("https://kubernetes.default.svc"));
    let verdicts = Verdicts::default();
    let judge = Judge::new(
        rules,
        Some(keys),
        Review::Never,
        &verdicts,
        Handle::current(),
    );

    let good = stage.token("kube-system", "konnectivity-agent", AUDIENCE);
    assert_eq!(judged(&judge, &good).await, ANSWERED);
    let for_another = stage.token("kube-system", "konnectivity-agent", "other");
    let refused = judged(&judge, &for_another).await;
    assert_eq!(refused, Err(TokenRefused::Audience));
    let (signed, _) = good.rsplit_once('.').unwrap();
    let (_, signature) = for_another.rsplit_once('.').unwrap();
    let refused = judged(&judge, &format!("{signed}.{signature}")).await;
    assert_eq!(refused, Err(TokenRefused::Signature));
    let elsewhere = stage.token("elsewhere", "konnectivity-agent", AUDIENCE);
    let refused = judged(&judge, &elsewhere).await;
    assert_eq!(refused, Err(TokenRefused::Subject));
}
