//! An API server that judges tokens and can do nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A running API server. It lives as long as the test's process.
#[derive(Debug)]
pub(crate) struct TokenReviews {
    addr: SocketAddr,
    asked: Arc<AtomicUsize>,
    audiences: Arc<Mutex<Vec<Value>>>,
}

impl TokenReviews {
    /// Answers that a token `NAMESPACE/ACCOUNT` is that service account's. `broken` is answered
    /// with status 500, `failed` with an error in the review, all else with "not authenticated".
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let reviews = Self {
            addr: listener.local_addr().unwrap(),
            asked: Arc::default(),
            audiences: Arc::default(),
        };
        let (asked, audiences) = (Arc::clone(&reviews.asked), Arc::clone(&reviews.audiences));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, audiences) = (Arc::clone(&asked), Arc::clone(&audiences));
                std::thread::spawn(move || serve(stream, &asked, &audiences));
            }
        });
        reviews
    }

    /// Returns how many reviews were asked for.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns the audiences of the last review.
    pub(crate) fn audiences(&self) -> Value {
        self.audiences.lock().unwrap().last().cloned().unwrap()
    }

    pub(crate) fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let path = dir.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://{}", self.addr) } }],
            "users": [{ "name": "test", "user": { "token": "reviewer" } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

fn serve(stream: TcpStream, asked: &AtomicUsize, audiences: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream);
    while let Some((path, body)) = request(&mut reader) {
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = if path.contains("/tokenreviews") {
            asked.fetch_add(1, Ordering::SeqCst);
            let spec = &review["spec"];
            audiences.lock().unwrap().push(spec["audiences"].clone());
            judge(spec)
        } else {
            (404, json!({ "kind": "Status", "code": 404 }))
        };
        let answer = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        let stream = reader.get_mut();
        if stream.write_all((head + &answer).as_bytes()).is_err() {
            return;
        }
    }
}

fn judge(spec: &Value) -> (u16, Value) {
    let token = spec["token"].as_str().unwrap_or_default();
    let status = match token.split_once('/') {
        _ if token == "broken" => {
            return (
                500,
                json!({ "kind": "Status", "code": 500, "status": "Failure" }),
            );
        }
        _ if token == "failed" => json!({ "authenticated": true, "error": "no" }),
        Some((namespace, account)) => json!({
            "authenticated": true,
            "audiences": spec["audiences"],
            "user": { "username": format!("system:serviceaccount:{namespace}:{account}") },
        }),
        None => json!({ "authenticated": false }),
    };
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "metadata": {}, "spec": spec, "status": status,
    });
    (201, review)
}

/// Reads a request's path and body, nothing at the end.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut path = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if path.is_empty() {
            path = line.to_owned();
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, body))
}
