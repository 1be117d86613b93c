//! Routes that come, change and go; and updates that are refused with the place of their fault.

use std::net::SocketAddr;

use route::{OWN_PODS, RouteMatch, RouteSpec};
use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;
use xds::{GatewayParams, ResourceType};

use super::control::{
    Control, asking, by_connect, by_destination, by_name, cluster, gateway, wait_ready,
};
use crate::support::{Client, End, Gateway, LIMIT};

const REFUSED: &str = "rhizome_snapshot_refused_total";
const RESPONSES: &str = "rhizome_xds_responses_total";

fn echo() -> Upstream {
    Upstream::start(Behavior::Echo).unwrap()
}

/// Tells whether a connection by `name.test` is answered by an echo.
fn is_served(gateway: &Gateway, name: &str) -> bool {
    served_at(gateway, "tls", name)
}

fn served_at(gateway: &Gateway, listener: &str, name: &str) -> bool {
    let mut client = Client::hello(gateway.addr(listener), &format!("{name}.test"));
    let mut buf = [0; 1];
    let served = client.stream().peek(&mut buf).is_ok_and(|read| read == 1);
    if !served {
        assert_eq!(client.end(), End::Closed);
    }
    served
}

fn wait_served(gateway: &Gateway, name: &str, wanted: bool) {
    wait::until(&format!("{name}: served {wanted}"), LIMIT, || {
        is_served(gateway, name) == wanted
    })
    .unwrap();
}

/// Sends a node proxy's header, of this version, and a ClientHello that an endpoint sends back.
fn through_node(gateway: &Gateway, version: u8, destination: &str) -> Client {
    let mut client = Client::open(gateway.addr("node"));
    let (source, destination): (SocketAddr, SocketAddr) = (
        "10.9.8.7:6543".parse().unwrap(),
        destination.parse().unwrap(),
    );
    let mut bytes = match version {
        1 => proxy_header::v1(source, destination),
        _ => proxy_header::v2(source, destination, &[]),
    };
    bytes.extend(ClientHello::for_name("kubernetes").encode());
    // At once: the header alone decides, and what comes after a refusal is answered by a reset.
    client.send(&bytes);
    client
}

#[test]
fn xds_routes_all_match_kinds() {
    let (a, b) = (echo(), echo());
    let control = Control::start();
    control.publish(
        "shoot--a",
        &[cluster("a", &[a.addr()])],
        &[
            by_name("a", "a"),
            by_connect("to-a", "a"),
            by_destination("10.1.2.3/32", Some(443), "a"),
        ],
    );
    control.publish(
        "shoot--b",
        &[cluster("b", &[b.addr()])],
        &[
            by_name("b", "b"),
            by_connect("to-b", "b"),
            by_destination("10.1.0.0/16", None, "b"),
        ],
    );
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    for (name, upstream) in [("a", &a), ("b", &b)] {
        let before = upstream.accepted();
        Client::established(gateway.addr("tls"), &format!("{name}.test"));
        for listener in ["node", "vpn"] {
            let mut client = Client::open(gateway.addr(listener));
            let answer = client.connect(&format!("to-{name}"));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            client.expect_echo(b"hello");
        }
        assert_eq!(upstream.accepted(), before + 3);
    }
    let hello = ClientHello::for_name("kubernetes").encode();
    for version in [1, 2] {
        for (destination, upstream) in [
            ("10.1.2.3:443", &a),
            ("10.1.2.3:80", &b),
            ("10.1.9.9:1", &b),
        ] {
            let before = upstream.accepted();
            let mut client = through_node(&gateway, version, destination);
            assert_eq!(client.receive(hello.len()), hello);
            assert_eq!(upstream.accepted(), before + 1, "{destination}");
        }
        assert_eq!(
            through_node(&gateway, version, "10.2.0.1:443").end(),
            End::Closed
        );
    }
    // Names are for the listener that TLS comes to; the node's has none.
    assert!(!is_served(&gateway, "c"));
    let mut client = Client::open(gateway.addr("vpn"));
    assert!(client.connect("to-c").starts_with("HTTP/1.1 404 "));
    let snapshot = gateway.admin_json("/snapshot");
    assert_eq!(
        snapshot["clusters"].as_array().unwrap().len(),
        2,
        "{snapshot}"
    );
}

#[test]
fn endpoints_change_and_what_is_removed_is_gone() {
    let (first, second) = (echo(), echo());
    let control = Control::start();
    control.publish_one("a", &[first.addr()]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    let mut old = Client::established(gateway.addr("tls"), "a.test");

    control.publish_one("a", &[second.addr()]);
    wait::until("the second endpoint to be used", LIMIT, || {
        Client::established(gateway.addr("tls"), "a.test");
        second.accepted() > 0
    })
    .unwrap();

    // A shoot comes, one is without endpoints, and one goes with its cluster.
    control.publish_one("b", &[second.addr()]);
    wait_served(&gateway, "b", true);
    control.publish_one("b", &[]);
    wait_served(&gateway, "b", false);
    gateway.wait_value("rhizome_cluster_endpoints", &[("cluster", "b")], 0.0);
    let mut client = Client::open(gateway.addr("vpn"));
    assert!(client.connect("b").starts_with("HTTP/1.1 503 "));
    control.withdraw("a");
    wait_served(&gateway, "a", false);
    let mut client = Client::open(gateway.addr("vpn"));
    assert!(client.connect("a").starts_with("HTTP/1.1 404 "));
    old.expect_echo(b"a connection keeps the route it took");
    assert_eq!(gateway.value(REFUSED, &[]), 0.0);
    assert_eq!(gateway.value(RESPONSES, &[("result", "nack")]), 0.0);
}

#[test]
fn a_stream_does_not_notice_fifty_updates() {
    let (watched, other) = (echo(), echo());
    let control = Control::start();
    control.publish_one("a", &[watched.addr()]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    let mut stream = Client::established(gateway.addr("tls"), "a.test");
    let mut generation = gateway.value("rhizome_snapshot_generation", &[]);
    for round in 1..=50 {
        // No state is one that was there before: updates that are taken together would change nothing.
        control.publish_one("round", &[SocketAddr::from(([127, 0, 0, 1], round))]);
        // The stream's cluster goes and comes, and its endpoint changes.
        match round % 3 {
            0 => control.publish_one("a", &[watched.addr()]),
            1 => control.withdraw("a"),
            _ => control.publish_one("a", &[other.addr(), watched.addr()]),
        }
        let in_force = wait::until("the next snapshot", LIMIT, || {
            stream.expect_echo(b"event");
            let now = gateway.value("rhizome_snapshot_generation", &[]);
            now > std::mem::replace(&mut generation, now)
        });
        in_force.unwrap();
    }
    stream.finish();
    stream.end();
    gateway.wait_closed("tls", "closed", 1);
    assert_eq!(gateway.value(REFUSED, &[]), 0.0);
}

/// Field 999 of any message, a number.
const UNKNOWN_FIELD: [u8; 3] = [0xb8, 0x3e, 0x01];

#[test]
fn invalid_update_is_refused_and_routes_stay() {
    let upstream = echo();
    let control = Control::start();
    control.publish_one("a", &[upstream.addr()]);
    control.publish_one("b", &[upstream.addr()]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    let mut old = Client::established(gateway.addr("tls"), "a.test");
    let generation = gateway.value("rhizome_snapshot_generation", &[]);
    let refused = || gateway.value(RESPONSES, &[("result", "nack")]);

    // Another group claims the name, and leads elsewhere.
    control.publish("thief", &[], &[by_name("A", "b")]);
    let words = control.wait_refusal(ResourceType::Listener, "a.test");
    assert!(
        words.contains("tls|a") && words.contains("tls|thief"),
        "{words}"
    );
    gateway.wait_value(RESPONSES, &[("type", "listener"), ("result", "nack")], 1.0);
    gateway.wait_value(REFUSED, &[], 1.0);
    assert!(is_served(&gateway, "a"));
    control.withdraw("thief");

    // An unknown field, and bytes that are no message at all.
    let mut unknown = xds::cluster(&cluster("odd", &[upstream.addr()]))
        .remove(0)
        .body
        .to_vec();
    unknown.extend(UNKNOWN_FIELD);
    control.publish_raw(ResourceType::Cluster, "odd", &unknown);
    let words = control.wait_refusal(ResourceType::Cluster, "#999");
    assert!(words.contains("odd"), "{words}");
    control.unpublish(ResourceType::Cluster, "odd");
    control.publish_raw(ResourceType::Listener, "tls|odd", b"\xff\xff\xffgarbage");
    control.wait_refusal(ResourceType::Listener, "tls|odd");
    assert!(refused() >= 3.0, "{}", refused());
    assert!(control.value("rhizome_xds_nacks_total", &[]) >= 3.0);
    assert_eq!(gateway.value(REFUSED, &[]), refused());

    assert_eq!(
        gateway.value("rhizome_snapshot_generation", &[]),
        generation
    );
    assert_eq!(gateway.readiness(), 200);
    assert!(is_served(&gateway, "a"));
    old.expect_echo(b"never noticed");

    // And it goes on as soon as the fault is gone.
    control.unpublish(ResourceType::Listener, "tls|odd");
    control.publish_one("c", &[upstream.addr()]);
    wait_served(&gateway, "c", true);
    assert!(is_served(&gateway, "a"));
}

#[test]
fn a_good_shoot_gets_through_beside_a_bad_one() {
    let upstream = echo();
    let control = Control::start();
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    control.publish_raw(ResourceType::WireGuardRoute, "bad/0", b"\xff\xff\xff\xff");
    control.wait_refusal(ResourceType::WireGuardRoute, "bad/0");
    control.publish_one("b", &[upstream.addr()]);
    wait_served(&gateway, "b", true);
}

#[test]
fn listeners_keep_their_own_routes() {
    let upstream = echo();
    let control = Control::start();
    let cluster = cluster("a", &[upstream.addr()]);
    let own = [by_name("outer", "a"), by_name("both", "a")];
    control.publish("shoot--a", &[cluster], &own);
    // A listener of another name, as another control plane may send it.
    let internal = |names: &[(&str, &str)]| {
        let routes: Vec<_> = names.iter().map(|(name, to)| by_name(name, to)).collect();
        let part = xds::parts("x", &routes, &GatewayParams::default())
            .resources
            .remove(0);
        control.publish_raw(
            ResourceType::Listener,
            "internal",
            &renamed(&part.body, "tls|x"),
        );
    };
    internal(&[("inner", "a"), ("both", "a")]);
    control.complete();
    let config = asking(control.addr).replace(
        "- { name: node",
        "- { name: internal, address: \"127.0.0.1:0\", protocol: tls }\n- { name: node",
    );
    let gateway = Gateway::start_with(TempDir::new("xds").unwrap(), None, &config);
    wait_ready(&gateway);
    let served = |listener: &str, name: &str| served_at(&gateway, listener, name);
    for (listener, own, other) in [("tls", "outer", "inner"), ("internal", "inner", "outer")] {
        assert!(
            served(listener, own) && served(listener, "both"),
            "{listener}"
        );
        assert!(!served(listener, other), "{listener}");
        let path = format!("/trace?sni={other}.test&listener={listener}");
        let trace = gateway.admin_json(&path);
        assert_eq!(trace["reason"], "unknown_server_name", "{trace}");
        assert_eq!(trace["also"][0]["pattern"], format!("{other}.test"));
        let (elsewhere, mine) = (&trace["also"][0]["note"], &trace["listener"]["others"][0]);
        let told = elsewhere.as_str().unwrap().to_owned();
        assert_eq!(
            told,
            format!("only for listeners {}", mine.as_str().unwrap())
        );
    }

    // One name has one cluster, whatever the listener.
    internal(&[("outer", "b")]);
    control.wait_refusal(ResourceType::Listener, "outer.test");
    assert!(served("internal", "inner") && !served("internal", "outer"));
    control.unpublish(ResourceType::Listener, "internal");
    wait::until("the inner listener's routes to go", LIMIT, || {
        !served("internal", "both")
    })
    .unwrap();
    assert!(served("tls", "both"));
}

/// Calls a listener `internal`; its name is its first field: tag 1, length, bytes.
fn renamed(body: &[u8], from: &str) -> Vec<u8> {
    let field = |name: &str| [&[0x0a, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
    let rest = body.strip_prefix(&field(from)[..]).unwrap();
    [field("internal"), rest.to_vec()].concat()
}

#[test]
fn groups_are_merged_and_refusals_reported() {
    let upstream = echo();
    let control = Control::start();
    for number in 0..40 {
        control.publish_one(&format!("shoot-{number}"), &[upstream.addr()]);
    }
    let mut denied = by_name("denied", "shoot-0");
    denied.allow_sources = vec!["192.0.2.0/24".parse().unwrap()];
    let mut connect = by_connect("denied", "shoot-0");
    connect.allow_sources = denied.allow_sources.clone();
    let any = RouteSpec::new(
        RouteMatch::ServerNames(vec!["*.wild.test".to_owned()]),
        "shoot-1",
    );
    control.publish("more", &[], &[denied, connect, any]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    for number in [0, 17, 39] {
        Client::established(gateway.addr("tls"), &format!("shoot-{number}.test"));
    }
    Client::established(gateway.addr("tls"), "any.name.wild.test");
    assert!(!is_served(&gateway, "denied"));
    gateway.wait_closed("tls", "source_denied", 1);
    let mut client = Client::open(gateway.addr("vpn"));
    assert!(client.connect("denied").starts_with("HTTP/1.1 403 "));
    gateway.wait_closed("vpn", "source_denied", 1);
}

#[test]
fn own_zone_is_found_among_own_pods() {
    let (near, far) = (echo(), echo());
    let control = Control::start();
    let zoned = |name: &str, endpoints: [SocketAddr; 2], zones: [&str; 2]| {
        let mut cluster = cluster(name, &endpoints);
        for (endpoint, zone) in cluster.endpoints.iter_mut().zip(zones) {
            endpoint.zone = Some(zone.into());
        }
        cluster
    };
    let api_server = zoned("a", [near.addr(), far.addr()], ["near", "far"]);
    control.publish("shoot--a", &[api_server], &[by_name("a", "a")]);
    // Another pod has an address that this host has not (RFC 5737).
    let pods = ["192.0.2.1:443", "127.0.0.1:443"].map(|addr| addr.parse().unwrap());
    control.publish("gateway", &[zoned(OWN_PODS, pods, ["far", "near"])], &[]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    for _ in 0..8 {
        Client::established(gateway.addr("tls"), "a.test");
    }
    assert_eq!((near.accepted(), far.accepted()), (8, 0));
    // Nothing leads to pods, so nothing is counted of them.
    let clusters = "rhizome_cluster_endpoints";
    assert_eq!(
        gateway.metrics().value(clusters, &[("cluster", OWN_PODS)]),
        None
    );

    let generation = "rhizome_snapshot_generation";
    let before = gateway.value(generation, &[]);
    control.publish("gateway", &[zoned(OWN_PODS, pods, ["near", "far"])], &[]);
    gateway.wait_value(generation, &[], before + 1.0);
    Client::established(gateway.addr("tls"), "a.test");
    assert_eq!(far.accepted(), 1);
}
