//! The endpoints, by real requests.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use testkit::tempdir::TempDir;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::*;
use crate::admin::{ClusterStatus, EndpointStatus, Endpoints, Status};
use crate::http::tests::{Client, Reply};
use crate::{Bound, EndpointAddr};

#[derive(Default)]
struct Sample {
    not_ready: Option<&'static str>,
    sick: Option<&'static str>,
    drains: AtomicUsize,
    clusters: usize,
}

impl Process for Sample {
    fn binary(&self) -> &'static str {
        "sample"
    }

    fn ready(&self) -> Result<(), String> {
        self.not_ready.map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn healthy(&self) -> Result<(), String> {
        self.sick.map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn config(&self) -> Value {
        json!({ "workers": 2 })
    }

    fn snapshot(&self) -> Value {
        let clusters = (0..self.clusters)
            .map(|number| json!({ "name": format!("outbound|443||api.shoot-{number}") }));
        json!({ "clusters": clusters.collect::<Vec<_>>() })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        Box::pin(async move {
            if limit == 0 {
                std::future::pending::<()>().await;
            }
            json!({ "limit": limit })
        })
    }

    fn drain(&self) {
        self.drains.fetch_add(1, Ordering::SeqCst);
    }

    fn status(&self) -> Status {
        let cluster = |number| ClusterStatus {
            name: format!("cluster-{number}"),
            endpoints: vec![EndpointStatus {
                address: format!("10.0.{number}.1:443"),
                state: "ready",
                ..EndpointStatus::default()
            }],
            ..ClusterStatus::default()
        };
        Status {
            version: "1.2.3",
            uptime: Duration::from_millis(1500),
            generation: Some(7),
            clusters: (0..self.clusters).map(cluster).collect(),
            clusters_total: self.clusters,
            ..Status::default()
        }
    }

    fn extra(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        match (method, path) {
            ("GET", "/ready") => Some((200, "text/plain", format!("{query:?}"))),
            _ => None,
        }
    }

    fn extra_admin(&self, _method: &str, path: &str, _query: Option<&str>) -> Option<Extra> {
        (path == "/trace").then(|| (202, "application/json", "{}".to_owned()))
    }
}

struct Server {
    process: Arc<Sample>,
    address: EndpointAddr,
    _end: oneshot::Sender<()>,
}

impl Server {
    fn start(admin: bool, sample: Sample) -> Self {
        Self::at(&"127.0.0.1:0".parse().unwrap(), admin, sample)
    }

    fn at(address: &EndpointAddr, admin: bool, sample: Sample) -> Self {
        let process = Arc::new(sample);
        let registry = Registry::new();
        let counter = registry.counter("rhizome_x_total", "X.", &[]);
        counter.with(&[]).inc();
        let build = crate::process::Build {
            binary: "sample",
            version: "1.2.3",
            revision: None,
        };
        crate::process::register(&registry, build);
        let make = if admin {
            Endpoints::admin
        } else {
            Endpoints::probes
        };
        let endpoints = make(process.clone(), registry, LogControl::detached());
        let bound = Bound::new(address).unwrap();
        let address = bound.local_addr().clone();
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(endpoints.serve(bound, async { drop(ended.await) }));
        Self {
            process,
            address,
            _end: end,
        }
    }

    fn admin() -> Self {
        Self::with_clusters(0)
    }

    fn with_clusters(clusters: usize) -> Self {
        let sample = Sample {
            clusters,
            ..Sample::default()
        };
        Self::start(true, sample)
    }

    async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let mut client = Client::connect(&self.address).await;
        client.ask(method, path, headers, body).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", "").await
    }

    /// Sends these bytes and returns the status of the answer.
    async fn send(&self, request: &str) -> u16 {
        let mut client = Client::connect(&self.address).await;
        client.send(request).await;
        client.reply(true).await.unwrap().status
    }

    async fn get_json(&self, path: &str) -> Value {
        let reply = self.get(path).await;
        let content_type = reply.header("content-type");
        assert_eq!(
            (reply.status, content_type),
            (200, Some("application/json"))
        );
        serde_json::from_str(&reply.body).unwrap()
    }

    /// Sends requests, `METHOD PATH BODY`, and checks status and body of the answers.
    async fn expect(&self, answers: &[(&str, u16, &str)]) {
        for (request, status, body) in answers {
            let mut parts = request.splitn(3, ' ');
            let mut part = || parts.next().unwrap_or_default();
            let reply = self.ask(part(), part(), "", part()).await;
            assert_eq!((reply.status, &*reply.body), (*status, *body), "{request}");
        }
    }

    fn drains(&self) -> usize {
        self.process.drains.load(Ordering::SeqCst)
    }
}

#[test]
fn probe_paths_are_known_by_first_segment() {
    for path in "/healthz /livez /ready /readyz /readyz/shoot--foo--bar /startupz".split(' ') {
        assert!(is_probe(path), "{path}");
    }
    for path in " / /metrics /readyzz healthz //readyz /x/readyz".split(' ') {
        assert!(!is_probe(path), "{path}");
    }
}

#[tokio::test]
async fn probe_port_has_its_endpoints_only() {
    let server = Server::start(false, Sample::default());
    let answers = [
        ("GET /healthz", 200, "ok"),
        ("GET /readyz", 200, "ok"),
        ("GET /ready?x=1", 200, "Some(\"x=1\")"),
        ("POST /drain", 404, "no such endpoint\n"),
    ];
    server.expect(&answers).await;
    assert_eq!(server.get("/metrics").await.status, 200);
    for path in "/ /config /snapshot /connections /status /log /trace".split(' ') {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    assert_eq!(server.drains(), 0);
}

#[tokio::test]
async fn probes_report_why_they_fail() {
    let sample = Sample {
        not_ready: Some("no routes yet"),
        sick: Some("stuck"),
        ..Sample::default()
    };
    let server = Server::start(true, sample);
    let answers = [
        ("GET /readyz", 503, "no routes yet"),
        ("GET /healthz", 503, "stuck"),
    ];
    server.expect(&answers).await;
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("\nrhizome_ready 0\n"), "{metrics}");
    let status = server.get_json("/status").await;
    assert_eq!(status["not_ready"], "no routes yet");
}

#[tokio::test]
async fn metrics_format_follows_the_accept_header() {
    let server = Server::admin();
    let open_metrics = "accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\n";
    for (accept, content_type, parts) in [
        (
            "",
            "text/plain; version=0.0.4; charset=utf-8",
            [
                "# TYPE rhizome_x_total counter\nrhizome_x_total 1\n",
                "\nrhizome_ready 1\n",
            ],
        ),
        (
            open_metrics,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ["\nrhizome_ready 1\n", "\n# EOF\n"],
        ),
    ] {
        let reply = server.ask("GET", "/metrics", accept, "").await;
        assert_eq!(reply.header("content-type"), Some(content_type));
        for part in parts {
            assert!(reply.body.contains(part), "{part}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn admin_address_shows_the_process_state() {
    let server = Server::with_clusters(3);
    let answers = [
        ("GET /config", 200, "{\"workers\":2}\n"),
        ("GET /trace", 202, "{}"),
        ("GET /nothing", 404, "no such endpoint\n"),
    ];
    server.expect(&answers).await;
    let snapshot = server.get_json("/snapshot").await;
    assert_eq!(snapshot["clusters"].as_array().unwrap().len(), 3);
    let status = server.get_json("/status").await;
    assert_eq!(status["binary"], "sample");
    assert_eq!(status["not_ready"], Value::Null);
    assert_eq!(status["uptime_seconds"], 1.5);
    assert_eq!(status["generation"], 7);
    assert_eq!(status["generation_age_seconds"], Value::Null);
    assert_eq!(status["clusters"][2]["endpoints"][0]["state"], "ready");
}

#[tokio::test]
async fn connections_take_a_bounded_limit() {
    let server = Server::admin();
    let answers = [
        ("GET /connections", 200, "{\"limit\":1000}\n"),
        ("GET /connections?limit=5", 200, "{\"limit\":5}\n"),
        (
            "GET /connections?x=y&limit=99999999",
            200,
            "{\"limit\":10000}\n",
        ),
    ];
    server.expect(&answers).await;
    for bad in ["-1", "x", "", "99999999999999999999999"] {
        let reply = server.get(&format!("/connections?limit={bad}")).await;
        assert_eq!(reply.status, 400, "{bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_and_missing_body_time_out() {
    let server = Server::admin();
    assert_eq!(server.get("/connections?limit=0").await.status, 504);
    let request = "PUT /log HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nin";
    assert_eq!(server.send(request).await, 408);
}

#[tokio::test]
async fn snapshot_of_ten_thousand_clusters_is_complete() {
    let server = Server::with_clusters(10_000);
    let snapshot = server.get_json("/snapshot").await;
    let name = &snapshot["clusters"][9999]["name"];
    assert_eq!(name, "outbound|443||api.shoot-9999");
    let status = server.get_json("/status").await;
    let shown = status["clusters"].as_array().unwrap().len();
    assert_eq!(shown, page::MAX_CLUSTERS);
    assert_eq!(status["clusters_total"], 10_000);
}

#[tokio::test]
async fn clusters_are_filtered_by_name_and_endpoint() {
    let server = Server::with_clusters(300);
    for (filter, total) in [
        ("CLUSTER-17", 11),
        ("10.0.250.1", 1),
        ("%3a443", 300),
        ("none", 0),
        ("+", 300),
    ] {
        let status = server.get_json(&format!("/status?filter={filter}")).await;
        assert_eq!(status["clusters_total"], total, "{filter}");
    }
}

#[tokio::test]
async fn drain_requires_post_from_no_other_site() {
    let server = Server::admin();
    let reply = server.get("/drain").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    for headers in [
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
    ] {
        let reply = server.ask("POST", "/drain", headers, "").await;
        assert_eq!(reply.status, 403, "{headers}");
    }
    assert_eq!(server.drains(), 0);
    server.expect(&[("POST /drain", 200, "draining\n")]).await;
    assert_eq!(server.drains(), 1);
    // The process's own page under the name of another site (DNS rebinding).
    for (host, headers, status) in [
        ("127.0.0.1:9901", "sec-fetch-site: same-origin\r\n", 200),
        ("[::1]:9901", "sec-fetch-site: same-origin\r\n", 200),
        ("localhost", "origin: http://localhost\r\n", 200),
        ("evil.example", "sec-fetch-site: same-origin\r\n", 403),
        ("evil.example", "origin: http://evil.example\r\n", 403),
        ("anything", "", 403),
    ] {
        let request = format!("POST /drain HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        assert_eq!(server.send(&request).await, status, "{host} {headers}");
    }
}

#[tokio::test]
async fn admin_answers_by_address_or_localhost() {
    let server = Server::admin();
    for (path, host, status) in [
        ("/status", "127.0.0.1:9901", 200),
        ("/status", "[::1]", 200),
        ("/status", "LOCALHOST:9901", 200),
        ("/status", "rebound.example:9901", 403),
        ("/", "rebound.example", 403),
        ("/connections", "", 403),
        ("/trace", "rebound.example", 403),
        // What probes and scrapers ask by a name, and shows no client.
        ("/metrics", "gateway.monitoring", 200),
        ("/readyz", "gateway.monitoring", 200),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(server.send(&request).await, status, "{path} {host}");
    }
    let request = "GET /status HTTP/1.0\r\n\r\n";
    assert_eq!(server.send(request).await, 200, "no browser");
    let probes = Server::start(false, Sample::default());
    let request = "GET /status HTTP/1.1\r\nhost: gateway.monitoring\r\n\r\n";
    assert_eq!(probes.send(request).await, 404, "no admin port");
    // No page reaches a Unix socket, whose clients call it anything.
    let dir = TempDir::new("admin").unwrap();
    let path = dir.join("admin.sock");
    let _server = Server::at(&EndpointAddr::Unix(path.clone()), true, Sample::default());
    let mut client = Client(BufReader::new(UnixStream::connect(path).await.unwrap()));
    client
        .send("GET /status HTTP/1.1\r\nhost: gateway\r\n\r\n")
        .await;
    assert_eq!(client.reply(true).await.unwrap().status, 200);
}

#[tokio::test]
async fn log_filter_is_read_and_replaced() {
    let server = Server::admin();
    let answers = [
        ("GET /log", 200, "info\n"),
        ("PUT /log warn,relay=debug\n", 200, "warn,relay=debug\n"),
        ("GET /log", 200, "warn,relay=debug\n"),
    ];
    server.expect(&answers).await;
    let reply = server.ask("PUT", "/log", "", "loud").await;
    assert!(reply.body.contains("\"loud\""), "{}", reply.body);
    let long = "x".repeat(MAX_BODY_BYTES + 1);
    for (path, body, status) in [
        ("/log", "loud", 400),
        ("/log", "\u{0}", 400),
        ("/log", "", 400),
        ("/log", "nonsense", 400),
        ("/log", "nonsense=debug", 400),
        ("/log", "level=debug", 400),
        ("/log", "5", 400),
        ("/log", "v=5", 400),
        ("/log", "relay=", 400),
        ("/log?level=debug", "", 400),
        ("/log", &long, 413),
    ] {
        let reply = server.ask("PUT", path, "", body).await;
        assert_eq!(reply.status, status, "{body:?}");
        server
            .expect(&[("GET /log", 200, "warn,relay=debug\n")])
            .await;
    }
}

#[tokio::test]
async fn head_is_get_without_body() {
    let server = Server::admin();
    let mut client = Client::connect(&server.address).await;
    for path in ["/healthz", "/metrics", "/", "/config", "/log", "/ready"] {
        let reply = client.ask("HEAD", path, "", "").await;
        assert_eq!(reply.status, 200, "{path}");
        assert_ne!(reply.header("content-length"), Some("0"), "{path}");
    }
    // What follows on the same connection shows that no body came.
    assert_eq!(client.get("/healthz").await.body, "ok");
    assert_eq!(client.ask("HEAD", "/drain", "", "").await.status, 405);
}

#[tokio::test]
async fn other_methods_are_refused() {
    let server = Server::admin();
    for (method, path, allow) in [
        ("DELETE", "/snapshot", "GET, HEAD"),
        ("OPTIONS", "/snapshot", "GET, HEAD"),
        ("PATCH", "/snapshot", "GET, HEAD"),
        ("POST", "/snapshot", "GET, HEAD"),
        ("PUT", "/snapshot", "GET, HEAD"),
        ("POST", "/log", "GET, HEAD, PUT"),
    ] {
        let reply = server.ask(method, path, "", "").await;
        let answer = (reply.status, reply.header("allow"));
        assert_eq!(answer, (405, Some(allow)), "{method} {path}");
    }
}

#[tokio::test]
async fn page_policy_has_a_new_nonce_each_time() {
    let server = Server::admin();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let reply = server.get("/").await;
        let content_type = reply.header("content-type");
        assert_eq!(content_type, Some("text/html; charset=utf-8"));
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; "));
        let (_, nonce) = policy.split_once("'nonce-").unwrap();
        let (nonce, _) = nonce.split_once('\'').unwrap();
        assert_eq!(reply.body.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        seen.push(nonce.to_owned());
    }
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn form_encoding_is_decoded() {
    for (text, decoded) in [
        ("a+b%20c", "a b c"),
        ("%7c%7C", "||"),
        ("100%", "100%"),
        ("%4", "%4"),
        ("%zz%41", "%zzA"),
        ("%c3%a9", "\u{e9}"),
        ("%ff", "\u{fffd}"),
    ] {
        let query = format!("x=y&filter={text}");
        let found = parameter(Some(&query), "filter");
        assert_eq!(found.as_deref(), Some(decoded), "{text}");
    }
}
