//! A server that stands in for an API server behind a terminating route: it says what it was asked, by whom,
//! and over which connection; `/never` it does not answer, and `/large` with [`LARGE`] bytes. It authenticates no client, watches nothing and stores nothing.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// More than sockets hold.
const LARGE: usize = 64 << 20;

/// Ends with the test's process.
#[derive(Debug)]
pub(crate) struct ApiServer(SocketAddr);

/// What a server was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked(pub(crate) Value);

impl ApiServer {
    pub(crate) fn start(name: &'static str, tls: Arc<ServerConfig>) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), name, tls)
    }

    pub(crate) fn start_at(at: SocketAddr, name: &'static str, tls: Arc<ServerConfig>) -> Self {
        let listener = std::net::TcpListener::bind(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let listener = TcpListener::from_std(listener).unwrap();
                for connection in 0.. {
                    let (stream, _) = listener.accept().await.unwrap();
                    let acceptor = TlsAcceptor::from(Arc::clone(&tls));
                    tokio::task::spawn_local(async move {
                        let Ok(stream) = acceptor.accept(stream).await else {
                            return;
                        };
                        serve(name, connection, stream).await;
                    });
                }
            });
        });
        Self(address)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.0
    }
}

async fn serve(
    name: &'static str,
    connection: usize,
    stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
) {
    let session = stream.get_ref().1;
    let mutual = session.peer_certificates().is_some();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let nth = Rc::new(Cell::new(0));
    let service = service_fn(move |request: Request<Incoming>| {
        let nth = nth.replace(nth.get() + 1);
        async move { Ok::<_, Infallible>(answer(name, (connection, nth, mutual), request).await) }
    });
    let io = TokioIo::new(stream);
    // The test may end first.
    let _ = if http2 {
        let builder = hyper::server::conn::http2::Builder::new(Local);
        builder.serve_connection(io, service).await
    } else {
        let builder = hyper::server::conn::http1::Builder::new();
        let connection = builder.serve_connection(io, service);
        connection.with_upgrades().await
    };
}

/// Runs what hyper starts on the thread of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async {
            future.await;
        });
    }
}

async fn answer(
    name: &str,
    (connection, nth, mutual): (usize, usize, bool),
    mut request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let headers: Vec<[String; 2]> = request
        .headers()
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            [name.to_string(), value]
        })
        .collect();
    if let Some(protocol) = request.headers().get(header::UPGRADE).cloned() {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::task::spawn_local(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let mut upgraded = TokioIo::new(upgraded);
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = upgraded.read(&mut bytes).await {
                bytes[..read].make_ascii_uppercase();
                if upgraded.write_all(&bytes[..read]).await.is_err() {
                    return;
                }
            }
            let _ = upgraded.shutdown().await;
        });
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, "Upgrade".parse().unwrap());
        headers.insert(header::UPGRADE, protocol);
        return response;
    }
    match request.uri().path() {
        "/never" => std::future::pending().await,
        "/large" => return Response::new(Full::new(vec![0; LARGE].into())),
        _ => {}
    }
    let (version, uri) = (request.version(), request.uri().to_string());
    let collected = request.into_body().collect().await;
    let (body, trailers) = collected.map_or((0, Vec::new()), |body| {
        let trailers = body.trailers().into_iter().flatten();
        let trailers = trailers.map(|(name, _)| name.to_string()).collect();
        (body.to_bytes().len(), trailers)
    });
    let text = json!({
        "server": name, "connection": connection, "nth": nth, "mutual": mutual, "uri": uri,
        "version": format!("{version:?}"), "headers": headers, "body": body, "trailers": trailers,
    });
    Response::new(Full::new(text.to_string().into()))
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let all = self.0["headers"].as_array().unwrap().iter();
        let of_name = all.filter(|header| header[0] == name);
        of_name.map(|header| header[1].as_str().unwrap()).collect()
    }
}
