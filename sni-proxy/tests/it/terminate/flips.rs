//! A route that changes under load: it terminates, is passed through, terminates with other settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use testkit::certs::Authority;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::frames::{DATA, Frames, RST_STREAM, Said};
use super::recorder::Recorder;
use super::{Client, NAME, World};
use crate::support::LIMIT;

impl World {
    /// Writes the routes anew, and waits until they are in effect.
    pub(super) fn change(&self, routes: &str) {
        let name = "rhizome_snapshot_generation";
        let before = self.gateway.value(name, &[]);
        self.gateway.dir.replace("routes.yaml", routes).unwrap();
        self.gateway.wait_value(name, &[], before + 1.0);
    }

    pub(super) fn routes(&self) -> String {
        std::fs::read_to_string(self.gateway.dir.join("routes.yaml")).unwrap()
    }
}

/// Returns the routes without `terminate`.
fn passed_through(routes: &str) -> String {
    let (clusters, _) = routes.split_once("routes:").unwrap();
    format!("{clusters}routes:\n- {{ serverNames: [\"{NAME}\"], cluster: api }}\n")
}

/// Returns whether a stream was above the last one that the server says it has processed (RFC 9113 §6.8): it may be
/// tried elsewhere. h2 may send a request behind its answer to the ping that ends a graceful shutdown.
fn is_beyond_goaway(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|own| own.downcast_ref::<h2::Error>());
    cause.is_some_and(|own| own.is_go_away() && own.reason() == Some(h2::Reason::NO_ERROR))
}

/// Asks again and again, over connections that each end after some requests, or when the gateway says so; a request
/// that was sent must be answered.
async fn load(
    addr: std::net::SocketAddr,
    authorities: String,
    protocol: &'static str,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
) {
    while !over.load(Ordering::Relaxed) {
        let stream = TcpStream::connect(addr).await.unwrap();
        let client = Client::over(stream, &authorities, None, protocol).await;
        let mut client = client.expect("a handshake");
        for _ in 0..200 {
            let request = client.request(&[]);
            let sent = match &mut client {
                Client::Http1(sender) => match sender.ready().await {
                    Ok(()) => timeout(LIMIT, sender.try_send_request(request)).await,
                    Err(_) => break,
                },
                Client::Http2(sender) => match sender.ready().await {
                    Ok(()) => timeout(LIMIT, sender.try_send_request(request)).await,
                    Err(_) => break,
                },
            };
            let response = match sent.expect("an answer") {
                Ok(response) => response,
                Err(mut error) => {
                    let unsent = error.take_message().is_some() || is_beyond_goaway(error.error());
                    assert!(unsent, "{protocol}: {error:?}");
                    break;
                }
            };
            assert_eq!(response.status(), StatusCode::OK, "{protocol}");
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.to_bytes(), "ok");
            asked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_route_fails_no_request() {
    let (world, _recorder) = Recorder::start(&["h2", "http/1.1"]);
    let cluster = std::fs::read_to_string(world.gateway.dir.join("cluster.crt")).unwrap();
    let authorities = format!("{}{cluster}", world.secrets.serving.pem());
    let (over, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let clients: Vec<_> = ["h2", "http/1.1", "h2", "http/1.1"]
        .into_iter()
        .map(|protocol| {
            let addr = world.gateway.addr("tls");
            let (over, asked) = (Arc::clone(&over), Arc::clone(&asked));
            tokio::spawn(load(addr, authorities.clone(), protocol, over, asked))
        })
        .collect();
    let terminating = world.routes();
    let identity = "identity: { cert: front.crt, key: front.key }";
    assert!(terminating.contains(identity));
    let other = terminating.replace(
        "terminate: &terminate",
        "terminate: &terminate\n    hsts: 1s",
    );
    let through = passed_through(&terminating);
    let world = tokio::task::spawn_blocking(move || {
        for routes in [&through, &terminating, &other].repeat(4) {
            testkit::wait::pause(Duration::from_millis(200));
            world.change(routes);
        }
        world
    });
    let world = world.await.unwrap();
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked > 500, "{asked}");
    drop(world);
}

/// What had begun goes on, whatever becomes of the route; the connection takes nothing new, and ends with it.
#[tokio::test]
async fn changed_route_ends_no_watch() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    let watch = frames.get("/events").await;
    assert_eq!(frames.said(watch).await, Said::Status(200));
    let world = tokio::task::spawn_blocking(move || {
        world.change(&passed_through(&world.routes()));
        world
    });
    let world = world.await.unwrap();
    assert!(frames.serves().await);
    // Longer than `drain.timeout` of these tests.
    while let Some(frame) = frames.next_within(Duration::from_secs(6)).await {
        assert!(frame.stream != watch || frame.kind == DATA, "{frame:?}");
        assert_ne!(frame.kind, RST_STREAM);
    }
    assert_eq!(frames.goaway, Some(0));
    assert_eq!(recorder.active.load(Ordering::Relaxed), 1);
    drop((frames, world));
    recorder.wait_active(0).await;
}

/// The certificate that a client has accepted is not that of the route which has the name now.
#[tokio::test]
async fn moved_name_takes_no_request_along() {
    for terminate in [
        "  terminate: { certificate: { cert: other.crt, key: other.key }, upstream: { authorities: others.crt, serverName: kubernetes.test } }\n",
        "",
    ] {
        let (world, recorder) = Recorder::start(&["h2"]);
        let (other, dir) = (Arc::<Recorder>::default(), &world.gateway.dir);
        let address = Arc::clone(&other).listen_in(dir, "others.crt", &["h2"]);
        let serving = Authority::new("serving").unwrap();
        let own = serving.server(&[NAME]).unwrap();
        own.write(dir.path(), "other").unwrap();
        let mut client = world.client(None, "h2").await;
        let token = [("authorization", "Bearer a")];
        let request = client.request(&token);
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(recorder.take().len(), 1);
        let cluster =
            format!("clusters:\n- {{ name: other, endpoints: [{{ address: \"{address}\" }}] }}\n");
        let route = format!("routes:\n- serverNames: [\"{NAME}\"]\n  cluster: other\n{terminate}");
        let routes = world.routes().replace("clusters:\n", &cluster);
        let routes = routes.replace("routes:\n", &route);
        world.change(&routes.replace(
            &format!("[\"{NAME}\", \"*.{NAME}\"]"),
            &format!("[\"*.{NAME}\"]"),
        ));
        let request = client.request(&token);
        let response = client.send(request).await.unwrap();
        assert_eq!(
            response.status(),
            StatusCode::SERVICE_UNAVAILABLE,
            "{terminate}"
        );
        assert!(recorder.take().is_empty() && other.take().is_empty());
        let labels = [("listener", "tls"), ("reason", "closed")];
        let name = "rhizome_connections_closed_total";
        world.wait_value(name, &labels, 1.0).await;
    }
}
