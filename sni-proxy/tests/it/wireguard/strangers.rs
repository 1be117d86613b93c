//! What a stranger can cost: keys tried, places in tables, connections of a cluster, log lines.
//!
//! ```text
//!     stranger ─ claims, in any name ─▶ gateway ─wrapped─▶ fake server, which does not answer them
//! ```
//!
//! Other networks are other addresses of 127.0.0.0/8. Strangers that receive answers are holders of
//! a client's key.

use testkit::process::Signal;
use testkit::wait;

use super::peers::{
    DROPPED, Peer, Server, base64, config, data, index, initiation, numbered, response,
    wait_dropped, wait_flows, with_route,
};
use crate::support::{Child, Gateway, LIMIT};

const SCANS: &str = "rhizome_wireguard_scans_total";

/// Routes as [`numbered`] has them, each with a key of its number.
fn with_keys(servers: &[&Server]) -> String {
    (1..=servers.len()).fold(numbered(servers), |routes, number| {
        let id = format!("routeId: {number} ");
        let key = base64(&[number as u8; 32]);
        routes.replace(&id, &format!("publicKeys: [\"{key}\"], {id}"))
    })
}

#[test]
fn keys_are_tried_for_tokens_only() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { sourceRate: 1, sourceBurst: 2 }\n");
    let gateway = Gateway::start(&text, &with_keys(&[&server]));
    let stranger = Peer::new(&gateway);
    for _ in 0..100 {
        stranger.send(&with_route(initiation(7, None), 1));
    }
    gateway.wait_value(DROPPED, &[], 100.0);
    let tried = gateway.value(DROPPED, &[("reason", "bad_mac1")]);
    assert!((32.0..80.0).contains(&tried), "{tried} keys tried");
    // Another network has tokens of its own, and so has a handshake beside other junk.
    let client = Peer::at("127.0.5.1", gateway.addr("wg"));
    for _ in 0..50 {
        client.send(&data(index(1), 1));
    }
    wait::until("tokens to be spent", LIMIT, || {
        gateway.value(DROPPED, &[]) > 120.0
    })
    .unwrap();
    client.send(&with_route(initiation(8, Some(&[1; 32])), 1));
    wait::until("the handshake to arrive", LIMIT, || {
        server.receive().datagram == initiation(8, Some(&[1; 32]))
    })
    .unwrap();
}

#[test]
fn few_proven_flows_are_tried_for_handshake() {
    let server = Server::start();
    let gateway = Gateway::start(&config(""), &with_keys(&[&server; 6]));
    let client = Peer::new(&gateway);
    let shake = |key: u8, scans: f64| {
        let sent = initiation(key.into(), Some(&[key; 32]));
        client.send(&sent);
        assert_eq!(server.receive().datagram, sent);
        gateway.wait_value(SCANS, &[("result", "found")], scans);
    };
    // Any host can claim a flow in the client's name.
    client.send(&data(index(6), 1));
    server.receive();
    shake(6, 1.0);
    for route in 1..=5 {
        client.exchange(&server, route, 1);
    }
    shake(5, 1.0);
    shake(2, 1.0);
    shake(1, 2.0);
}

#[test]
fn fresh_flow_is_not_counted_on_cluster() {
    let server = Server::start();
    let routes = numbered(&[&server]).replace("name: c1,", "name: c1, maxConnections: 1,");
    let gateway = Gateway::start(&config(""), &routes);
    let claims = [(); 3].map(|()| {
        let claim = Peer::new(&gateway);
        claim.send(&data(index(1), 1));
        (server.receive(), claim)
    });
    wait_flows(&gateway, 3);
    let active = "rhizome_cluster_connections_active";
    assert_eq!(gateway.value(active, &[]), 0.0);
    let client = Peer::new(&gateway);
    client.exchange(&server, 1, 2);
    assert_eq!(gateway.value(active, &[]), 1.0);
    // Claims that are answered after all are too many.
    claims[0].0.answer(&data(7, 3));
    wait_dropped(&gateway, "cluster_limit", 1);
    client.exchange(&server, 1, 4);
    assert_eq!(gateway.connections().len(), 1);
}

#[test]
fn first_data_after_handshake_needs_no_token() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { sourceRate: 1, sourceBurst: 2 }\n");
    let gateway = Gateway::start(&text, &with_keys(&[&server]));
    let client = Peer::new(&gateway);
    let handshake = initiation(7, Some(&[1; 32]));
    client.send(&with_route(handshake.clone(), 1));
    let seen = server.receive();
    assert_eq!(seen.datagram, handshake);
    seen.answer(&response(index(1), 7));
    assert_eq!(client.receive(), response(index(1), 7));
    // Others of its network spend what there is.
    let neighbor = Peer::at("127.0.0.99", gateway.addr("wg"));
    for _ in 0..100 {
        neighbor.send(&data(index(1), 1));
    }
    wait::until("tokens to be spent", LIMIT, || {
        gateway.value(DROPPED, &[("reason", "source_rate")]) > 50.0
    })
    .unwrap();
    for mark in 0..20 {
        client.send(&data(index(1), mark));
    }
    let from_client = std::iter::from_fn(|| Some(server.receive()));
    let mut from_client = from_client.filter(|seen| seen.client == client.addr());
    for mark in 0..20 {
        assert_eq!(from_client.next().unwrap().datagram, data(index(1), mark));
    }
}

#[test]
fn proven_clients_renew_without_tokens() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { sourceRate: 1, sourceBurst: 2 }\n");
    let gateway = Gateway::start(&text, &with_keys(&[&server]));
    let (ours, foreign) = (Peer::new(&gateway), Peer::new(&gateway));
    ours.exchange(&server, 1, 1);
    foreign.exchange(&server, 1, 2);
    // A holder of the key in their network spends all that there is: for keys tried, for handshakes
    // that fit, and for the rest.
    let neighbor = Peer::new(&gateway);
    for number in 0..100 {
        neighbor.send(&with_route(initiation(number, Some(&[1; 32])), 1));
    }
    for mark in 0..3 {
        neighbor.send(&data(index(1), mark));
    }
    // At once, before there is more of it.
    let mut renewals = Vec::new();
    let mut renew = |client: &Peer, route, number| {
        let sent = initiation(number, Some(&[1; 32]));
        client.send(&with_route(sent.clone(), route));
        renewals.push((client.addr(), sent));
    };
    (0..5).for_each(|number| renew(&ours, 1, number));
    // Its flow is found by the key, which costs as much again.
    (0..2).for_each(|number| renew(&foreign, 0, number));
    while !renewals.is_empty() {
        let Some(seen) = server.try_receive() else {
            panic!("{} renewals were lost", renewals.len());
        };
        renewals.retain(|sent| *sent != (seen.client, seen.datagram.clone()));
    }
    assert!(gateway.value(DROPPED, &[("reason", "source_rate")]) > 50.0);
}

#[test]
fn one_key_does_not_fill_the_table() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { flows: 4 }\n");
    let gateway = Gateway::start(&text, &numbered(&[&server, &server]));
    let many: Vec<Peer> = (0..4).map(|_| Peer::new(&gateway)).collect();
    for one in &many {
        one.exchange(&server, 1, 1);
    }
    // Of another shoot: one of the key's goes.
    let client = Peer::at("127.0.5.1", gateway.addr("wg"));
    client.exchange(&server, 2, 2);
    gateway.wait_closed("wg", "limit", 1);
    // Of the same shoot, elsewhere.
    let neighbor = Peer::at("127.0.6.1", gateway.addr("wg"));
    neighbor.exchange(&server, 1, 3);
    gateway.wait_closed("wg", "limit", 2);
    // The key itself gets none back, from where it has most.
    many[0].send(&data(index(1), 4));
    server.receive().answer(&data(7, 4));
    wait_dropped(&gateway, "flow_table", 1);
    client.exchange(&server, 2, 5);
    neighbor.exchange(&server, 1, 6);
    gateway.wait_closed("wg", "limit", 2);
}

#[test]
fn claims_in_its_name_do_not_stop_a_client() {
    let servers: Vec<Server> = (0..65).map(|_| Server::start()).collect();
    let servers: Vec<&Server> = servers.iter().collect();
    let gateway = Gateway::start(&config(""), &numbered(&servers));
    let client = Peer::new(&gateway);
    for route in 1..=64 {
        client.send(&data(index(route as u32), 1));
        servers[route - 1].receive();
    }
    for route in (2..=65).rev() {
        client.exchange(servers[route - 1], route as u32, 2);
    }
    // Now it has as many as it may, none of them a claim.
    wait_flows(&gateway, 64);
    client.send(&data(index(1), 3));
    wait_dropped(&gateway, "client_limit", 1);
}

#[test]
fn fresh_flow_is_not_logged() {
    let server = Server::start();
    let more = "drain: { delay: 0s, timeout: 0s }\naccessLog: { format: json }\n";
    let mut child = Child::start(&config(more), &numbered(&[&server]));
    let client = Peer::at("127.0.0.1", child.addr("wg"));
    let claims = [(); 3].map(|()| {
        let claim = Peer::at("127.0.0.1", child.addr("wg"));
        claim.send(&data(index(1), 1));
        server.receive();
        claim
    });
    client.exchange(&server, 1, 2);
    child.signal(Signal::TERM);
    assert_eq!(child.access_line(client.addr())["reason"], "drained");
    assert!(child.wait_exit().success());
    let log = child.stdout();
    for claim in claims {
        assert!(!log.contains(&claim.addr().to_string()), "{log}");
    }
}
