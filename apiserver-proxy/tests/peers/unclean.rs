//! Envoy as the gateway drains or dies while connections of ours run through it.

use testkit::http::{self, Connection, Target, Watch};
use testkit::peers::envoy::GatewayListener;
use testkit::process::{Signal, listens};
use testkit::tempdir::TempDir;
use testkit::wait;

use crate::gateway::{Shoot, by_destination, by_header, envoy, node};
use crate::node;
use crate::ours::LIMIT;
use crate::programs::free;

/// Both modes: the gateway's listener, and the node proxy's upstream.
fn modes(shoot: &Shoot) -> [(GatewayListener, serde_json::Value); 2] {
    let (first, second) = (free("127.0.0.1"), free("127.0.0.1"));
    let routes = [("127.0.9.1", shoot)];
    [
        (
            by_destination(first, &routes),
            node::by_proxy_header(first, 2),
        ),
        (by_header(second), node::by_connect(second, &shoot.cluster)),
    ]
}

/// Waits for `count` further events, none lost and none twice.
fn follow(watch: &mut Watch, last: &mut u64, count: u64) {
    for _ in 0..count {
        let event = watch.next_event().unwrap().expect("the watch goes on");
        assert_eq!(event["sequence"].as_u64(), Some(*last + 1), "{event}");
        *last += 1;
    }
}

fn listen_address(listener: &GatewayListener) -> std::net::SocketAddr {
    match listener {
        GatewayListener::Connect { listen, .. }
        | GatewayListener::ProxyProtocol { listen, .. }
        | GatewayListener::Tls { listen, .. } => *listen,
    }
}

#[test]
fn watch_survives_draining_envoy() {
    let shoot = Shoot::new("shoot--foo--a");
    for (listener, upstream) in modes(&shoot) {
        let dir = TempDir::new("envoy-drain").unwrap();
        let front = listen_address(&listener);
        let mut envoy = envoy(&dir, &[&shoot], listener);
        let node = node(dir.path(), "127.0.9.1", &upstream);
        let connection = Connection::open(&shoot.target(node.addr)).unwrap();
        let mut watch = connection.watch("/api?watch=1").unwrap();
        let mut last = 0;
        follow(&mut watch, &mut last, 3);

        let mut admin = Connection::open(&Target::plain(envoy.admin())).unwrap();
        let answer = admin.request("POST", "/drain_listeners", None).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let pid = envoy.child().pid();
        wait::until("Envoy to listen no more", LIMIT, || !listens(pid, front)).unwrap();
        follow(&mut watch, &mut last, 5);
        assert!(http::get(&shoot.target(node.addr), "/version").is_err());
        let record = node.process.wait_record("the refused one", |_| true);
        assert_eq!(record["reason"], "connect_refused", "{record}");
        follow(&mut watch, &mut last, 2);

        envoy.child().kill().unwrap();
        while let Ok(Some(_)) = watch.next_event() {}
        drop(watch);
        wait::until("the watch's record", LIMIT, || {
            node.process.records().len() == 2
        })
        .unwrap();
        let record = node.process.records().pop().unwrap();
        let reason = record["reason"].as_str().unwrap();
        assert!(["closed", "upstream_reset"].contains(&reason), "{record}");
        node.process.assert_nothing_left();
    }
}

#[test]
fn killed_envoy_is_upstream_reset() {
    let shoot = Shoot::new("shoot--foo--a");
    for (listener, upstream) in modes(&shoot) {
        let dir = TempDir::new("envoy-kill").unwrap();
        let mut envoy = envoy(&dir, &[&shoot], listener);
        let node = node(dir.path(), "127.0.9.1", &upstream);
        let mut connection = Connection::open(&shoot.target(node.addr)).unwrap();
        assert_eq!(connection.get("/version").unwrap().status, 200);
        // Stopped, it no longer reads; killed with unread bytes, its kernel sends a reset.
        envoy.child().signal(Signal::STOP).unwrap();
        let moved = || {
            let name = "rhizome_relay_bytes_total";
            node.process.metric(name, &[("direction", "rx")])
        };
        let so_far = moved();
        let body = "x".repeat(100_000);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| connection.request("POST", "/version", Some(&body)));
            wait::until("the request to be under way", LIMIT, || {
                moved() >= so_far + 100_000.0
            })
            .unwrap();
            envoy.child().kill().unwrap();
            assert!(asking.join().unwrap().is_err());
        });
        drop(connection);
        let record = node.process.wait_record("the connection's end", |_| true);
        assert_eq!(record["reason"], "upstream_reset", "{record}");
        node.process.assert_no_connection_left();
    }
}
