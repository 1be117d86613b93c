//! A router without sockets, on a worker without a thread.

use std::collections::BTreeSet;

use relay::{Pool, PoolParams};
use serve::{
    Accepting, Admission, Dialer, Drain, DrainParams, Family, Metrics, OwnDatagrams, Resolver,
    WorkerHandle,
};
use telemetry::access_log::Sink;
use telemetry::{AccessFormat, AccessLog, Registry};
use testkit::tempdir::TempDir;
use tokio::runtime::Handle;
use tunnel_proto::datagram::INITIATION_LEN;

use super::*;
use crate::config::Config;
use crate::routing::Routing;
use crate::worker::Shared;

const CONFIG: &str = "listeners:\n- { name: wg, address: \"127.0.0.1:0\", protocol: wireguard }\n\
                      routing: { file: routes.yaml }\n";

/// Routes with these numbers, each with a key of its own, to an endpoint.
fn routes(numbers: &[u8], endpoint: &str) -> String {
    let mut text =
        format!("clusters: [{{ name: c, endpoints: [{{ address: {endpoint:?} }}] }}]\nroutes:\n");
    for number in numbers {
        let key = char::from(b'A' + number).to_string().repeat(42) + "E=";
        let mut servers = format!("publicKeys: [\"{key}\"]");
        // One without a number.
        if *number > 0 {
            servers += &format!(", routeId: {number}");
        }
        text += &format!("- {{ wireguard: {{ {servers} }}, cluster: c }}\n");
    }
    text
}

/// Starts a router by the configuration and the routes in a directory.
fn start(dir: &TempDir, now: Instant) -> Router {
    let config: Config = settings::from_text(CONFIG, &dir.join("sni-proxy.yaml")).unwrap();
    let registry = Registry::new();
    let metrics = Metrics::register(&registry);
    let resolver = Resolver::system(Handle::current(), Family::Auto);
    let drain = Drain::new(DrainParams::default());
    let shared = Arc::new(Shared {
        routing: Routing::start(&config, None, resolver, &registry).unwrap(),
        admission: Admission::new(u64::MAX, 0),
        flows: Admission::new(u64::MAX, 0),
        datagrams: OwnDatagrams::default(),
        dialer: Dialer::new(metrics.connect_seconds.clone()),
        accepting: Accepting::new(drain, metrics.accept_paused.clone()),
        terminating: crate::terminate::Metrics::register(&registry),
        wireguard: crate::wireguard::Metrics::new(&registry),
        access_log: AccessLog::new(AccessFormat::Off, Sink::Stdout).unwrap(),
        metrics,
        config,
    });
    let listener = Rc::new(Listener::new(0, &shared.config.listeners[0], &shared));
    let handle = WorkerHandle {
        movable: Rc::default(),
        index: 0,
        connections: Rc::default(),
        pool: Rc::new(Pool::new(PoolParams::COPYING)),
    };
    Router::new(&Worker::new(shared, handle, 1), &listener, now)
}

/// Returns the keys that are ready for use.
fn ready(router: &Router) -> BTreeSet<[u8; 32]> {
    router.keys.keys().copied().collect()
}

/// Returns the keys of all routes.
fn known(router: &Router) -> BTreeSet<[u8; 32]> {
    let routes = router.published.snapshot.wireguard_routes();
    routes.flat_map(|(keys, _)| keys).copied().collect()
}

#[tokio::test]
async fn ready_keys_stay_as_long_as_their_routes() {
    let dir = TempDir::new("router").unwrap();
    dir.write("routes.yaml", routes(&[1, 2], "127.0.0.1:1"))
        .unwrap();
    let now = tokio::time::Instant::now().into_std();
    let mut router = start(&dir, now);
    assert!(
        router.keys.is_empty(),
        "before a handshake names their route"
    );
    for number in [1, 2] {
        let mut junk = [0; INITIATION_LEN];
        (junk[0], junk[3]) = (1, number);
        let client = (([192, 0, 2, 1], 1).into(), None);
        let verdict = router.client_sent(now, client, &mut junk);
        assert_eq!(verdict, Err(Dropped::BadMac1));
    }
    assert_eq!((router.keys.len(), ready(&router)), (2, known(&router)));
    // Nothing comes in between: the key of the route that stays was not made ready anew.
    dir.replace("routes.yaml", routes(&[2], "127.0.0.1:1"))
        .unwrap();
    router.worker.shared.routing.reload();
    router.follow(now);
    assert_eq!((router.keys.len(), ready(&router)), (1, known(&router)));
}

#[tokio::test]
async fn found_route_is_the_one_in_effect() {
    let dir = TempDir::new("router").unwrap();
    dir.write("routes.yaml", routes(&[0, 1], "127.0.0.1:1"))
        .unwrap();
    let now = tokio::time::Instant::now().into_std();
    let mut router = start(&dir, now);
    let snapshot = &router.published.snapshot;
    let scanned = snapshot
        .wireguard_routes()
        .map(|(_, route)| Arc::clone(route));
    let scanned: Vec<_> = scanned.collect();
    let mut handshake = [0; INITIATION_LEN];
    handshake[0] = 1;
    // They change while keys are tried.
    dir.replace("routes.yaml", routes(&[0, 1], "127.0.0.1:2"))
        .unwrap();
    router.worker.shared.routing.reload();
    for (host, old) in (1..).zip(&scanned) {
        let client = (([192, 0, 2, host], 1).into(), None);
        let verdict = router.found(now, client, old, &mut handshake);
        assert_eq!(verdict, Ok(Verdict::Forward(([127, 0, 0, 1], 2).into())));
    }
    dir.replace("routes.yaml", routes(&[2], "127.0.0.1:2"))
        .unwrap();
    router.worker.shared.routing.reload();
    for old in &scanned {
        let client = (([192, 0, 2, 9], 1).into(), None);
        let verdict = router.found(now, client, old, &mut handshake);
        assert_eq!(verdict, Err(Dropped::UnknownRoute));
    }
}
