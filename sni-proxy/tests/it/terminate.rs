//! Routes where TLS ends in the gateway: who a request comes from, where it goes, and what happens without
//! secrets.

mod again;
mod away;
mod flips;
mod floods;
mod frames;
mod limits;
mod metrics;
mod observed;
mod pools;
mod pseudo;
mod recorder;
mod slow;
mod smuggling;
mod tickets;
mod upgrades;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use testkit::certs::{self, Authority, Identity};
use testkit::tempdir::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::support::secrets::Secrets;
use crate::support::{ApiServer, Asked, Gateway, LIMIT};

/// One worker has one connection to a server.
const LISTENER: &str = r#"
workers: 1
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: node, address: "127.0.0.1:0", protocol: connect }
"#;
const NAME: &str = "api.test";

/// A gateway with a terminating route to two servers, and every authority that there is.
struct World {
    gateway: Gateway,
    cluster: Authority,
    secrets: Secrets,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts after `prepare` has changed the directory.
    fn with(prepare: impl FnOnce(&TempDir)) -> Self {
        Self::configured("", prepare)
    }

    /// The same, with more configuration.
    fn configured(config: &str, prepare: impl FnOnce(&TempDir)) -> Self {
        let cluster = Authority::new("cluster").unwrap();
        let dir = TempDir::new("terminate").unwrap();
        let secrets = Secrets::write(&dir, NAME);
        cluster.write(&dir.join("cluster.crt")).unwrap();
        let own = cluster.server(&["kubernetes.test", NAME]).unwrap();
        let alpn = ["h2", "http/1.1"];
        let tls = certs::optional_server_config(&own, secrets.front.pem(), &alpn).unwrap();
        let servers = ["a", "b"].map(|name| ApiServer::start(name, Arc::clone(&tls)));
        let endpoints = servers.map(|own| format!("{{ address: \"{}\" }}", own.addr()));
        let routes = format!(
            r#"
clusters:
- {{ name: api, endpoints: [{}], balance: round-robin }}
routes:
- serverNames: ["{NAME}", "*.{NAME}"]
  cluster: api
  terminate: &terminate
    certificate: {{ cert: own.crt, key: own.key }}
    clientAuthorities: clients.crt
    upstream:
      authorities: cluster.crt
      serverName: kubernetes.test
      identity: {{ cert: front.crt, key: front.key }}
- connectDestinations: ["shoot--kube-apiserver-socket"]
  cluster: api
  terminate: *terminate
"#,
            endpoints.join(", ")
        );
        dir.write("routes.yaml", routes).unwrap();
        prepare(&dir);
        let gateway = Gateway::start_with(dir, None, &format!("{LISTENER}{config}"));
        Self {
            gateway,
            cluster,
            secrets,
        }
    }

    /// Waits until the samples add up to `wanted`, while clients go on.
    async fn wait_value(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        until(name, || self.gateway.value(name, labels) == wanted).await;
    }

    async fn client(&self, identity: Option<&Identity>, protocol: &str) -> Client {
        let connected = self.connect(identity, protocol).await;
        connected.expect("a handshake")
    }

    async fn connect(&self, identity: Option<&Identity>, protocol: &str) -> Option<Client> {
        let stream = TcpStream::connect(self.gateway.addr("tls")).await.unwrap();
        Client::over(stream, self.secrets.serving.pem(), identity, protocol).await
    }
}

/// Waits for something that happens while clients go on.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let reached = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = timeout(LIMIT, reached).await;
    assert!(reached.is_ok(), "waited in vain: {what}");
}

/// Adds lines to `terminate`, at the depth of its keys.
fn add_to_terminate(dir: &TempDir, line: &str) {
    let routes = std::fs::read_to_string(dir.join("routes.yaml")).unwrap();
    let anchor = "terminate: &terminate\n";
    assert!(routes.contains(anchor));
    let routes = routes.replace(anchor, &format!("{anchor}    {line}\n"));
    dir.write("routes.yaml", routes).unwrap();
}

enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    async fn over(
        stream: TcpStream,
        authority: &str,
        identity: Option<&Identity>,
        protocol: &str,
    ) -> Option<Self> {
        let config = certs::mutual_client_config(authority, identity, &[protocol]).unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let connecting = TlsConnector::from(config).connect(name, stream);
        let stream = timeout(LIMIT, connecting).await.unwrap().ok()?;
        let io = TokioIo::new(stream);
        Some(match protocol {
            "h2" => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(64 * 1024)
                    .handshake(io)
                    .await
                    .ok()?;
                tokio::spawn(connection);
                Self::Http2(sender)
            }
            _ => {
                let (sender, connection) = http1::handshake(io).await.ok()?;
                tokio::spawn(connection.with_upgrades());
                Self::Http1(sender)
            }
        })
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let sent = async {
            match self {
                Self::Http1(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Self::Http2(sender) => sender.send_request(request).await,
            }
        };
        timeout(LIMIT, sent).await.expect("an answer")
    }

    fn request(&self, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
        self.request_of("/api?x=1", headers)
    }

    fn request_of(&self, path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
        let uri = match self {
            Self::Http1(_) => path.to_owned(),
            Self::Http2(_) => format!("https://{NAME}{path}"),
        };
        let mut request = Request::builder().uri(uri);
        if matches!(self, Self::Http1(_)) {
            request = request.header(header::HOST, NAME);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::default()).unwrap()
    }

    async fn get(&mut self, headers: &[(&str, &str)]) -> (StatusCode, Asked) {
        let request = self.request(headers);
        let response = self.send(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, Asked(serde_json::from_slice(&body).unwrap()))
    }
}

const INJECTED: &[(&str, &str)] = &[
    ("x-remote-user", "admin"),
    ("x_remote_user", "admin"),
    ("x-remote-group", "system:masters"),
    ("X-Remote-Extra-Scopes", "all"),
    ("x-remote-uid", "0"),
    ("x-forwarded-for", "192.0.2.99"),
    ("forwarded", "for=192.0.2.99"),
];

#[tokio::test]
async fn requests_of_one_connection_reach_every_server() {
    let world = World::new();
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let mut servers = Vec::new();
        for _ in 0..4 {
            let (status, asked) = client.get(&[]).await;
            assert_eq!(status, StatusCode::OK);
            assert_eq!(asked.0["version"], "HTTP/2.0");
            assert_eq!(asked.0["uri"], format!("https://{NAME}/api?x=1"));
            servers.push(asked.0["server"].clone());
        }
        let of = |name: &str| servers.iter().filter(|own| **own == name).count();
        assert_eq!((of("a"), of("b")), (2, 2), "{servers:?}");
    }
}

#[tokio::test]
async fn identity_is_what_the_certificate_says() {
    let world = World::new();
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs", "ops"], &[])
        .unwrap();
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(Some(&identity), protocol).await;
        let (_, asked) = client.get(INJECTED).await;
        assert_eq!(asked.0["mutual"], true);
        assert_eq!(asked.header("x-remote-user"), ["jane"]);
        assert_eq!(asked.header("x-remote-group"), ["devs", "ops"]);
        assert_eq!(asked.header("x-forwarded-for"), ["127.0.0.1"]);
        for name in [
            "x_remote_user",
            "x-remote-extra-scopes",
            "x-remote-uid",
            "forwarded",
        ] {
            assert!(asked.header(name).is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn client_without_certificate_is_anonymous() {
    let world = World::new();
    let identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    // The pool of the other kind is warm.
    world.client(Some(&identity), "h2").await.get(&[]).await;
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let (_, asked) = client.get(INJECTED).await;
        assert_eq!(asked.0["mutual"], false);
        assert!(asked.header("x-remote-user").is_empty());
        assert!(asked.header("x-remote-group").is_empty());
        let (_, asked) = client.get(&[("authorization", "Bearer a")]).await;
        assert_eq!(asked.header("authorization"), ["Bearer a"]);
    }
}

#[tokio::test]
async fn subject_that_is_no_header_is_refused() {
    let world = World::new();
    for (name, groups) in [
        (" admin", &[][..]),
        ("admin ", &[]),
        ("", &[]),
        ("a\u{0}b", &[]),
        ("jane", &["system:masters\u{0}x"]),
        ("jane", &[" system:masters"]),
    ] {
        let identity = world.secrets.clients.client(name, groups, &[]).unwrap();
        let mut client = world.client(Some(&identity), "h2").await;
        let (status, answer) = client.get(&[]).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name:?} {groups:?}");
        assert_eq!(answer.0["kind"], "Status");
    }
}

#[tokio::test]
async fn untrusted_certificate_ends_the_handshake() {
    let world = World::new();
    let others = Authority::new("clients").unwrap();
    for identity in [
        others.client("jane", &[], &[]).unwrap(),
        world.secrets.front.client("jane", &[], &[]).unwrap(),
        world.secrets.clients.expired_client("jane", &[]).unwrap(),
    ] {
        // With TLS 1.3 a client sends its certificate last, and hears of it with its first request.
        let connected = world.connect(Some(&identity), "h2").await;
        let Some(mut client) = connected else {
            continue;
        };
        let request = client.request(&[]);
        assert!(client.send(request).await.is_err());
    }
    world.gateway.wait_closed("tls", "malformed", 3);
}

#[tokio::test]
async fn certificate_that_ends_is_refused_from_then_on() {
    let world = World::new();
    let after = Duration::from_secs(4);
    let identity = world.secrets.clients.ending_client("jane", after).unwrap();
    let mut client = world.client(Some(&identity), "h2").await;
    assert_eq!(client.get(&[]).await.0, StatusCode::OK);
    let refused = async {
        loop {
            let (status, _) = client.get(&[]).await;
            if status != StatusCode::OK {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = timeout(LIMIT, refused).await.unwrap();
    assert_eq!(refused, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn ended_certificate_that_proves_nothing_does_no_harm() {
    let world = World::new();
    let mut identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let ended = world.secrets.front.expired_client("other", &[]).unwrap();
    identity.cert_pem += &ended.cert_pem;
    let mut client = world.client(Some(&identity), "h2").await;
    let (status, asked) = client.get(&[]).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(asked.header("x-remote-user"), ["jane"]);
}

#[tokio::test]
async fn host_of_another_route_is_misdirected() {
    let world = World::new();
    let mut client = world.client(None, "h2").await;
    for (host, status) in [
        ("API.test.", StatusCode::OK),
        ("x.api.test:443", StatusCode::OK),
        ("other.test", StatusCode::MISDIRECTED_REQUEST),
        ("127.0.0.1", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let request = Request::get(format!("https://{host}/"));
        let response = client
            .send(request.body(Full::default()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), status, "{host}");
        assert_eq!(
            response.headers()["strict-transport-security"],
            "max-age=31536000"
        );
    }
    let mut client = world.client(None, "http/1.1").await;
    let request = Request::get("/").body(Full::default()).unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn upgrade_goes_through_with_identity() {
    let world = World::new();
    let identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let mut client = world.client(Some(&identity), "http/1.1").await;
    let request = client.request(&[
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "SPDY/3.1"),
    ]);
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    let mut upgraded = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    for _ in 0..3 {
        upgraded.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        timeout(LIMIT, upgraded.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"HELLO");
    }
    upgraded.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(LIMIT, upgraded.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn tls_within_connect_ends_here() {
    let world = World::new();
    let mut stream = TcpStream::connect(world.gateway.addr("node"))
        .await
        .unwrap();
    let head = "CONNECT any:443 HTTP/1.1\r\nHost: any:443\r\nX-Gardener-Destination: shoot--kube-apiserver-socket\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    let client = Client::over(stream, world.secrets.serving.pem(), None, "h2").await;
    let mut client = client.unwrap();
    let request = Request::get("https://10.1.2.3/")
        .body(Full::default())
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn silent_endpoint_costs_all_requests_what_it_costs_one() {
    // It accepts, and its handshake goes nowhere.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let world = World::with(|dir| {
        let routes = std::fs::read_to_string(dir.join("routes.yaml")).unwrap();
        let (before, first) = routes.split_once("address: \"").unwrap();
        let (_, after) = first.split_once('"').unwrap();
        let routes = format!("{before}address: \"{address}\"{after}");
        let with_limit = "balance: round-robin, connectTimeout: 1s";
        let routes = routes.replace("balance: round-robin", with_limit);
        dir.write("routes.yaml", routes).unwrap();
    });
    let client = world.client(None, "h2").await;
    let Client::Http2(sender) = &client else {
        panic!("another protocol")
    };
    let asked = (0..20).map(|_| {
        let (mut sender, request) = (sender.clone(), client.request(&[]));
        tokio::spawn(async move { sender.send_request(request).await.unwrap().status() })
    });
    let asked: Vec<_> = asked.collect();
    let all = async {
        for request in asked {
            assert_eq!(request.await.unwrap(), StatusCode::OK);
        }
    };
    timeout(Duration::from_secs(5), all).await.expect("answers");
}

#[tokio::test]
async fn route_without_secrets_is_passed_through() {
    let world = World::with(|dir| std::fs::remove_file(dir.join("front.key")).unwrap());
    let stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
    let client = Client::over(stream, world.cluster.pem(), None, "h2").await;
    let mut client = client.expect("the server's own certificate");
    let (status, asked) = client.get(INJECTED).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        asked.header("x-remote-user"),
        ["admin"],
        "the server's to judge"
    );
    let labels = [("cluster", "api")];
    let fallback = || {
        world
            .gateway
            .metrics()
            .value("rhizome_terminate_fallback", &labels)
    };
    assert_eq!(fallback(), Some(1.0));
    // Found within seconds.
    world.secrets.write_identity(&world.gateway.dir);
    let ended = async {
        while fallback() != Some(0.0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, ended).await.unwrap();
    world.client(None, "h2").await;
}

#[tokio::test]
async fn changed_authorities_hold_for_the_next_request() {
    let world = World::new();
    let identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let mut client = world.client(Some(&identity), "h2").await;
    assert_eq!(client.get(&[]).await.0, StatusCode::OK);
    let other = Authority::new("others").unwrap();
    other.write(&world.gateway.dir.join("clients.crt")).unwrap();
    let refused = async {
        loop {
            let (status, answer) = client.get(&[]).await;
            if status != StatusCode::OK {
                return (status, answer);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (status, answer) = timeout(LIMIT, refused).await.unwrap();
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(answer.0["reason"], Value::from("Unauthorized"));
}

#[tokio::test]
async fn open_connection_follows_changed_endpoints() {
    let world = World::new();
    let mut client = world.client(None, "h2").await;
    let (_, asked) = client.get(&[]).await;
    assert!(asked.0["server"] == "a" || asked.0["server"] == "b");
    // Both go, another comes; the name and the secrets stay.
    let own = world.cluster.server(&["kubernetes.test", NAME]).unwrap();
    let tls = certs::optional_server_config(&own, world.secrets.front.pem(), &["h2"]).unwrap();
    let third = ApiServer::start("c", tls);
    let dir = &world.gateway.dir;
    let routes = std::fs::read_to_string(dir.join("routes.yaml")).unwrap();
    let (before, rest) = routes.split_once("endpoints: [").unwrap();
    let (_, after) = rest.split_once(']').unwrap();
    let address = third.addr();
    let changed = format!("{before}endpoints: [{{ address: \"{address}\" }}]{after}");
    dir.write("routes.yaml", &changed).unwrap();
    let moved = async {
        while client.get(&[]).await.1.0["server"] != "c" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, moved).await.unwrap();
    // Without its route the connection ends.
    let (clusters, _) = changed.split_once("routes:").unwrap();
    dir.write("routes.yaml", format!("{clusters}routes: []\n"))
        .unwrap();
    let ended = async {
        while client.get(&[]).await.0 == StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, ended).await.unwrap();
    let labels = [("listener", "tls"), ("reason", "closed")];
    let name = "rhizome_connections_closed_total";
    world.wait_value(name, &labels, 1.0).await;
}

#[tokio::test]
async fn silent_http2_client_is_closed() {
    let world = World::with(|_| {});
    let gateway = world.gateway.addr("tls");
    let config = certs::mutual_client_config(world.secrets.serving.pem(), None, &["h2"]).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let stream = TcpStream::connect(gateway).await.unwrap();
    let mut stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .unwrap();
    stream.write_all(b"PRI * HTTP").await.unwrap();
    let mut rest = Vec::new();
    let ended = timeout(LIMIT, stream.read_to_end(&mut rest)).await;
    let _ = ended.expect("an end");
    world.gateway.wait_closed("tls", "preamble_timeout", 1);
}
