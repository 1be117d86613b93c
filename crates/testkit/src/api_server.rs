//! A stand-in for a shoot's API server: TLS, a few of its paths, and a watch that never ends.
//!
//! Every answer carries the shoot's name, so that a client knows which API server it has reached.
//!
//! | path | answer |
//! |---|---|
//! | `/version`, `/api`, `/apis` | JSON with a field `shoot`, and `peer`: the socket that asked |
//! | `/healthz`, `/livez`, `/readyz` | `ok` |
//! | any path with `watch=1` or `watch=true` | chunked, an event each 200 ms: `shoot`, `sequence` from 1 |
//! | `/big?bytes=N` | N bytes |
//! | else | 404 |
//!
//! Connections are kept alive. It is no API server: it stores nothing and authenticates no one.

use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ServerConfig;
use serde_json::{Value, json};

use crate::certs::{self, Identity};
use crate::https::{self, Request, Response, Server};

/// A running stand-in. Dropping it closes its connections and its port.
#[derive(Debug)]
pub struct ApiServer(Server);

impl ApiServer {
    /// Serves for `shoot` on a socket that is bound already, in any namespace.
    pub fn start(listener: TcpListener, shoot: &str, identity: &Identity) -> Result<Self> {
        Self::start_with(listener, shoot, certs::server_config(identity)?)
    }

    /// The same, by HTTP/2 for clients that want it.
    pub fn start_http2(listener: TcpListener, shoot: &str, identity: &Identity) -> Result<Self> {
        let tls = certs::mutual_server_config(identity, None, &["h2", "http/1.1"])?;
        Self::start_with(listener, shoot, tls)
    }

    fn start_with(listener: TcpListener, shoot: &str, tls: Arc<ServerConfig>) -> Result<Self> {
        let shoot: Arc<str> = Arc::from(shoot);
        let answer = move |request: Request, peer| {
            let mut response = answer(&shoot, &request, peer);
            if let Ok(name) = shoot.parse() {
                response.headers_mut().insert("audit-id", name);
            }
            std::future::ready(response)
        };
        Server::start_with("api-server", listener, tls, answer).map(Self)
    }

    /// Binds a free port of `127.0.0.1` and serves there.
    pub fn on_loopback(shoot: &str, identity: &Identity) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("binding a port")?;
        Self::start(listener, shoot, identity)
    }
}

impl Deref for ApiServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

fn answer(shoot: &Arc<str>, request: &Request, peer: SocketAddr) -> Response {
    if matches!(https::parameter(request, "watch"), "1" | "true") {
        return watch(Arc::clone(shoot));
    }
    let json = |mut value: Value| {
        value["shoot"] = json!(&**shoot);
        value["peer"] = json!(peer.to_string());
        https::whole(200, "application/json", value.to_string())
    };
    match request.uri().path() {
        "/version" => json(json!({
            "major": "1", "minor": "20", "gitVersion": "v1.20.2", "platform": "linux/amd64",
        })),
        "/api" => json(json!({ "kind": "APIVersions", "versions": ["v1"] })),
        "/apis" => json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] })),
        "/healthz" | "/livez" | "/readyz" => https::whole(200, "text/plain", "ok"),
        "/big" => https::big(https::number(request, "bytes")),
        other => {
            let text = format!("{shoot} has nothing at {other}\n");
            https::whole(404, "text/plain", text)
        }
    }
}

/// Sends an event each 200 ms until the client goes away.
fn watch(shoot: Arc<str>) -> Response {
    https::pieces("application/json", None, |mut pieces| async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        for sequence in 1_u64.. {
            ticks.tick().await;
            let event = json!({
                "type": "MODIFIED",
                "shoot": &*shoot,
                "sequence": sequence,
                "object": {
                    "kind": "Pod", "apiVersion": "v1",
                    "metadata": {
                        "name": "pod-0", "namespace": "default",
                        "resourceVersion": sequence.to_string(),
                    },
                },
            });
            pieces.send(format!("{event}\n")).await?;
        }
        Some(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Authority;
    use crate::http::{self, Connection, Target};
    use crate::wait;

    fn shoot() -> (ApiServer, Target) {
        let authority = Authority::new("unit").unwrap();
        let identity = authority.server(&["api.example.com", "127.0.0.1"]).unwrap();
        let server = ApiServer::on_loopback("shoot--foo--bar", &identity).unwrap();
        let target = Target::tls(server.addr(), authority.pem());
        (server, target)
    }

    #[test]
    fn connection_carries_several_requests() {
        let (server, target) = shoot();
        let mut conn = Connection::open(&target.server_name("api.example.com")).unwrap();
        let version = conn.get("/version").unwrap().json().unwrap();
        assert_eq!(version["shoot"], "shoot--foo--bar");
        assert_eq!(conn.get("/healthz").unwrap().text(), "ok");
        let big = conn.get("/big?bytes=1000000").unwrap().body;
        assert_eq!(big.len(), 1_000_000);
        assert_eq!(conn.get("/nothing").unwrap().status, 404);
        assert_eq!((server.accepted(), server.requests()), (1, 4));
        drop(conn);
        wait::until("the close", Duration::from_secs(20), || server.open() == 0).unwrap();
    }

    #[test]
    fn address_in_certificate_suffices() {
        let (_server, target) = shoot();
        assert_eq!(http::get(&target, "/readyz").unwrap().status, 200);
    }

    #[test]
    fn watch_counts_from_one_without_gaps() {
        let (_server, target) = shoot();
        let connection = Connection::open(&target).unwrap();
        let mut watch = connection.watch("/api/v1/pods?watch=1").unwrap();
        for expected in 1..=3 {
            let event = watch.next_event().unwrap().unwrap();
            assert_eq!(event["sequence"], expected);
            assert_eq!(event["shoot"], "shoot--foo--bar");
        }
    }
}
