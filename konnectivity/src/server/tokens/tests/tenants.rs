//! Which tenant a token is of, when there are several.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use knp_proto::TenantId;
use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::tempdir::TempDir;
use tokio::runtime::Handle;

use crate::metrics::ServerMetrics;
use crate::registry::{FrontendMode, PairPaths, Registry, TenantSpec, TlsParams};
use crate::token::fixture::{AGENT, Issuer, encode};
use crate::token::tests::reviews::{Reviewer, vouch};
use crate::token::{Candidate, TokenRefused, choose};

use crate::server::tokens::Tokens;

/// A registry whose tenants are known by tokens and nothing else.
struct Stage {
    dir: TempDir,
    registry: Registry,
    tokens: Tokens,
}

impl Stage {
    /// Makes tenants by name, issuer's URL and issuer; the audience is always `kn`.
    fn new(tenants: &[(&str, &str, &Issuer)]) -> Self {
        let dir = TempDir::new("tokens").unwrap();
        for (name, url, issuer) in tenants {
            define(&dir, name, url, issuer);
        }
        let authority = Authority::new("server").unwrap();
        let files = authority.server(&["kn.example.com"]).unwrap();
        let files = files.write(dir.path(), "server").unwrap();
        let tls = TlsParams {
            agents_pair: Some(PairPaths {
                cert: files.cert,
                key: files.key,
            }),
            frontends_pair: None,
            frontend_mode: FrontendMode::Grpc,
            only_tls13: false,
            cipher_suites: Vec::new(),
        };
        let registry = Registry::open(&dir.join("clusters"), &tls).unwrap();
        let metrics = ServerMetrics::new(&telemetry::Registry::new(), false);
        let tokens = Tokens::new(registry.clone(), metrics, Handle::current());
        Self {
            dir,
            registry,
            tokens,
        }
    }

    fn tenant(&self, name: &str) -> Arc<TenantSpec> {
        let tenants = self.registry.current();
        Arc::clone(tenants.get(&TenantId::new(name)).unwrap())
    }

    async fn check(&self, hint: Option<&str>, token: &str) -> Result<String, TokenRefused> {
        let hint = hint.map(|name| self.tenant(name));
        let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
        let source = "192.0.2.1".parse().unwrap();
        let checked = self.tokens.check(hint.as_ref(), &[&value], source).await;
        checked.map(|tenant| tenant.id.as_str().to_owned())
    }
}

fn define(dir: &TempDir, name: &str, url: &str, issuer: &Issuer) {
    let tenants = dir.join("clusters");
    std::fs::create_dir_all(&tenants).unwrap();
    let tenant = json!({
        "agents": { "tokens": {
            "issuer": url, "audience": "kn", "jwks": format!("{name}.jwks"),
            "namespace": "kube-system", "serviceAccount": "agent",
        } },
        "frontends": { "uds": { "path": format!("{name}.sock"), "mode": "grpc" } },
    });
    let write = |file: String, text: String| std::fs::write(tenants.join(file), text).unwrap();
    write(format!("{name}.jwks"), issuer.jwks());
    write(format!("{name}.yaml"), tenant.to_string());
}

/// Makes a tenant anew as one whose tokens only an API server can tell.
fn define_by_review(dir: &TempDir, name: &str, url: &str, reviewer: &Reviewer) {
    let tenant = json!({
        "agents": { "tokens": {
            "issuer": url, "audience": "kn", "kubeconfig": reviewer.kubeconfig(),
            "namespace": "kube-system", "serviceAccount": "agent",
        } },
        "frontends": { "uds": { "path": format!("{name}.sock"), "mode": "grpc" } },
    });
    let path = dir.join("clusters").join(format!("{name}.yaml"));
    std::fs::write(path, tenant.to_string()).unwrap();
}

/// Returns what a good token says at this moment.
fn claims(issuer: &str) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    json!({ "iss": issuer, "aud": "kn", "sub": AGENT, "exp": now.as_secs() + 600 })
}

fn candidates<'a>(
    all: &'a [(Option<&'a str>, &'a str)],
) -> impl Iterator<Item = Candidate<'a, usize>> {
    all.iter()
        .enumerate()
        .map(|(tenant, (issuer, audience))| Candidate {
            issuer: *issuer,
            audience,
            username: AGENT.to_owned(),
            tenant,
        })
}

#[tokio::test]
async fn a_token_is_of_the_tenant_whose_issuer_signed_it() {
    let (a, b) = (Issuer::es256("a"), Issuer::es256("b"));
    let stage = Stage::new(&[("a", "https://a", &a), ("b", "https://b", &b)]);
    let token = a.token(&claims("https://a"));
    assert_eq!(stage.check(None, &token).await.as_deref(), Ok("a"));
    let token = b.token(&claims("https://b"));
    assert_eq!(stage.check(None, &token).await.as_deref(), Ok("b"));
    let forged = a.token(&claims("https://b"));
    assert_eq!(stage.check(None, &forged).await, Err(TokenRefused::Key));
    let foreign = a.token(&claims("https://c"));
    let refused = stage.check(None, &foreign).await;
    assert_eq!(refused, Err(TokenRefused::Unwanted));
}

#[tokio::test]
async fn the_name_that_was_asked_for_must_agree_with_the_token() {
    let (a, b) = (Issuer::es256("a"), Issuer::es256("b"));
    let stage = Stage::new(&[("a", "https://a", &a), ("b", "https://b", &b)]);
    let token = a.token(&claims("https://a"));
    assert_eq!(stage.check(Some("a"), &token).await.as_deref(), Ok("a"));
    let refused = stage.check(Some("b"), &token).await;
    assert_eq!(refused, Err(TokenRefused::Key));
}

#[tokio::test]
async fn keys_that_are_replaced_take_over() {
    let (old, new) = (Issuer::es256("old"), Issuer::es256("new"));
    let stage = Stage::new(&[("a", "https://a", &old)]);
    let (before, after) = (
        old.token(&claims("https://a")),
        new.token(&claims("https://a")),
    );
    assert_eq!(stage.check(None, &before).await.as_deref(), Ok("a"));
    assert_eq!(stage.check(None, &after).await, Err(TokenRefused::Key));
    define(&stage.dir, "a", "https://a", &new);
    stage.registry.reload();
    assert_eq!(stage.check(None, &after).await.as_deref(), Ok("a"));
    assert_eq!(stage.check(None, &before).await, Err(TokenRefused::Key));
}

/// Returns the `number`th token of an unknown key that claims to be of `issuer`.
fn guess(issuer: &str, number: usize) -> String {
    let mut claims = claims(issuer);
    claims["jti"] = json!(number);
    let [header, claims] = [
        r#"{"alg":"ES256","kid":"guess"}"#.to_owned(),
        claims.to_string(),
    ]
    .map(encode);
    format!("{header}.{claims}.{}", encode([0; 64]))
}

#[tokio::test]
async fn guesses_do_not_shut_out_tokens_checked_by_keys() {
    let (a, b) = (Issuer::es256("a"), Issuer::es256("b"));
    let stage = Stage::new(&[("a", "https://a", &a), ("b", "https://b", &b)]);
    for number in 0..1000 {
        let guess = guess("https://a", number);
        let hint = (number % 2 == 0).then_some("a");
        assert_eq!(stage.check(hint, &guess).await, Err(TokenRefused::Key));
    }
    let token = b.token(&claims("https://b"));
    assert_eq!(stage.check(None, &token).await.as_deref(), Ok("b"));
    let token = a.token(&claims("https://a"));
    assert_eq!(stage.check(None, &token).await.as_deref(), Ok("a"));
    assert_eq!(stage.check(Some("a"), &token).await.as_deref(), Ok("a"));
}

#[tokio::test]
async fn guesses_are_limited_for_the_api_server_that_is_asked_and_no_other() {
    let reviewer = Reviewer::start(|review| {
        let token = review["spec"]["token"].as_str()?.to_owned();
        let (_, rest) = token.split_once('.')?;
        // What a guess is signed with is nothing.
        let good = !rest.ends_with(&encode([0; 64]));
        let mut status = vouch(review)?;
        status["authenticated"] = json!(good);
        Some(status)
    });
    let (a, b) = (Issuer::es256("a"), Issuer::es256("b"));
    let stage = Stage::new(&[("a", "https://a", &a), ("b", "https://b", &b)]);
    for (name, url) in [("a", "https://a"), ("b", "https://b")] {
        define_by_review(&stage.dir, name, url, &reviewer);
    }
    stage.registry.reload();
    assert_eq!(stage.registry.broken(), []);
    let known = a.token(&claims("https://a"));
    assert_eq!(stage.check(None, &known).await.as_deref(), Ok("a"));

    let mut guesses = 0;
    while stage.check(None, &guess("https://a", guesses)).await != Err(TokenRefused::Limited) {
        guesses += 1;
        assert!(guesses < 10_000, "guesses are never limited");
    }
    let asked = reviewer.asked();
    assert!(asked > 50, "only {asked} asked");
    assert_eq!(stage.check(None, &known).await.as_deref(), Ok("a"), "known");
    assert_eq!(reviewer.asked(), asked, "what is known is not asked for");
    let token = b.token(&claims("https://b"));
    assert_eq!(stage.check(None, &token).await.as_deref(), Ok("b"));
    let fresh = guess("https://a", 10_001);
    let value = HeaderValue::try_from(format!("Bearer {fresh}")).unwrap();
    let elsewhere = "192.0.2.2".parse().unwrap();
    let refused = stage.tokens.check(None, &[&value], elsewhere).await;
    assert_eq!(refused.map(drop), Err(TokenRefused::Unauthenticated));
}

#[test]
fn a_single_tenant_without_an_issuer_takes_any_token() {
    let alone = [(None, "kn")];
    assert_eq!(choose("opaque", candidates(&alone)), Ok(0));
    let with_issuer = [(Some("https://a"), "kn")];
    let refused = choose("opaque", candidates(&with_issuer));
    assert_eq!(refused, Err(TokenRefused::Malformed));
    assert_eq!(
        choose("opaque", candidates(&[])),
        Err(TokenRefused::Unwanted)
    );
}

#[test]
fn issuer_and_audience_must_both_be_a_tenants() {
    let issuer = Issuer::es256("a");
    let token = issuer.token(&claims("https://a"));
    let all = [
        (Some("https://a"), "other"),
        (Some("https://a"), "kn"),
        (None, "kn"),
    ];
    assert_eq!(choose(&token, candidates(&all)), Ok(1));
    let refused = choose(&token, candidates(&all[..1]));
    assert_eq!(refused, Err(TokenRefused::Unwanted));
    let twice = [all[1], all[1]];
    let refused = choose(&token, candidates(&twice));
    assert_eq!(refused, Err(TokenRefused::Ambiguous));
    let nameless = issuer.token(&json!({ "aud": "kn" }));
    let refused = choose(&nameless, candidates(&all));
    assert_eq!(refused, Err(TokenRefused::Unwanted));
}

#[test]
fn tenants_of_one_issuer_are_told_apart_by_account() {
    let token = Issuer::es256("a").token(&claims("https://a"));
    let candidate = |tenant, account: &str| Candidate {
        issuer: Some("https://a"),
        audience: "kn",
        username: account.to_owned(),
        tenant,
    };
    let all = [candidate(0, "another"), candidate(1, AGENT)];
    assert_eq!(choose(&token, all.into_iter()), Ok(1));
    let others = [candidate(0, "another"), candidate(1, "else")];
    let refused = choose(&token, others.into_iter());
    assert_eq!(refused, Err(TokenRefused::Unwanted));
}
