//! The endpoints, by real requests.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;

use super::*;
use crate::admin::{ClusterStatus, EndpointStatus, Endpoints, Status};
use crate::http::tests::{Client, Reply};
use crate::{Bound, EndpointAddr};

#[derive(Default)]
struct Sample {
    not_ready: Option<&'static str>,
    sick: bool,
    drains: AtomicUsize,
    clusters: usize,
}

impl Process for Sample {
    fn binary(&self) -> &'static str {
        "sample"
    }

    fn ready(&self) -> Result<(), String> {
        self.not_ready
            .map_or(Ok(()), |reason| Err(reason.to_owned()))
    }

    fn healthy(&self) -> Result<(), String> {
        if self.sick {
            Err("stuck".to_owned())
        } else {
            Ok(())
        }
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
        let process = Arc::new(sample);
        let registry = Registry::new();
        registry
            .counter("rhizome_x_total", "X.", &[])
            .with(&[])
            .inc();
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
        let bound = Bound::new(&"127.0.0.1:0".parse().unwrap()).unwrap();
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
        Self::start(true, Sample::default())
    }

    async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        Client::connect(&self.address)
            .await
            .ask(method, path, headers, body)
            .await
    }

    async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", "").await
    }

    async fn get_json(&self, path: &str) -> Value {
        let reply = self.get(path).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some("application/json"))
        );
        serde_json::from_str(&reply.body).unwrap()
    }
}

#[test]
fn probe_paths_are_known_by_first_segment() {
    for path in [
        "/healthz",
        "/livez",
        "/ready",
        "/readyz",
        "/readyz/shoot--foo--bar",
        "/startupz",
    ] {
        assert!(is_probe(path), "{path}");
    }
    for path in [
        "",
        "/",
        "/metrics",
        "/readyzz",
        "healthz",
        "//readyz",
        "/x/readyz",
    ] {
        assert!(!is_probe(path), "{path}");
    }
}

#[tokio::test]
async fn probe_port_has_its_endpoints_only() {
    let server = Server::start(false, Sample::default());
    for path in ["/healthz", "/readyz"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok"), "{path}");
    }
    assert_eq!(server.get("/metrics").await.status, 200);
    assert_eq!(server.get("/ready?x=1").await.body, "Some(\"x=1\")");
    for path in [
        "/",
        "/config",
        "/snapshot",
        "/connections",
        "/status",
        "/log",
        "/trace",
    ] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    assert_eq!(server.ask("POST", "/drain", "", "").await.status, 404);
    assert_eq!(server.process.drains.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn probes_report_why_they_fail() {
    let sample = Sample {
        not_ready: Some("no routes yet"),
        sick: true,
        ..Sample::default()
    };
    let server = Server::start(true, sample);
    let reply = server.get("/readyz").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "no routes yet"));
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("\nrhizome_ready 0\n"), "{metrics}");
    let reply = server.get("/healthz").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "stuck"));
    assert_eq!(
        server.get_json("/status").await["not_ready"],
        "no routes yet"
    );
}

#[tokio::test]
async fn metrics_format_follows_the_accept_header() {
    let server = Server::admin();
    let reply = server.get("/metrics").await;
    assert_eq!(
        reply.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(
        reply
            .body
            .contains("# TYPE rhizome_x_total counter\nrhizome_x_total 1\n")
    );
    assert!(reply.body.contains("\nrhizome_ready 1\n"), "{}", reply.body);
    let accept = "accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\n";
    let reply = server.ask("GET", "/metrics", accept, "").await;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), Some(content_type));
    assert!(reply.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn admin_address_shows_the_process_state() {
    let server = Server::start(
        true,
        Sample {
            clusters: 3,
            ..Sample::default()
        },
    );
    assert_eq!(server.get_json("/config").await, json!({ "workers": 2 }));
    assert_eq!(
        server.get_json("/snapshot").await["clusters"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(server.get("/trace").await.status, 202);
    assert_eq!(server.get("/nothing").await.status, 404);
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
    for (query, limit) in [("", 1000), ("?limit=5", 5), ("?x=y&limit=99999999", 10_000)] {
        assert_eq!(
            server.get_json(&format!("/connections{query}")).await["limit"],
            limit
        );
    }
    for bad in ["-1", "x", "", "99999999999999999999999"] {
        assert_eq!(
            server
                .get(&format!("/connections?limit={bad}"))
                .await
                .status,
            400,
            "{bad}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn connections_time_out_without_workers() {
    assert_eq!(
        Server::admin().get("/connections?limit=0").await.status,
        504
    );
}

#[tokio::test]
async fn snapshot_of_ten_thousand_clusters_is_complete() {
    let server = Server::start(
        true,
        Sample {
            clusters: 10_000,
            ..Sample::default()
        },
    );
    let snapshot = server.get_json("/snapshot").await;
    assert_eq!(
        snapshot["clusters"][9999]["name"],
        "outbound|443||api.shoot-9999"
    );
    let status = server.get_json("/status").await;
    assert_eq!(
        status["clusters"].as_array().unwrap().len(),
        page::MAX_CLUSTERS
    );
    assert_eq!(status["clusters_total"], 10_000);
}

#[tokio::test]
async fn clusters_are_filtered_by_name_and_endpoint() {
    let server = Server::start(
        true,
        Sample {
            clusters: 300,
            ..Sample::default()
        },
    );
    for (filter, total) in [
        ("CLUSTER-17", 11),
        ("10.0.250.1", 1),
        ("%3a443", 300),
        ("none", 0),
    ] {
        let status = server.get_json(&format!("/status?filter={filter}")).await;
        assert_eq!(status["clusters_total"], total, "{filter}");
    }
    assert_eq!(
        server.get_json("/status?filter=+").await["clusters_total"],
        300
    );
}

#[tokio::test]
async fn drain_requires_post() {
    let server = Server::admin();
    let reply = server.get("/drain").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert_eq!(server.process.drains.load(Ordering::SeqCst), 0);
    assert_eq!(server.ask("POST", "/drain", "", "").await.status, 200);
    assert_eq!(server.process.drains.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn pages_of_other_sites_cannot_drain() {
    let server = Server::admin();
    for headers in [
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
    ] {
        let reply = server.ask("POST", "/drain", headers, "").await;
        assert_eq!(reply.status, 403, "{headers}");
    }
    assert_eq!(server.process.drains.load(Ordering::SeqCst), 0);
    // The process's own page under the name of another site (DNS rebinding).
    for (host, headers, status) in [
        ("127.0.0.1:9901", "sec-fetch-site: same-origin\r\n", 200),
        ("[::1]:9901", "sec-fetch-site: same-origin\r\n", 200),
        ("localhost", "origin: http://localhost\r\n", 200),
        ("evil.example", "sec-fetch-site: same-origin\r\n", 403),
        ("evil.example", "origin: http://evil.example\r\n", 403),
        ("anything", "", 200), // no browser
    ] {
        let mut client = Client::connect(&server.address).await;
        let request = format!("POST /drain HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        client.send(&request).await;
        let reply = client.reply(true).await.unwrap();
        assert_eq!(reply.status, status, "{host} {headers}");
    }
}

#[tokio::test]
async fn log_filter_is_read_and_replaced() {
    let server = Server::admin();
    assert_eq!(server.get("/log").await.body, "info\n");
    assert_eq!(
        server
            .ask("PUT", "/log", "", "warn,relay=debug\n")
            .await
            .status,
        200
    );
    assert_eq!(server.get("/log").await.body, "warn,relay=debug\n");
    let reply = server.ask("PUT", "/log", "", "loud").await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("\"loud\""), "{}", reply.body);
    for nonsense in ["\u{0}", "", "nonsense", "level=debug", "relay="] {
        let reply = server.ask("PUT", "/log", "", nonsense).await;
        assert_eq!(reply.status, 400, "{nonsense:?}");
        assert_eq!(server.get("/log").await.body, "warn,relay=debug\n");
    }
    let reply = server.ask("PUT", "/log?level=debug", "", "").await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        server
            .ask("PUT", "/log", "", &"x".repeat(MAX_BODY_BYTES + 1))
            .await
            .status,
        413
    );
    assert_eq!(server.get("/log").await.body, "warn,relay=debug\n");
    let reply = server.ask("POST", "/log", "", "info").await;
    assert_eq!(
        (reply.status, reply.header("allow")),
        (405, Some("GET, HEAD, PUT"))
    );
}

#[tokio::test(start_paused = true)]
async fn missing_body_times_out() {
    let server = Server::admin();
    let mut client = Client::connect(&server.address).await;
    client
        .send("PUT /log HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nin")
        .await;
    assert_eq!(client.reply(true).await.unwrap().status, 408);
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
    for method in ["DELETE", "OPTIONS", "PATCH", "POST", "PUT"] {
        let reply = server.ask(method, "/snapshot", "", "").await;
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, Some("GET, HEAD")),
            "{method}"
        );
    }
}

#[tokio::test]
async fn page_policy_has_a_new_nonce_each_time() {
    let server = Server::admin();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let reply = server.get("/").await;
        assert_eq!(
            reply.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        let policy = reply.header("content-security-policy").unwrap();
        let nonce = policy
            .split("'nonce-")
            .nth(1)
            .unwrap()
            .split('\'')
            .next()
            .unwrap();
        assert!(policy.starts_with("default-src 'none'; "));
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
