//! A gateway that follows another one before it has routes, or their secrets.

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use route::{Handler, RouteSpec};
use rustls::pki_types::ServerName;
use testkit::certs::Authority;
use testkit::http::{self, Target};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::{ports, wait};

use super::control::{Control, asking, by_name, cluster, wait_ready};
use super::rotation::Pki;
use crate::handover::directory;
use crate::support::{Client, Gateway, LIMIT, Probe, Starting};

const WAITING: &str = "not ready: the other process goes on serving";
const TOOK_OVER: &str = "took over";
const HANDOVERS: &str = "rhizome_handovers_total";

/// How long a gateway waits for secrets.
const SECRETS: Duration = Duration::from_secs(15);

/// Where gateways follow each other.
struct Place {
    directory: TempDir,
    tls: SocketAddr,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: directory(),
            tls: ([127, 0, 0, 1], ports::free(1).unwrap()[0]).into(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("handover.sock")
    }

    /// Returns the configuration of one that asks for routes.
    fn config(&self, asking: &str, timeout: &str) -> String {
        let socket = self.socket();
        let handover = format!(
            "handover: {{ socket: {}, timeout: {timeout} }}\n",
            socket.display()
        );
        asking.replacen("127.0.0.1:0", &self.tls.to_string(), 1) + &handover
    }
}

fn echo() -> Upstream {
    Upstream::start(Behavior::Echo).unwrap()
}

#[test]
fn newcomer_without_routes_takes_nothing() {
    let (upstream, control, place) = (echo(), Control::start(), Place::new());
    let addr = control.addr;
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    // Each has a cache of its own.
    let config = place.config(&asking(addr), "10s");
    let first = Starting::begin(&config).serving();
    wait::until("the routes", LIMIT, || first.readiness() == 200).unwrap();
    let mut client = Client::established(place.tls, "a.test");

    drop(control);
    let mut second = Starting::begin(&config);
    second.wait_logged(WAITING);
    let mut third = Starting::begin(&config);
    third.wait_logged(WAITING);
    assert_eq!(third.stop().code(), Some(0));
    client.expect_echo(b"not moved");
    Client::established(place.tls, "a.test");
    assert_eq!(first.readiness(), 200);
    assert_eq!(first.value(HANDOVERS, &[]), 0.0);

    let control = Control::start_at(addr, None);
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    control.wait_clients(2);
    second.wait_logged(TOOK_OVER);
    let second = second.serving();
    client.expect_echo(b"moved");
    Client::established(place.tls, "a.test");
    let done = [("direction", "in"), ("outcome", "done")];
    assert_eq!(second.value(HANDOVERS, &done), 1.0);
}

#[test]
fn newcomer_starts_where_none_has_routes() {
    let place = Place::new();
    let nowhere = ([127, 0, 0, 1], ports::free(1).unwrap()[0]).into();
    let config = place.config(&asking(nowhere), "1h");
    // As a process leaves it that is killed.
    drop(UnixListener::bind(place.socket()).unwrap());
    let first = Starting::begin(&config).serving();
    assert_eq!(first.readiness(), 503);
    let mut second = Starting::begin(&config);
    second.wait_logged(TOOK_OVER);
    assert_eq!(second.serving().readiness(), 503);
}

/// A route whose TLS ends in the gateway.
fn terminating() -> RouteSpec {
    let own = xds::Terminate {
        certificate: "serving".into(),
        client_authorities: None,
        min_version: tls::MinVersion::Tls12,
        authorities: "servers".into(),
        server_name: ServerName::try_from("kubernetes").unwrap(),
        identity: None,
        hsts: Duration::ZERO,
        max_streams: 100,
        stream_timeout: Duration::from_secs(3600),
    };
    RouteSpec {
        handler: Some(Handler::new(Arc::new(own))),
        ..by_name("a", "a")
    }
}

fn publish(control: &Control, upstream: &Upstream, serving: &Authority) {
    let cluster = cluster("a", &[upstream.addr()]);
    control.publish("a", &[cluster], &[terminating()]);
    let own = serving.server(&["a.test"]).unwrap();
    let (cert, key) = (own.cert_pem.as_bytes(), own.key_pem.as_bytes());
    let pair = xds::key_pair("serving", cert, key);
    let servers = xds::authorities("servers", serving.pem().as_bytes());
    control.publish_resources(vec![pair, servers]);
    control.complete();
}

/// Tells whether a client sees the gateway's certificate; the server behind has none.
fn ends_tls(at: SocketAddr, serving: &Authority) -> bool {
    let target = Target::tls(at, serving.pem()).server_name("a.test");
    http::get(&target.timeout(LIMIT), "/").is_ok()
}

/// Starts a control plane. Returns what configures a gateway that asks there, and keeps its routes in `cache`.
fn cached(pki: &Pki, cache: &TempDir) -> (String, Control) {
    let control = pki.serve(([127, 0, 0, 1], ports::free(1).unwrap()[0]).into());
    let with_cache = format!("node: gateway-0, cache: {}", cache.path().display());
    let asking = pki.asking(control.addr);
    (asking.replace("node: gateway-0", &with_cache), control)
}

fn wait_written(probe: &Probe) {
    let written = [("result", "ok")];
    probe.wait_value("rhizome_xds_cache_writes_total", &written, 1.0);
}

#[test]
fn newcomer_without_secrets_takes_nothing() {
    let (upstream, pki, place) = (echo(), Pki::new(), Place::new());
    let serving = Authority::new("serving").unwrap();
    let cache = TempDir::new("xds-cache").unwrap();
    let (asking, control) = cached(&pki, &cache);
    publish(&control, &upstream, &serving);
    let config = place.config(&asking, "10s");
    let first = Starting::begin(&config).serving();
    wait::until("the secrets", LIMIT, || first.readiness() == 200).unwrap();
    assert!(ends_tls(place.tls, &serving));
    wait_written(&first);

    // The newcomer has the routes from the cache.
    let addr = control.addr;
    drop(control);
    let mut second = Starting::begin(&config);
    let waiting = second.wait_logged(WAITING);
    assert!(waiting.to_string().contains("secrets"), "{waiting}");
    assert!(ends_tls(place.tls, &serving));

    let control = pki.serve(addr);
    publish(&control, &upstream, &serving);
    control.wait_clients(2);
    second.wait_logged(TOOK_OVER);
    assert!(ends_tls(place.tls, &serving));
}

#[test]
fn gateway_is_ready_when_secrets_do_not_come() {
    let (upstream, pki) = (echo(), Pki::new());
    let serving = Authority::new("serving").unwrap();
    let cache = TempDir::new("xds-cache").unwrap();
    let (asking, control) = cached(&pki, &cache);
    publish(&control, &upstream, &serving);
    let start = || Gateway::start_with(TempDir::new("xds").unwrap(), None, &asking);
    let first = start();
    wait_ready(&first);
    wait_written(&first);
    drop(control);
    drop(first);

    let second = start();
    let answer = Probe::ask(second.probes, "GET", "/readyz");
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("secrets"), "{}", answer.text());
    // Connections are served, only the load balancer sends none yet.
    Client::established(second.addr("tls"), "a.test");
    wait::pause(SECRETS);
    wait_ready(&second);
}
