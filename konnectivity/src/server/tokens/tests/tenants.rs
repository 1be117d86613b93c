//! Which tenant a token is of, when there are several.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use knp_proto::TenantId;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::metrics::ServerMetrics;
use crate::registry::tests::Site;
use crate::registry::{Registry, TenantSpec};
use crate::token::fixture::{AGENT, Issuer, encode};
use crate::token::tests::reviews::{Reviewer, vouch};
use crate::token::{Candidate, TokenRefused, choose};

use crate::server::tokens::Tokens;

/// A registry whose tenants are known by tokens and nothing else.
struct Stage {
    site: Site,
    registry: Arc<Registry>,
    tokens: Tokens,
}

impl Stage {
    /// Makes tenants by name, issuer's URL and issuer; the audience is always `kn`.
    fn new(tenants: &[(&str, &str, &Issuer)]) -> Self {
        let site = Site::new();
        for (name, url, issuer) in tenants {
            define(&site, name, url, issuer);
        }
        let registry = site.open();
        let metrics = ServerMetrics::new(&telemetry::Registry::new(), false);
        let tokens = Tokens::new(registry.clone(), metrics, Handle::current());
        Self {
            site,
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

/// Makes a tenant, perhaps anew, whose tokens are of `issuer`.
fn define(site: &Site, name: &str, url: &str, issuer: &Issuer) {
    let file = format!("{name}.jwks");
    site.write(&file, issuer.jwks());
    define_by(site, name, url, "jwks", &file);
}

/// Makes a tenant anew whose tokens are checked by `means`.
fn define_by(site: &Site, name: &str, url: &str, means: &str, path: &str) {
    let tenant = json!({
        "agents": { "tokens": {
            "issuer": url, "audience": "kn", means: path,
            "namespace": "kube-system", "serviceAccount": "agent",
        } },
        "frontends": { "uds": { "path": format!("{name}.sock"), "mode": "grpc" } },
    });
    site.write(&format!("{name}.yaml"), tenant.to_string());
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
async fn token_belongs_to_issuers_tenant() {
    let (a, b) = (Issuer::es256("a"), Issuer::es256("b"));
    let stage = Stage::new(&[("a", "https://a", &a), ("b", "https://b", &b)]);
    for (hint, signer, issuer, expected) in [
        (None, &a, "https://a", Ok("a")),
        (None, &b, "https://b", Ok("b")),
        (None, &a, "https://b", Err(TokenRefused::Key)),
        (None, &a, "https://c", Err(TokenRefused::Unwanted)),
        // The name that was asked for must agree with the token.
        (Some("a"), &a, "https://a", Ok("a")),
        (Some("b"), &a, "https://a", Err(TokenRefused::Key)),
    ] {
        let checked = stage.check(hint, &signer.token(&claims(issuer))).await;
        let expected = expected.map(str::to_owned);
        assert_eq!(checked, expected, "{hint:?} {issuer}");
    }
}

#[tokio::test]
async fn keys_that_are_replaced_take_over() {
    let (old, new) = (Issuer::es256("old"), Issuer::es256("new"));
    let stage = Stage::new(&[("a", "https://a", &old)]);
    let [before, after] = [&old, &new].map(|issuer| issuer.token(&claims("https://a")));
    assert_eq!(stage.check(None, &before).await.as_deref(), Ok("a"));
    assert_eq!(stage.check(None, &after).await, Err(TokenRefused::Key));
    define(&stage.site, "a", "https://a", &new);
    stage.registry.reload();
    assert_eq!(stage.check(None, &after).await.as_deref(), Ok("a"));
    assert_eq!(stage.check(None, &before).await, Err(TokenRefused::Key));
}

/// Returns the `number`th token of an unknown key that claims to be of `issuer`.
fn guess(issuer: &str, number: usize) -> String {
    let mut claims = claims(issuer);
    claims["jti"] = json!(number);
    let header = encode(r#"{"alg":"ES256","kid":"guess"}"#);
    let (claims, signature) = (encode(claims.to_string()), encode([0; 64]));
    format!("{header}.{claims}.{signature}")
}

#[tokio::test]
async fn guesses_never_block_tokens_with_keys() {
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
async fn guesses_are_limited_per_api_server() {
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
    let path = reviewer.kubeconfig();
    let kubeconfig = path.to_str().unwrap();
    for (name, url) in [("a", "https://a"), ("b", "https://b")] {
        define_by(&stage.site, name, url, "kubeconfig", kubeconfig);
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
fn issuer_and_audience_must_both_be_a_tenants() {
    let issuer = Issuer::es256("a");
    let token = issuer.token(&claims("https://a"));
    let nameless = issuer.token(&json!({ "aud": "kn" }));
    let (a, other, any) = (
        (Some("https://a"), "kn"),
        (Some("https://a"), "other"),
        (None, "kn"),
    );
    for (token, tenants, expected) in [
        (token.as_str(), &[other, a, any][..], Ok(1)),
        (&token, &[other], Err(TokenRefused::Unwanted)),
        (&token, &[a, a], Err(TokenRefused::Ambiguous)),
        (&nameless, &[other, a, any], Err(TokenRefused::Unwanted)),
        // A single tenant without an issuer takes any token.
        ("opaque", &[any], Ok(0)),
        ("opaque", &[a], Err(TokenRefused::Malformed)),
        ("opaque", &[], Err(TokenRefused::Unwanted)),
    ] {
        let chosen = choose(token, candidates(tenants));
        assert_eq!(chosen, expected, "{token} of {tenants:?}");
    }
}

#[test]
fn tenants_of_one_issuer_differ_by_account() {
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
