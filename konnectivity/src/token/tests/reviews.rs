//! What an API server is asked, and what of its answers is remembered.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use testkit::tempdir::TempDir;
use tokio::runtime::Handle;

use crate::token::fixture::{AGENT, Issuer, NOW, claims, judged_at, rules};
use crate::token::{Accepted, Judge, KeySet, Review, TokenRefused, Verdicts};

/// Answers every request with what `answer` makes of its body, or with 503.
pub(crate) struct Reviewer {
    dir: TempDir,
    asked: Arc<AtomicUsize>,
}

impl Reviewer {
    pub(crate) fn start(answer: impl Fn(&Value) -> Option<Value> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let dir = TempDir::new("reviewer").unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{ "name": "a", "cluster": { "server": format!("http://{addr}") } }],
            "users": [{ "name": "a", "user": { "token": "server" } }],
            "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
        });
        dir.write("kubeconfig", kubeconfig.to_string()).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        // It ends with the process: each test is one.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = BufReader::new(stream);
                let body = read_body(&mut stream);
                count.fetch_add(1, Ordering::SeqCst);
                let (status, body) = match answer(&body) {
                    Some(status) => (
                        "201 Created",
                        json!({
                            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                            "spec": body["spec"], "status": status,
                        }),
                    ),
                    None => ("503 Service Unavailable", json!({})),
                };
                let body = body.to_string();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
                     connection: close\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                let stream = stream.get_mut();
                let _ = stream.write_all([head, body].concat().as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        Self { dir, asked }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn read_body(stream: &mut impl BufRead) -> Value {
    let mut length = 0;
    for line in stream.lines() {
        let line = line.unwrap().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// Vouches for every token that is not "bad", as one for the audience that is asked for.
pub(crate) fn vouch(review: &Value) -> Option<Value> {
    let good = review["spec"]["token"] != "bad";
    Some(json!({
        "authenticated": good, "audiences": review["spec"]["audiences"],
        "user": { "username": AGENT },
    }))
}

fn judge(reviewer: &Reviewer, keys: Option<KeySet>, issuer: Option<&str>) -> Judge {
    let review = Review::Kubeconfig(reviewer.kubeconfig());
    let verdicts = Verdicts::default();
    Judge::new(rules(issuer), keys, review, &verdicts, Handle::current())
}

async fn judged(judge: &Judge, text: &str) -> Result<Accepted, TokenRefused> {
    judged_at(NOW, text, judge).await
}

const ANSWERED: Result<Accepted, TokenRefused> = Ok(Accepted { cached: false });
const REMEMBERED: Result<Accepted, TokenRefused> = Ok(Accepted { cached: true });

#[tokio::test]
async fn answer_is_cached_per_token_and_reviewer() {
    let reviewer = Reviewer::start(vouch);
    let one = judge(&reviewer, None, None);
    assert_eq!(judged(&one, "good").await, ANSWERED);
    assert_eq!(judged(&one, "good").await, REMEMBERED);
    assert_eq!(reviewer.asked(), 1);
    assert_eq!(judged(&one, "good2").await, ANSWERED);
    let refused = Err(TokenRefused::Unauthenticated);
    assert_eq!(judged(&one, "bad").await, refused);
    assert_eq!(judged(&one, "bad").await, refused);
    assert_eq!(reviewer.asked(), 3);
    let other = judge(&reviewer, None, None);
    assert_eq!(judged(&other, "good").await, ANSWERED);
}

#[tokio::test]
async fn audience_is_checked_for_old_api_servers() {
    let reviewer =
        Reviewer::start(|_| Some(json!({ "authenticated": true, "user": { "username": AGENT } })));
    let judge = judge(&reviewer, None, None);
    let issuer = Issuer::es256("a");
    let own = issuer.token(&claims("https://issuer", "kn"));
    assert_eq!(judged(&judge, &own).await, ANSWERED);
    let other = issuer.token(&claims("https://issuer", "other"));
    for text in [&other, "opaque"] {
        let refused = judged(&judge, text).await;
        assert_eq!(refused, Err(TokenRefused::Audience), "{text}");
    }
}

#[tokio::test]
async fn an_api_server_that_fails_is_asked_again() {
    let reviewer = Reviewer::start(|_| None);
    let judge = judge(&reviewer, None, None);
    for asked in 1..=2 {
        let refused = judged(&judge, "good").await;
        assert_eq!(refused, Err(TokenRefused::Unavailable));
        assert_eq!(reviewer.asked(), asked);
    }
}

#[tokio::test]
async fn a_kubeconfig_that_is_missing_refuses_for_now() {
    let dir = TempDir::new("no-kubeconfig").unwrap();
    let review = Review::Kubeconfig(dir.join("kubeconfig"));
    let verdicts = Verdicts::default();
    let judge = Judge::new(rules(None), None, review, &verdicts, Handle::current());
    let refused = judged(&judge, "good").await;
    assert_eq!(refused, Err(TokenRefused::Unavailable));
}

#[tokio::test]
async fn a_token_past_its_end_is_asked_for_each_time() {
    let reviewer = Reviewer::start(vouch);
    let judge = judge(&reviewer, None, None);
    let mut claims = claims("https://issuer", "kn");
    claims["exp"] = json!(NOW);
    let token = Issuer::es256("a").token(&claims);
    assert_eq!(judged(&judge, &token).await, ANSWERED);
    assert_eq!(judged(&judge, &token).await, ANSWERED);
    assert_eq!(reviewer.asked(), 2);
}

#[tokio::test]
async fn another_issuers_token_is_refused_unasked() {
    let reviewer = Reviewer::start(vouch);
    let judge = judge(&reviewer, None, Some("https://issuer"));
    let issuer = Issuer::es256("a");
    let other = issuer.token(&claims("https://other", "kn"));
    assert_eq!(judged(&judge, &other).await, Err(TokenRefused::Issuer));
    let refused = judged(&judge, "garbage").await;
    assert_eq!(refused, Err(TokenRefused::Malformed));
    assert_eq!(reviewer.asked(), 0);
    let own = issuer.token(&claims("https://issuer", "kn"));
    assert_eq!(judged(&judge, &own).await, ANSWERED);
}

#[tokio::test]
async fn keys_precede_api_server() {
    let reviewer = Reviewer::start(vouch);
    let (known, newer) = (Issuer::es256("known"), Issuer::es256("newer"));
    let keys = KeySet::parse(known.jwks().as_bytes()).unwrap();
    let judge = judge(&reviewer, Some(keys), Some("https://issuer"));
    let claims = claims("https://issuer", "kn");
    assert_eq!(judged(&judge, &known.token(&claims)).await, ANSWERED);
    assert_eq!(reviewer.asked(), 0);
    assert_eq!(judged(&judge, &newer.token(&claims)).await, ANSWERED);
    assert_eq!(reviewer.asked(), 1);
    let impostor = Issuer::es256("known").token(&claims);
    let refused = judged(&judge, &impostor).await;
    assert_eq!(refused, Err(TokenRefused::Signature));
    assert_eq!(reviewer.asked(), 1);
}
