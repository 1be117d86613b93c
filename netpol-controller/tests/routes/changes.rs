//! What a change of one shoot sends, and how soon it is in effect.

use serde_json::Value;
use testkit::http::{Connection, Proxy, Target, Watch};
use testkit::peers::envoy::Envoy;
use testkit::wait;

use crate::ask::{Answer, Ask, INNER, Listener, Ports, ask};
use crate::objects::{self, api_endpoints, cluster_of, ip_of, name_of};
use crate::program::LIMIT;
use crate::seed::{Gateway, Seed};

/// More than a shoot's resources of one type have, and much less than those of all.
const A_SHOOT: f64 = 1024.0;

/// Bytes of responses so far, by type.
fn pushed(seed: &Seed<'_>) -> [(&'static str, f64); 5] {
    ["cluster", "assignment", "listener", "route", "wireguard"].map(|kind| {
        let labels = [("gateway", "default"), ("type", kind)];
        (kind, seed.metric("rhizome_xds_push_bytes_total", &labels))
    })
}

fn by_name(shoot: &str) -> Ask {
    Ask::Name(Some(name_of(shoot)))
}

fn by_connect(shoot: &str) -> Ask {
    let value = cluster_of(shoot, "kube-apiserver", 443);
    Ask::Connect(Listener::Node, "X-Gardener-Destination", value)
}

fn wait_answer(seed: &Seed<'_>, ports: &Ports, request: &Ask, wanted: &Answer) {
    let mut last = None;
    let answered = wait::until(&format!("{request}: {wanted:?}"), LIMIT, || {
        let answer = ask(ports, seed.authority_pem(), request);
        last = Some(answer);
        last.as_ref() == Some(wanted)
    });
    assert!(answered.is_ok(), "{answered:?}; last: {last:?}");
}

fn shoot(name: &str) -> Answer {
    Answer::Shoot(name.to_owned())
}

/// Waits until our gateway is the only client: another one's bytes would be counted too.
fn wait_alone(seed: &Seed<'_>) {
    let mut last = Value::Null;
    let alone = wait::until("our gateway to be the only client", LIMIT, || {
        last = seed.snapshot()["clients"].take();
        last.as_array().is_some_and(|clients| clients.len() == 1)
    });
    assert!(alone.is_ok(), "{alone:?}; last: {last:#}");
}

/// An endpoint that changes costs the endpoints of its cluster, a few hundred bytes.
pub(crate) fn a_change_is_sent_alone(seed: &Seed<'_>, ours: &Gateway) {
    wait_alone(seed);
    let before = pushed(seed);
    let accepted = seed.accepted("b");
    // The endpoint of another shoot's API server, which says its own name, and whose certificate is
    // good for what pods call it.
    seed.apply("moved", &[api_endpoints("a", &[&ip_of("b")])]);
    wait_answer(seed, &ours.ports, &by_connect("a"), &shoot("b"));
    assert!(seed.accepted("b") > accepted);
    for ((kind, before), (_, after)) in before.into_iter().zip(pushed(seed)) {
        let sent = after - before;
        if kind == "assignment" {
            assert!(sent > 0.0 && sent < A_SHOOT, "{kind}: {sent}");
        } else {
            assert_eq!(sent, 0.0, "{kind}");
        }
    }
    seed.apply("back", &[api_endpoints("a", &[&ip_of("a")])]);
    wait_answer(seed, &ours.ports, &by_name("a"), &shoot("a"));
}

/// A shoot is reachable a moment after it was applied, and gone a moment after it was deleted;
/// other clients are not affected, and connections stay.
pub(crate) fn a_shoot_comes_and_goes(seed: &Seed<'_>, ours: &Gateway) {
    let before = pushed(seed);
    come_and_go(seed, &ours.ports);
    for ((kind, before), (_, after)) in before.into_iter().zip(pushed(seed)) {
        // Objects come and go one by one, and each may be a change of its own.
        let sent = after - before;
        assert!(sent < 8.0 * A_SHOOT, "{kind}: {sent}");
    }
    assert_eq!(seed.metric("rhizome_xds_nacks_total", &[]), 0.0);
}

/// Envoy applies the same changes, of listeners that it gets whole, without closing connections.
pub(crate) fn envoy_follows(seed: &Seed<'_>, envoy: &Gateway<Envoy>) {
    come_and_go(seed, &envoy.ports);
    assert_eq!(seed.metric("rhizome_xds_nacks_total", &[]), 0.0);
}

fn come_and_go(seed: &Seed<'_>, ports: &Ports) {
    let by_tls = Target::tls(ports.tls, seed.authority_pem());
    let value = cluster_of("a", "kube-apiserver", 443);
    let by_connect_to_a = Target::tls(ports.vpn, seed.authority_pem())
        .server_name(INNER)
        .proxy(Proxy::connect("Reversed-VPN", &value));
    let mut watches = [
        Following::start(&by_tls.clone().server_name(&name_of("a"))),
        Following::start(&by_connect_to_a),
    ];
    let objects = objects::shoot("g");
    seed.apply("new", &objects);
    wait_answer(seed, ports, &by_name("g"), &shoot("g"));
    wait_answer(seed, ports, &by_connect("g"), &shoot("g"));
    watches.iter_mut().for_each(Following::follow);
    let mut old = Connection::open(&by_tls.server_name(&name_of("g"))).unwrap();

    // Not its namespace, whose deletion nothing here would finish.
    seed.delete("gone", &objects[1..]);
    wait_answer(seed, ports, &by_name("g"), &Answer::Nothing);
    wait_answer(seed, ports, &by_connect("g"), &Answer::Status(404, None));
    watches.iter_mut().for_each(Following::follow);
    // Envoy ends the connections of a filter chain that is gone, after a while.
    assert_eq!(old.get("/version").unwrap().json().unwrap()["shoot"], "g");
}

/// A watch that must not break.
struct Following {
    watch: Watch,
    last: u64,
}

impl Following {
    fn start(target: &Target) -> Self {
        let connection = Connection::open(target).unwrap();
        let watch = connection.watch("/api?watch=1").unwrap();
        let mut own = Self { watch, last: 0 };
        own.follow();
        own
    }

    /// Waits for two further events, none lost and none twice.
    fn follow(&mut self) {
        for _ in 0..2 {
            let event = self.watch.next_event().unwrap().expect("the watch goes on");
            self.last += 1;
            assert_eq!(event["sequence"].as_u64(), Some(self.last), "{event}");
        }
    }
}
