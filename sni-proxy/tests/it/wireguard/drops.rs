//! What is dropped, and under which name it is counted.

use super::peers::{
    Peer, Server, base64, config, data, data_of, index, initiation, numbered, response,
    wait_dropped, wait_flows, with_route, wrapped,
};
use crate::support::Gateway;

#[test]
fn dropped_datagrams_are_counted_by_reason() {
    let server = Server::start();
    let gateway = Gateway::start(&config(""), &numbered(&[&server]));
    let client = Peer::new(&gateway);
    let mut kind = data(index(1), 1);
    kind[0] = 9;
    for (reason, datagrams) in [
        ("unknown_route", vec![data(index(2), 1), data(5, 1)]),
        ("unknown_route", vec![with_route(initiation(7, None), 3)]),
        ("unknown_kind", vec![kind]),
        (
            "bad_size",
            vec![vec![], vec![4, 0, 0], initiation(7, None)[..147].to_vec()],
        ),
        (
            "bad_size",
            vec![data_of(index(1), 31, 0), data_of(index(1), 65_500, 0)],
        ),
        (
            "reserved_bits",
            vec![with_route(data(index(1), 1), 1 << 23)],
        ),
        ("route_disagrees", vec![with_route(data(index(2), 1), 1)]),
        (
            "unknown_mac1",
            vec![initiation(7, None), initiation(7, Some(&[7; 32]))],
        ),
    ] {
        let before = gateway.value(super::peers::DROPPED, &[("reason", reason)]);
        for datagram in &datagrams {
            client.send(datagram);
        }
        let wanted = before as u32 + datagrams.len() as u32;
        wait_dropped(&gateway, reason, wanted);
    }
    wait_flows(&gateway, 0);
    client.exchange(&server, 1, 1);
}

#[test]
fn handshake_with_route_id_proves_key() {
    let server = Server::start();
    let key = [5; 32];
    let with_key = format!("publicKeys: [\"{}\"], routeId", base64(&key));
    let routes = numbered(&[&server]).replace("routeId", &with_key);
    let gateway = Gateway::start(&config(""), &routes);
    let client = Peer::new(&gateway);
    client.send(&with_route(initiation(7, Some(&[6; 32])), 1));
    wait_dropped(&gateway, "bad_mac1", 1);
    wait_flows(&gateway, 0);
    client.send(&with_route(initiation(8, Some(&key)), 1));
    assert_eq!(server.receive().datagram, initiation(8, Some(&key)));
    // Also where the client is known.
    client.send(&with_route(initiation(7, Some(&[6; 32])), 1));
    wait_dropped(&gateway, "bad_mac1", 2);
}

#[test]
fn only_the_server_of_a_flow_may_answer_it() {
    let (server, stranger) = (Server::start(), Server::start());
    let gateway = Gateway::start(&config(""), &numbered(&[&server]));
    let client = Peer::new(&gateway);
    let seen = client.exchange(&server, 1, 1);
    let victim = Peer::new(&gateway);
    let junk = stranger.socket();
    junk.send_to(&wrapped(client.addr(), &data(7, 2)), seen.gateway)
        .unwrap();
    wait_dropped(&gateway, "unknown_sender", 1);
    // Even its own server may not answer a client that has sent nothing.
    server
        .socket()
        .send_to(&wrapped(victim.addr(), &data(7, 3)), seen.gateway)
        .unwrap();
    wait_dropped(&gateway, "unknown_client", 1);
    for bytes in [&b"RZW1"[..], b"", &data(7, 4), &wrapped(client.addr(), b"")] {
        junk.send_to(bytes, seen.gateway).unwrap();
    }
    wait_dropped(&gateway, "not_wrapped", 4);
    // To the clients' port, a wrapped datagram is none of WireGuard's kinds.
    junk.send_to(&wrapped(victim.addr(), &data(7, 5)), gateway.addr("wg"))
        .unwrap();
    wait_dropped(&gateway, "unknown_kind", 1);
    client.exchange(&server, 1, 6);
}

#[test]
fn unproven_client_is_not_amplified() {
    let server = Server::start();
    let gateway = Gateway::start(&config(""), &numbered(&[&server]));
    let client = Peer::new(&gateway);
    let standing = |name: &str| {
        let labels = [("listener", "wg"), ("standing", name)];
        gateway.value("rhizome_wireguard_flows", &labels)
    };
    client.send(&with_route(initiation(7, None), 1));
    let seen = server.receive();
    seen.answer(&data(7, 1)); // before the client sent any
    wait_dropped(&gateway, "unsolicited", 1);
    assert_eq!((standing("fresh"), standing("proven")), (1.0, 0.0));
    seen.answer(&response(index(1), 7));
    assert_eq!(client.receive(), response(index(1), 7));
    seen.answer(&response(index(1), 7)); // 184 bytes for 148
    wait_dropped(&gateway, "unsolicited", 2);
    seen.answer(&response(index(1), 7)[1..]);
    wait_dropped(&gateway, "unknown_kind", 1);
    assert_eq!((standing("fresh"), standing("proven")), (0.0, 1.0));
    seen.answer(&data(7, 2)); // still before
    wait_dropped(&gateway, "unsolicited", 3);
    client.exchange(&server, 1, 2);
}

#[test]
fn only_allowed_sources_may_use_a_route() {
    let server = Server::start();
    let key = [4; 32];
    let more = format!("publicKeys: [\"{}\"], routeId", base64(&key));
    let routes = numbered(&[&server]).replace("routeId", &more).replace(
        "cluster: c1",
        "cluster: c1, allowSources: [\"127.0.0.2/32\"]",
    );
    let gateway = Gateway::start(&config(""), &routes);
    let (denied, allowed) = (
        Peer::new(&gateway),
        Peer::at("127.0.0.2", gateway.addr("wg")),
    );
    denied.send(&data(index(1), 1));
    wait_dropped(&gateway, "source_denied", 1);
    denied.send(&initiation(7, Some(&key)));
    wait_dropped(&gateway, "source_denied", 2);
    allowed.exchange(&server, 1, 1);
    allowed.send(&initiation(7, Some(&key)));
    server.receive();
    wait_flows(&gateway, 1);
}
