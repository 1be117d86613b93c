//! What datagrams travel by: TCP through HTTP CONNECT, UDP, and from one to the other.

use serde_json::json;
use testkit::impair::{BlackHole, Direction, Impairment};
use testkit::tunnel_world::{GATEWAY_V6, LIMIT, Params, Part, World};
use testkit::wait;

use crate::world::{ECHO, NOTICED, alive, converse, hold, lay, lived, start, wait_transport};

/// A world whose lines swallow `what` from the beginning.
fn without(what: BlackHole, params: Params) -> World {
    let world = lay(params);
    world.link(0).set_both(Impairment::swallowing(what));
    world
}

/// A client that tries UDP again every half second.
fn eager() -> Params {
    Params {
        client: json!({ "path": { "retryUdp": "500ms" } }),
        ..Params::default()
    }
}

#[test]
fn tunnel_comes_up_by_tcp_without_udp() {
    let mut world = without(BlackHole::Udp, Params::default());
    let _echo = world.echo(ECHO).unwrap();
    world.start().unwrap();
    converse(&world, 0);
    wait_transport(&world, 0, 0, "tcp");
    let counts = world.link(0).counts(Direction::Back);
    assert_eq!(counts.udp_bytes, 0, "{counts:?}");
}

#[test]
fn tunnel_comes_up_by_udp_without_tcp() {
    let mut world = without(BlackHole::Tcp, Params::default());
    let _echo = world.echo(ECHO).unwrap();
    world.start().unwrap();
    converse(&world, 0);
    wait_transport(&world, 0, 0, "udp");
    let counts = world.link(0).counts(Direction::Back);
    assert_eq!(counts.tcp_bytes, 0, "{counts:?}");
}

#[test]
fn where_both_are_open_udp_is_used() {
    let (world, _echo) = start(Params::default());
    wait_transport(&world, 0, 0, "udp");
    converse(&world, 0);
}

#[test]
fn connection_survives_transport_changes() {
    let mut world = without(BlackHole::Udp, eager());
    let _echo = world.echo(ECHO).unwrap();
    world.start().unwrap();
    wait_transport(&world, 0, 0, "tcp");
    let held = hold(&world, 0);

    world.link(0).set_both(Impairment::default());
    wait_transport(&world, 0, 0, "udp");
    lived(&held, "the move to UDP", NOTICED);

    held.begin_anew();
    world
        .link(0)
        .set_both(Impairment::swallowing(BlackHole::Udp));
    wait_transport(&world, 0, 0, "tcp");
    lived(&held, "the death of UDP", NOTICED);
}

#[test]
fn one_way_hole_is_noticed() {
    for direction in Direction::BOTH {
        let (world, _echo) = start(eager());
        wait_transport(&world, 0, 0, "udp");
        let held = hold(&world, 0);
        held.begin_anew();
        let hole = Impairment::swallowing(BlackHole::Udp);
        world.link(0).set(direction, hole);
        wait_transport(&world, 0, 0, "tcp");
        lived(&held, &format!("a hole {direction:?}"), NOTICED);
    }
}

#[test]
fn either_transport_alone_is_enough() {
    for transport in ["tcp", "udp"] {
        let params = Params {
            transport,
            ..Params::default()
        };
        let (world, _echo) = start(params);
        wait_transport(&world, 0, 0, transport);
        alive(&hold(&world, 0));
        let counts = world.link(0).counts(Direction::Forth);
        let other = match transport {
            "tcp" => counts.udp_bytes,
            _ => counts.tcp_bytes,
        };
        assert_eq!(other, 0, "{counts:?}");
    }
}

#[test]
fn gateway_is_reached_by_ipv6() {
    for transport in ["tcp", "udp"] {
        let params = Params {
            transport,
            client: json!({ "endpoint": { "address": GATEWAY_V6 } }),
            ..Params::default()
        };
        let (world, _echo) = start(params);
        converse(&world, 0);
    }
}

#[test]
fn cut_line_makes_both_ends_unready() {
    let (mut world, _echo) = start(eager());
    let hole = Impairment::swallowing(BlackHole::Everything);
    world.link(0).set_both(hole);
    for part in [Part::Client(0), Part::Server(0)] {
        wait::until("unreadiness", LIMIT, || {
            world.probe(part, "/readyz").is_ok_and(|a| a.status == 503)
        })
        .unwrap();
    }
    world.link(0).set_both(Impairment::default());
    for part in [Part::Client(0), Part::Server(0)] {
        world.wait_ready(part).unwrap();
    }
    converse(&world, 0);
}
