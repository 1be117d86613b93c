//! What a token must say, and how it must be written.

use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::token::fixture::{AGENT, Issuer, NOW, claims, encode, judged_at, rules};
use crate::token::{Accepted, Judge, KeySet, Review, TokenRefused, Verdicts};

const GOOD: Result<Accepted, TokenRefused> = Ok(Accepted { cached: false });

/// Returns a judge by the issuer's key alone.
fn judge(issuer: &Issuer) -> Judge {
    let keys = KeySet::parse(issuer.jwks().as_bytes()).unwrap();
    let (verdicts, runtime) = (Verdicts::default(), Handle::current());
    Judge::new(
        rules(Some("https://issuer")),
        Some(keys),
        Review::Never,
        &verdicts,
        runtime,
    )
}

/// Returns what becomes of a good token that says `value` under `key`, or nothing for null.
async fn with(key: &str, value: Value) -> Result<Accepted, TokenRefused> {
    let issuer = Issuer::es256("a");
    let mut claims = claims("https://issuer", "kn");
    if value.is_null() {
        claims.as_object_mut().unwrap().remove(key);
    } else {
        claims[key] = value;
    }
    judged_at(NOW, &issuer.token(&claims), &judge(&issuer)).await
}

#[tokio::test]
async fn a_token_of_the_agents_is_accepted() {
    let issuer = Issuer::es256("a");
    let token = issuer.token(&claims("https://issuer", "kn"));
    assert_eq!(judged_at(NOW, &token, &judge(&issuer)).await, GOOD);
}

#[tokio::test]
async fn the_issuer_must_be_the_tenants() {
    let refused = Err(TokenRefused::Issuer);
    assert_eq!(with("iss", json!("https://issuer/")).await, refused);
    assert_eq!(with("iss", Value::Null).await, refused);
}

#[tokio::test]
async fn the_audience_must_be_among_the_tokens() {
    assert_eq!(with("aud", json!("kn")).await, GOOD);
    assert_eq!(with("aud", json!(["other", "kn"])).await, GOOD);
    let refused = Err(TokenRefused::Audience);
    for value in [json!("kn2"), json!(["k", "n"]), json!([]), Value::Null] {
        assert_eq!(with("aud", value).await, refused);
    }
    let malformed = Err(TokenRefused::Malformed);
    assert_eq!(with("aud", json!(["kn", 1])).await, malformed);
    assert_eq!(with("aud", json!({ "kn": 1 })).await, malformed);
}

#[tokio::test]
async fn the_account_must_be_the_agents() {
    for subject in [
        "system:serviceaccount:kube-system:agent2",
        "system:serviceaccount:default:agent",
        "system:serviceaccount:kube-system:Agent",
        "agent",
    ] {
        let refused = with("sub", json!(subject)).await;
        assert_eq!(refused, Err(TokenRefused::Subject), "{subject}");
    }
    let refused = with("sub", Value::Null).await;
    assert_eq!(refused, Err(TokenRefused::Subject));
    assert_eq!(with("sub", json!(1)).await, Err(TokenRefused::Malformed));
}

#[tokio::test]
async fn times_hold_with_ten_seconds_of_leeway() {
    let issuer = Issuer::es256("a");
    let judge = judge(&issuer);
    let text = issuer.token(&json!({
        "iss": "https://issuer", "aud": "kn", "sub": AGENT, "nbf": NOW, "exp": NOW + 100,
    }));
    assert_eq!(judged_at(NOW - 10, &text, &judge).await, GOOD);
    assert_eq!(judged_at(NOW + 109, &text, &judge).await, GOOD);
    let early = judged_at(NOW - 11, &text, &judge).await;
    assert_eq!(early, Err(TokenRefused::NotYetValid));
    let late = judged_at(NOW + 110, &text, &judge).await;
    assert_eq!(late, Err(TokenRefused::Expired));
}

#[tokio::test]
async fn a_token_that_never_expires_is_refused() {
    assert_eq!(with("exp", Value::Null).await, Err(TokenRefused::Expired));
    assert_eq!(with("exp", json!(0)).await, Err(TokenRefused::Expired));
    assert_eq!(with("exp", json!(-1)).await, Err(TokenRefused::Expired));
    for value in [json!("2000000000"), json!(1e300), json!([])] {
        assert_eq!(with("exp", value).await, Err(TokenRefused::Malformed));
    }
    let fraction = json!(NOW as f64 + 0.5);
    assert_eq!(with("exp", fraction).await, GOOD, "within the leeway");
}

#[tokio::test]
async fn a_thing_said_twice_is_refused() {
    let issuer = Issuer::es256("a");
    let good = claims("https://issuer", "kn").to_string();
    let header = r#"{"alg":"ES256","kid":"a"}"#;
    let judge = judge(&issuer);
    assert_eq!(
        judged_at(NOW, &issuer.sign(header, &good), &judge).await,
        GOOD
    );

    let twice = good.replacen('{', r#"{"sub":"another","#, 1);
    let header_twice = r#"{"alg":"none","alg":"ES256","kid":"a"}"#;
    let beside = good.replacen('{', r#"{"more":{"a":1,"a":2},"#, 1);
    for (header, claims) in [(header, &twice), (header, &beside), (header_twice, &good)] {
        let refused = judged_at(NOW, &issuer.sign(header, claims), &judge).await;
        assert_eq!(refused, Err(TokenRefused::Malformed), "{header}");
    }
}

#[tokio::test]
async fn a_header_that_demands_more_is_refused() {
    let issuer = Issuer::es256("a");
    let good = claims("https://issuer", "kn").to_string();
    for header in [
        r#"{"alg":"ES256","kid":"a","crit":["b64"],"b64":false}"#,
        r#"{"alg":"ES256","kid":"a","crit":[]}"#,
        r#"{"alg":"ES256","kid":"a","crit":null}"#,
        r#"{"alg":"ES256","kid":null}"#,
        r#"{"alg":"ES256","kid":1}"#,
        r#"{"kid":"a"}"#,
        r#"["ES256"]"#,
    ] {
        let refused = judged_at(NOW, &issuer.sign(header, &good), &judge(&issuer)).await;
        assert_eq!(refused, Err(TokenRefused::Malformed), "{header}");
    }
}

#[tokio::test]
async fn malformed_jwt_is_refused() {
    let issuer = Issuer::es256("a");
    let good = issuer.token(&claims("https://issuer", "kn"));
    let (signed, _) = good.rsplit_once('.').unwrap();
    let not_json = encode("text");
    for text in [
        "garbage",
        "..",
        "a.b.c",
        &format!("{good}."),
        &format!("{good}.{good}"),
        &format!("{good}="),
        &format!("{not_json}.{not_json}.{not_json}"),
        signed,
    ] {
        let refused = judged_at(NOW, text, &judge(&issuer)).await;
        assert_eq!(refused, Err(TokenRefused::Malformed), "{text}");
    }
}
