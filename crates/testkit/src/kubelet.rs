//! A stand-in for a kubelet: TLS, and answers by which a proxied connection is judged.
//!
//! ```text
//!   client ─▶ API server, /api/v1/nodes/NODE/proxy/PATH ─▶ … ─▶ Kubelet
//! ```
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | `ok` |
//! | `/metrics` | a few lines of text |
//! | `/big?bytes=N` | [`pattern`] of N bytes |
//! | `/logs?lines=N&every=MS` | N lines in chunks, MS milliseconds between them |
//! | `/events` | JSON lines, the first at once, one more for each [`Kubelet::release`], no end |
//! | `/hang` | nothing, ever |
//! | `/echo` | the body that was sent |
//! | `/exec/…`, `/attach/…`, `/portForward/…` by SPDY or WebSocket | what kubectl expects: input is echoed; `command=send&command=N` writes [`pattern`] of N bytes |
//! | any other path with a header `Upgrade` | 101, then whatever the client sends |
//! | else | 404 |
//!
//! Every answer ends its connection, so that one request is one connection. It runs nothing and
//! authenticates no one.

mod spdy;
mod websocket;

use std::net::TcpListener;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::certs::Identity;
use crate::https::{self, Request, Response, Server};

pub use crate::https::pattern;

/// A running stand-in. Dropping it closes its connections and its port.
#[derive(Debug)]
pub struct Kubelet {
    server: Server,
    events: watch::Sender<u64>,
}

impl Kubelet {
    /// Serves for `node` on a socket that is bound already, in any namespace.
    pub fn start(listener: TcpListener, node: &str, identity: &Identity) -> Result<Self> {
        let node: Arc<str> = Arc::from(node);
        let events = watch::Sender::new(1);
        let allowed = events.subscribe();
        let server = Server::start("kubelet", listener, identity, move |request, _| {
            let (node, allowed) = (Arc::clone(&node), allowed.clone());
            async move {
                let mut response = answer(&node, request, allowed).await;
                let close = HeaderValue::from_static("close");
                response.headers_mut().entry(CONNECTION).or_insert(close);
                response
            }
        })?;
        Ok(Self { server, events })
    }

    /// Lets every reader of `/events` have one more.
    pub fn release(&self) {
        self.events.send_modify(|events| *events += 1);
    }
}

impl Deref for Kubelet {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

async fn answer(node: &Arc<str>, request: Request, allowed: watch::Receiver<u64>) -> Response {
    if request.headers().contains_key(UPGRADE) {
        return upgrade(request);
    }
    let number = |name| https::number(&request, name);
    match request.uri().path() {
        "/healthz" => https::whole(200, "text/plain", "ok"),
        "/metrics" => {
            let text = format!("kubelet_node_name{{node=\"{node}\"}} 1\n");
            https::whole(200, "text/plain; version=0.0.4", text)
        }
        "/big" => https::big(number("bytes")),
        "/logs" => logs(number("lines"), Duration::from_millis(number("every"))),
        "/events" => events(Arc::clone(node), allowed),
        "/hang" => std::future::pending().await,
        "/echo" => {
            let body = request.into_body().collect().await;
            let body = body.map(http_body_util::Collected::to_bytes);
            https::whole(200, "application/octet-stream", body.unwrap_or_default())
        }
        other => {
            let text = format!("{node} has nothing at {} {other}\n", request.method());
            https::whole(404, "text/plain", text)
        }
    }
}

fn logs(lines: u64, every: Duration) -> Response {
    https::pieces("text/plain", None, move |mut pieces| async move {
        for line in 1..=lines {
            if line > 1 {
                tokio::time::sleep(every).await;
            }
            pieces.send(format!("line {line}\n")).await?;
        }
        Some(())
    })
}

fn events(node: Arc<str>, mut allowed: watch::Receiver<u64>) -> Response {
    https::pieces("application/json", None, |mut pieces| async move {
        for sequence in 1_u64.. {
            allowed
                .wait_for(|allowed| *allowed >= sequence)
                .await
                .ok()?;
            let event = json!({ "sequence": sequence, "node": &*node });
            pieces.send(format!("{event}\n")).await?;
        }
        Some(())
    })
}

fn upgrade(mut request: Request) -> Response {
    let protocol = request.headers().get(UPGRADE).cloned();
    let streams = Streams::of(&request);
    let answered = streams.as_ref().map(|own| own.headers(&request));
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.ok()?;
        let mut stream = TokioIo::new(upgraded);
        match streams {
            Some(Streams::Process(Protocol::Spdy, own)) => {
                return spdy::run(stream, own).await.ok();
            }
            Some(Streams::Process(Protocol::WebSocket, own)) => {
                return websocket::run(stream, own).await.ok();
            }
            Some(Streams::Forward(Protocol::Spdy)) => return spdy::forward(stream).await.ok(),
            Some(Streams::Forward(Protocol::WebSocket)) => {
                return websocket::forward(stream).await.ok();
            }
            None => {}
        }
        let mut buf = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buf).await {
            stream.write_all(&buf[..read]).await.ok()?;
            stream.flush().await.ok()?;
        }
        let _ = stream.shutdown().await;
        // Until here the connection counts as open.
        drop(request);
        Some(())
    });
    let mut response = https::whole(101, "text/plain", "");
    let headers = response.headers_mut();
    headers.remove(http::header::CONTENT_TYPE);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
    for (name, value) in answered.into_iter().flatten() {
        headers.extend(value.parse().map(|value| (name, value)));
    }
    response
}

/// What is served over streams.
enum Streams {
    Process(Protocol, spdy::Process),
    Forward(Protocol),
}

#[derive(Clone, Copy)]
enum Protocol {
    Spdy,
    WebSocket,
}

impl Streams {
    fn of(request: &Request) -> Option<Self> {
        let protocol = match request.headers().get(UPGRADE)?.as_bytes() {
            own if own.eq_ignore_ascii_case(b"SPDY/3.1") => Protocol::Spdy,
            own if own.eq_ignore_ascii_case(b"websocket") => Protocol::WebSocket,
            _ => return None,
        };
        let is = |name| https::parameter(request, name) == "1";
        let words = request.uri().query().unwrap_or_default().split('&');
        let mut words = words.filter_map(|word| word.strip_prefix("command="));
        let bytes = match words.next() {
            Some("send") => words.next().and_then(|bytes| bytes.parse().ok()),
            _ => None,
        };
        let (kind, _) = request.uri().path().get(1..)?.split_once('/')?;
        match kind {
            "exec" | "attach" => Some(Self::Process(
                protocol,
                spdy::Process {
                    input: is("input"),
                    output: is("output"),
                    error: is("error"),
                    bytes: bytes.unwrap_or(0),
                },
            )),
            "portForward" => Some(Self::Forward(protocol)),
            _ => None,
        }
    }

    fn headers(&self, request: &Request) -> Vec<(HeaderName, String)> {
        let websocket = |subprotocol: &str| {
            let key = request.headers().get(SEC_WEBSOCKET_KEY);
            let accept = websocket::accept(key.map_or(&[], HeaderValue::as_bytes));
            let subprotocol = (SEC_WEBSOCKET_PROTOCOL, subprotocol.to_owned());
            vec![(SEC_WEBSOCKET_ACCEPT, accept), subprotocol]
        };
        match self {
            Self::Process(Protocol::Spdy, _) => vec![(STREAM_VERSION, "v4.channel.k8s.io".into())],
            Self::Process(Protocol::WebSocket, _) => websocket("v5.channel.k8s.io"),
            Self::Forward(Protocol::Spdy) => vec![(STREAM_VERSION, "portforward.k8s.io".into())],
            Self::Forward(Protocol::WebSocket) => websocket("SPDY/3.1+portforward.k8s.io"),
        }
    }
}

const STREAM_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Authority;
    use crate::http::{self, Connection, Target};
    use crate::wait;

    /// The example of RFC 6455 section 1.3.
    #[test]
    fn websocket_key_is_accepted() {
        let accept = websocket::accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    fn node() -> (Kubelet, Target) {
        let authority = Authority::new("unit").unwrap();
        let identity = authority.server(&["127.0.0.1"]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kubelet = Kubelet::start(listener, "node-0", &identity).unwrap();
        let target = Target::tls(kubelet.addr(), authority.pem());
        (kubelet, target)
    }

    #[test]
    fn body_is_as_long_as_asked() {
        let (kubelet, target) = node();
        for bytes in [0, 1, 13, 65_536, 200_003] {
            let answer = http::get(&target, &format!("/big?bytes={bytes}")).unwrap();
            assert!(answer.body == pattern(bytes), "{bytes}");
        }
        let limit = Duration::from_secs(20);
        wait::until("the close", limit, || kubelet.open() == 0).unwrap();
        assert_eq!(kubelet.accepted(), 5);
    }

    #[test]
    fn event_waits_until_released() {
        let (kubelet, target) = node();
        let mut watch = Connection::open(&target).unwrap().watch("/events").unwrap();
        assert_eq!(watch.next_event().unwrap().unwrap()["sequence"], 1);
        kubelet.release();
        assert_eq!(watch.next_event().unwrap().unwrap()["sequence"], 2);
    }

    #[test]
    fn echo_returns_what_is_posted() {
        let (_kubelet, target) = node();
        let mut connection = Connection::open(&target).unwrap();
        let answer = connection.request("POST", "/echo", Some("{}")).unwrap();
        assert_eq!(answer.text(), "{}");
        assert_eq!(http::get(&target, "/nothing").unwrap().status, 404);
        let logs = http::get(&target, "/logs?lines=3").unwrap().text();
        assert_eq!(logs.len(), 21);
    }

    #[test]
    fn upgraded_connection_echoes_and_counts_as_open() {
        let (kubelet, target) = node();
        let connection = Connection::open(&target).unwrap();
        let mut upgraded = connection.upgrade("/exec", "SPDY/3.1").unwrap();
        assert_eq!(upgraded.exchange(b"ping").unwrap(), b"ping");
        assert_eq!(kubelet.open(), 1);
        drop(upgraded);
        let limit = Duration::from_secs(20);
        wait::until("the close", limit, || kubelet.open() == 0).unwrap();
    }
}
