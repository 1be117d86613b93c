//! The endpoints, by real requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use telemetry::http::{Bound, EndpointAddr};
use telemetry::{Endpoints, LogControl, Process, Registry, Status};
use testkit::http::{Connection, Response, Target};
use tokio::sync::oneshot;

use super::*;
use crate::metrics::SERVER_BUILD;

/// A server with the tenants `full`, which has agents, and `empty`, which has none.
struct Sample(Mutex<State>);

const READY: State = State {
    started: true,
    draining: false,
    agents: Agents::Connected,
};

impl Probed for Sample {
    fn state(&self) -> State {
        *self.0.lock().unwrap()
    }

    fn tenant(&self, id: &str) -> Option<TenantState> {
        let state = |ready, frontends| Some(TenantState { ready, frontends });
        match id {
            "full" => state(true, 0),
            "empty" => state(false, 7),
            _ => None,
        }
    }
}

impl Process for Sample {
    fn binary(&self) -> &'static str {
        SERVER_BUILD.binary
    }

    fn ready(&self) -> Result<(), String> {
        self.state().ready().map_err(str::to_owned)
    }

    fn extra(&self, _method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        extra(self, path, query)
    }

    fn extra_admin(&self, _method: &str, path: &str, _query: Option<&str>) -> Option<Extra> {
        endpoints::profiles(path)
    }

    fn config(&self) -> Value {
        json!({ "config": 1 })
    }

    fn snapshot(&self) -> Value {
        json!({ "snapshot": 1 })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        Box::pin(async move { json!({ "limit": limit }) })
    }

    fn drain(&self) {
        self.0.lock().unwrap().draining = true;
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn status_of(&self, filter: &str) -> Status {
        Status {
            clusters_total: filter.len(),
            ..Status::default()
        }
    }
}

#[tokio::test]
async fn without_an_agent_the_server_is_alive_and_not_ready() {
    let server = Server::health(State {
        agents: Agents::Missing,
        ..READY
    });
    assert_eq!(server.get("/healthz").await, reply(200, "ok"));
    for path in ["/ready", "/readyz"] {
        let expected = reply(500, "no connection to any proxy agent");
        assert_eq!(server.get(path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn with_an_agent_the_server_is_ready() {
    let server = Server::health(READY);
    for path in ["/healthz", "/ready", "/readyz", "/readyz?verbose"] {
        assert_eq!(server.get(path).await, reply(200, "ok"), "{path}");
    }
}

#[tokio::test]
async fn with_a_registry_readiness_does_not_ask_for_agents() {
    let server = Server::health(State {
        agents: Agents::NotRequired,
        ..READY
    });
    assert_eq!(server.get("/readyz").await, reply(200, "ok"));
    let starting = State {
        started: false,
        agents: Agents::NotRequired,
        ..READY
    };
    let server = Server::health(starting);
    assert_eq!(
        server.get("/readyz").await,
        reply(500, "the server is starting")
    );
    assert_eq!(server.get("/healthz").await, reply(200, "ok"));
}

#[tokio::test]
async fn each_tenant_is_ready_by_its_own_agents() {
    let server = Server::health(State {
        agents: Agents::NotRequired,
        ..READY
    });
    assert_eq!(server.get("/readyz/full").await, reply(200, "ok"));
    assert_eq!(
        server.get("/readyz/empty").await,
        reply(500, "no connection to any proxy agent")
    );
    for path in ["/readyz/other", "/readyz/", "/readyz/full/x"] {
        assert_eq!(
            server.get(path).await,
            reply(404, "no such tenant"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn verbose_probe_shows_accepted_frontends() {
    let server = Server::health(READY);
    let full = "[+]agents ok\n[-]frontends none was accepted since the start\nok\n";
    assert_eq!(server.get("/readyz/full?verbose").await, reply(200, full));
    let empty = "[-]agents missing\n[+]frontends 7 accepted since the start\n\
                 no connection to any proxy agent\n";
    assert_eq!(
        server.get("/readyz/empty?verbose=1").await,
        reply(500, empty)
    );
}

#[tokio::test]
async fn draining_server_is_alive_and_not_ready() {
    let server = Server::admin(READY);
    assert_eq!(server.ask("POST", "/drain").await, reply(200, "draining\n"));
    for path in ["/ready", "/readyz", "/readyz/full", "/readyz/empty"] {
        let expected = reply(500, "the server is draining");
        assert_eq!(server.get(path).await, expected, "{path}");
    }
    assert_eq!(
        server.get("/readyz/other").await,
        reply(404, "no such tenant")
    );
    assert_eq!(server.get("/healthz").await, reply(200, "ok"));
}

#[tokio::test]
async fn metrics_are_on_both_ports_and_ours_on_the_admin_port_alone() {
    let (health, admin) = (Server::health(READY), Server::admin(READY));
    for server in [&health, &admin] {
        let (status, body) = server.get("/metrics").await;
        assert_eq!(status, 200);
        assert!(body.contains("# TYPE rhizome_x_total counter"), "{body}");
    }
    for (path, body) in [
        ("/config", "{\"config\":1}\n"),
        ("/snapshot", "{\"snapshot\":1}\n"),
        ("/connections?limit=3", "{\"limit\":3}\n"),
    ] {
        assert_eq!(admin.get(path).await, reply(200, body));
        assert_eq!(
            health.get(path).await,
            reply(404, "no such endpoint\n"),
            "{path}"
        );
    }
    let (status, body) = admin.get("/status?filter=abc").await;
    assert_eq!(status, 200);
    assert!(
        body.contains("\"binary\":\"konnectivity-server\""),
        "{body}"
    );
    assert!(body.contains("\"clusters_total\":3"), "{body}");
    assert_eq!(
        health.ask("POST", "/drain").await,
        reply(404, "no such endpoint\n")
    );
}

#[tokio::test]
async fn log_nonsense_is_refused_and_changes_nothing() {
    let admin = Server::admin(READY);
    let filter = "info,konnectivity=debug";
    let set = reply(200, "info,konnectivity=debug\n");
    assert_eq!(admin.send("PUT", "/log", Some(filter)).await, set);
    for nonsense in ["", "5", "nonsense", "v=5", "konnectivity=", "vmodule=debug"] {
        let (status, _) = admin.send("PUT", "/log", Some(nonsense)).await;
        assert_eq!(status, 400, "{nonsense:?}");
        assert_eq!(admin.get("/log").await, set, "{nonsense:?}");
    }
}

#[tokio::test]
async fn go_profiles_answer_not_found() {
    let admin = Server::admin(READY);
    let expected = reply(404, endpoints::NO_PROFILES);
    for path in ["/debug/pprof/", "/debug/pprof/profile?seconds=1"] {
        assert_eq!(admin.get(path).await, expected, "{path}");
    }
    let health = Server::health(READY);
    assert_eq!(
        health.get("/debug/pprof/").await,
        reply(404, "no such endpoint\n")
    );
}

struct Server {
    target: Target,
    _end: oneshot::Sender<()>,
}

impl Server {
    fn health(state: State) -> Self {
        Self::start(Endpoints::probes, state)
    }

    fn admin(state: State) -> Self {
        Self::start(Endpoints::admin, state)
    }

    fn start(make: fn(Arc<dyn Process>, Registry, LogControl) -> Endpoints, state: State) -> Self {
        let view = Arc::new(Sample(Mutex::new(state)));
        let registry = Registry::new();
        let _ = registry.counter("rhizome_x_total", "X.", &[]).with(&[]);
        let endpoints = make(view, registry, LogControl::detached());
        let bound = Bound::new(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let EndpointAddr::Tcp(address) = *bound.local_addr() else {
            panic!("not an address: {bound:?}");
        };
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(endpoints.serve(bound, async { drop(ended.await) }));
        Self {
            target: Target::plain(address),
            _end: end,
        }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path).await
    }

    async fn ask(&self, method: &'static str, path: &str) -> (u16, String) {
        let body = (method == "POST").then_some("");
        self.send(method, path, body).await
    }

    async fn send(
        &self,
        method: &'static str,
        path: &str,
        body: Option<&'static str>,
    ) -> (u16, String) {
        let (target, path) = (self.target.clone(), path.to_owned());
        let asking = tokio::task::spawn_blocking(move || {
            let mut connection = Connection::open(&target).unwrap();
            connection.request(method, &path, body).unwrap()
        });
        let response: Response = asking.await.unwrap();
        (response.status, response.text())
    }
}

fn reply(status: u16, body: &str) -> (u16, String) {
    (status, body.to_owned())
}
