//! Secrets of an API server that has nothing else: lists, and watches without a change.

use std::net::SocketAddr;

use serde_json::{Value, json};
use telemetry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::routes::Ports;
use crate::state::{Labels, ObjectKey, Secrets};

const NAMESPACE: &str = "istio-ingress";
const FIRST: &str = "a-kube-apiserver-tls";
const SECOND: &str = "b-kube-apiserver-tls";
const LIMIT: Duration = Duration::from_secs(30);

struct FakeApi {
    /// Names of the Secrets, which may not be read when there are none; a change ends watches.
    names: watch::Sender<Vec<&'static str>>,
}

impl FakeApi {
    async fn start(names: &[&'static str]) -> (Arc<Self>, SocketAddr) {
        let names = watch::Sender::new(names.to_vec());
        let api = Arc::new(Self { names });
        let own = Arc::clone(&api);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&own).serve(stream));
            }
        });
        (api, addr)
    }

    fn set(&self, names: &[&'static str]) {
        self.names.send_replace(names.to_vec());
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut head = Vec::new();
        while let Ok(byte) = stream.read_u8().await {
            head.push(byte);
            if head.ends_with(b"\r\n\r\n") {
                let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
                self.answer(&text, &mut stream).await;
            }
        }
    }

    async fn answer(&self, head: &str, stream: &mut TcpStream) {
        let mut changes = self.names.subscribe();
        let names = changes.borrow_and_update().clone();
        let path = format!("GET /api/v1/namespaces/{NAMESPACE}/secrets?");
        assert!(head.starts_with(&path), "{head}");
        let (status, document) = if names.is_empty() {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "secrets is forbidden", "reason": "Forbidden", "code": 403,
            });
            ("403 Forbidden", status)
        } else if head.contains("watch=true") {
            let begin = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(begin.as_bytes()).await.unwrap();
            changes.changed().await.unwrap();
            return stream.write_all(b"0\r\n\r\n").await.unwrap();
        } else {
            let items: Vec<Value> = names.iter().map(|name| secret(name)).collect();
            let meta = json!({ "resourceVersion": "1" });
            ("200 OK", json!({ "metadata": meta, "items": items }))
        };
        let body = document.to_string();
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

fn secret(name: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": NAMESPACE, "resourceVersion": "1" } })
}

fn entry(name: &str) -> GatewayEntry {
    GatewayEntry {
        name: name.to_owned(),
        namespace: NAMESPACE.to_owned(),
        selector: Labels::default(),
        ports: Ports::default(),
        clients: Vec::new(),
        terminates_tls: true,
    }
}

/// What follows the fake's Secrets, as the reconciler applies what it says.
struct Followed {
    api: Arc<FakeApi>,
    gateways: watch::Sender<Vec<GatewayEntry>>,
    messages: mpsc::Receiver<Message>,
    secrets: Secrets,
    _task: JoinSet<()>,
}

impl Followed {
    async fn start(names: &[&'static str]) -> Self {
        let (api, addr) = FakeApi::start(names).await;
        let config = kube::Config::new(format!("http://{addr}").parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let (gateways, configured) = watch::channel(vec![entry("default")]);
        let (sender, messages) = mpsc::channel(16);
        let metrics = Metrics::new(&Registry::new());
        let task = follow(client, configured, sender, metrics);
        Self {
            api,
            gateways,
            messages,
            secrets: Secrets::default(),
            _task: JoinSet::from_iter([task]),
        }
    }

    /// Applies messages up to one that ends a list, or that says that there is none.
    async fn apply(&mut self) {
        loop {
            let message = timeout(LIMIT, self.messages.recv()).await;
            match message.expect("a message").unwrap() {
                Message::Secret(key, secret) => drop(self.secrets.put(key, secret)),
                Message::SecretsForbidden(namespace) => {
                    self.secrets.forbid(namespace);
                    return;
                }
                Message::SecretsListed(namespace, seen) => {
                    self.secrets.retain(&namespace, &seen);
                    self.secrets.list(namespace);
                    return;
                }
                Message::Discovered(_)
                | Message::Gone(..)
                | Message::Listed(_)
                | Message::Listing(_)
                | Message::Object(..)
                | Message::Unreadable(..)
                | Message::Unserved(_) => panic!("a message about something else"),
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.secrets.keys().map(|key| &*key.name).collect()
    }

    fn is_forbidden(&self) -> bool {
        let key = ObjectKey::new(NAMESPACE, FIRST);
        let problem = self.secrets.problem(&key);
        problem.is_some_and(|problem| problem.contains("may not list and watch"))
    }
}

#[tokio::test]
async fn secret_deleted_while_gateways_change_is_gone() {
    let mut followed = Followed::start(&[FIRST, SECOND]).await;
    followed.apply().await;
    assert_eq!(followed.names(), [FIRST, SECOND]);
    followed.api.set(&[FIRST]);
    let entries = vec![entry("default"), entry("another")];
    followed.gateways.send_replace(entries);
    followed.apply().await;
    assert_eq!(followed.names(), [FIRST]);
}

#[tokio::test]
async fn forbidden_secrets_are_listed_once_they_are_permitted() {
    let mut followed = Followed::start(&[]).await;
    followed.apply().await;
    assert!(followed.is_forbidden());
    followed.api.set(&[FIRST]);
    followed.apply().await;
    assert!(!followed.is_forbidden());
    // Forbidden again while they are watched: what is known stays.
    followed.api.set(&[]);
    followed.apply().await;
    assert!(followed.is_forbidden());
    assert_eq!(followed.names(), [FIRST]);
    followed.api.set(&[SECOND]);
    followed.apply().await;
    assert_eq!(followed.names(), [SECOND]);
}
