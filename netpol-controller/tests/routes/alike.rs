//! The same requests to both gateways, which have the same routes: the same answers, but for what
//! is documented.

use serde_json::Value;
use testkit::peers::envoy::Envoy;
use testkit::wait;

use crate::ask::{Answer, Ask, Listener, ask};
use crate::objects::{cluster_of, name_of, namespace_of};
use crate::program::LIMIT;
use crate::seed::{Gateway, Seed, listeners};

const NODE_HEADER: &str = "X-Gardener-Destination";
const VPN_HEADER: &str = "Reversed-VPN";

/// Asks both for everything.
pub(crate) fn both_lead_alike(seed: &Seed<'_>, ours: &Gateway, envoy: &Gateway<Envoy>) {
    wait_taken(seed);
    wait_listening(&envoy.program);
    let mut wrong = Vec::new();
    for (request, wanted) in requests() {
        let [own, other] =
            [&ours.ports, &envoy.ports].map(|ports| ask(ports, seed.authority_pem(), &request));
        if own != wanted.ours || other != wanted.envoys {
            wrong.push(format!(
                "{request}: {own:?}, Envoy {other:?}; wanted {:?}, Envoy {:?}",
                wanted.ours, wanted.envoys
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(seed.metric("rhizome_xds_nacks_total", &[]), 0.0);
    assert_eq!(seed.metric("rhizome_netpol_routes_withheld", &[]), 0.0);
    let snapshot = ours.program.snapshot();
    assert!(
        snapshot
            .to_string()
            .contains(&cluster_of("e", "kube-apiserver", 443)),
        "{snapshot}"
    );
}

/// What both are to answer.
struct Wanted {
    ours: Answer,
    envoys: Answer,
}

fn both(answer: Answer) -> Wanted {
    Wanted {
        envoys: answer.clone(),
        ours: answer,
    }
}

fn shoot(name: &str) -> Wanted {
    both(Answer::Shoot(name.to_owned()))
}

fn status(status: u16) -> Wanted {
    both(Answer::Status(status, None))
}

/// Envoy says which port it means.
fn redirect(host: &str, path: &str) -> Wanted {
    let to = |port: &str| Answer::Status(308, Some(format!("https://{host}{port}{path}")));
    Wanted {
        ours: to(""),
        envoys: to(":443"),
    }
}

fn requests() -> Vec<(Ask, Wanted)> {
    let mut all = by_name();
    all.extend(by_destination());
    all.extend(by_connect());
    all.extend(by_mistake());
    all
}

fn by_name() -> Vec<(Ask, Wanted)> {
    let named = |name: &str| Ask::Name(Some(name.to_owned()));
    let mut all: Vec<_> = ["a", "b", "c", "d", "e"]
        .map(|own| (named(&name_of(own)), shoot(own)))
        .into();
    all.extend([
        (named("api.a.internal.example.com"), shoot("a")),
        (named("one.a.wild.example.com"), shoot("a")),
        (named("one.d.own.example.com"), shoot("d")),
        (named("a.wild.example.com"), both(Answer::Nothing)),
        (named("api.unknown.example.com"), both(Answer::Nothing)),
        (named(&name_of("f")), both(Answer::Nothing)),
        (Ask::Name(None), both(Answer::Nothing)),
    ]);
    all
}

fn by_destination() -> Vec<(Ask, Wanted)> {
    let mut all = Vec::new();
    for version in [1, 2] {
        for (to, wanted) in [
            ("10.1.2.3:443", Some("b")),
            ("10.1.2.4:443", Some("d")),
            ("10.7.0.1:1", Some("d")),
            // Any port, of which another destination has one.
            ("10.7.255.255:443", Some("d")),
            ("[fd00:10::1:2]:443", Some("d")),
            ("10.1.2.3:6443", None),
            ("10.1.2.5:443", None),
            ("[fd00:11::1]:443", None),
        ] {
            let wanted = wanted.map_or_else(|| both(Answer::Nothing), shoot);
            all.push((Ask::Destination(version, to), wanted));
        }
    }
    all
}

fn by_connect() -> Vec<(Ask, Wanted)> {
    let api = |shoot: &str| cluster_of(shoot, "kube-apiserver", 443);
    let socket = |shoot: &str| format!("{}--kube-apiserver-socket", namespace_of(shoot));
    let mut all = Vec::new();
    for (value, wanted) in [
        (api("a"), shoot("a")),
        (api("b"), shoot("b")),
        (api("c"), shoot("c")),
        (socket("c"), shoot("c")),
        (socket("a"), shoot("a")),
        (api("d"), shoot("d")),
        ("any-word".to_owned(), shoot("d")),
        (cluster_of("a", "vpn-seed-server", 1194), shoot("a")),
        (cluster_of("a", "kube-apiserver-mtls", 443), status(404)),
        (api("f"), status(503)),
        (api("unknown"), status(404)),
        ("nonsense".to_owned(), status(404)),
    ] {
        for listener in [Listener::Node, Listener::Vpn] {
            for header in [NODE_HEADER, VPN_HEADER] {
                let wanted = Wanted {
                    ours: wanted.ours.clone(),
                    envoys: wanted.envoys.clone(),
                };
                all.push((Ask::Connect(listener, header, value.clone()), wanted));
            }
        }
    }
    all
}

/// Requests of those who look what is there.
fn by_mistake() -> Vec<(Ask, Wanted)> {
    let mut all = Vec::new();
    for listener in [Listener::Node, Listener::Vpn] {
        all.extend([
            (
                Ask::Http(
                    listener,
                    "GET /some/path?q=1 HTTP/1.1\r\nHost: a.example.com\r\n\r\n",
                ),
                redirect("a.example.com", "/some/path?q=1"),
            ),
            (
                Ask::Http(listener, "GET / HTTP/1.0\r\nHost: a.example.com\r\n\r\n"),
                redirect("a.example.com", "/"),
            ),
            (
                Ask::Http(
                    listener,
                    "GET / HTTP/1.1\r\nHost: a.example.com:8443\r\n\r\n",
                ),
                redirect("a.example.com", "/"),
            ),
            (
                Ask::Http(
                    listener,
                    "POST / HTTP/1.1\r\nHost: b.example.com\r\nContent-Length: 0\r\n\r\n",
                ),
                redirect("b.example.com", "/"),
            ),
        ]);
    }
    all
}

/// Waits until every client has taken all that it was sent, and both are there.
fn wait_taken(seed: &Seed<'_>) {
    let mut last = Value::Null;
    let taken = wait::until("all clients to have taken everything", LIMIT, || {
        last = seed.snapshot()["clients"].take();
        let clients = last.as_array().unwrap();
        clients.len() == 2 && clients.iter().all(|client| is_taken(&client["types"]))
    });
    assert!(taken.is_ok(), "{taken:?}; last: {last:#}");
    for client in last.as_array().unwrap() {
        let ours = client["node"] == "default-0";
        assert_eq!(
            client["audience"],
            if ours { "parts" } else { "whole" },
            "{client}"
        );
        let state_of_the_world = client["node"] == "envoy-GRPC";
        assert_eq!(client["delta"], !state_of_the_world, "{client}");
    }
}

fn is_taken(types: &Value) -> bool {
    let types = types.as_object().unwrap();
    let kinds = ["cluster", "assignment", "listener"];
    kinds.iter().all(|kind| types.contains_key(*kind))
        && types
            .values()
            .all(|one| one["acked"] == one["version"] && one["nack"].is_null())
}

/// Waits until Envoy's listeners are open: it takes them before it opens them.
fn wait_listening(envoy: &Envoy) {
    let mut last = String::new();
    let open = wait::until("Envoy to listen", LIMIT, || {
        last = listeners(envoy);
        ["tls::", "node::", "vpn::"]
            .iter()
            .all(|name| last.contains(name))
    });
    assert!(open.is_ok(), "{open:?}: {last}");
}
