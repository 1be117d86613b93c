//! Junk in quantity, while others work.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::wait;

use super::peers::{
    DROPPED, Peer, Server, base64, config, data, index, initiation, numbered, response, with_route,
};
use crate::support::{Gateway, LIMIT};

/// Datagrams between two pauses of the flood, and how many floods there are.
const BURST: u32 = 50;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// Where junk comes from, each a network of its own.
const JUNK: [&str; 3] = ["127.0.1.1", "127.0.2.1", "127.0.3.1"];

/// Sends junk of one kind until told to stop.
fn flood(peer: &Peer, junk: &[Vec<u8>], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for at in 0..BURST {
            peer.send(&junk[at as usize % junk.len()]);
        }
        wait::pause(PAUSE);
    }
}

/// Sends a handshake until it is answered, as clients do, only that they wait longer.
fn shake_hands(client: &Peer, server: &Server, sent: &[u8], expected: &[u8]) {
    let answered = wait::until("a handshake to be answered", LIMIT, || {
        client.send(sent);
        let seen = std::iter::from_fn(|| server.try_receive()).find(|seen| {
            assert!(
                !JUNK.contains(&&*seen.client.ip().to_string()),
                "junk reached the server"
            );
            // What was asked again may come late, also that of who was answered before.
            (seen.client, &*seen.datagram) == (client.addr(), expected)
        });
        let Some(seen) = seen else { return false };
        let answer = if sent[0] == 1 {
            response(index(1), 5)
        } else {
            data(5, 4)
        };
        seen.answer(&answer);
        client.try_receive() == Some(answer)
    });
    answered.unwrap();
}

/// How long a handshake waits for its answer before it is sent again.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

#[test]
fn handshakes_and_data_pass_while_junk_comes_in() {
    let server = Server::start();
    let key = [3; 32];
    let more = format!("publicKeys: [\"{}\"], routeId", base64(&key));
    let routes = numbered(&[&server]).replace("routeId", &more);
    let gateway = Gateway::start(&config(""), &routes);
    let old = Peer::new(&gateway);
    old.exchange(&server, 1, 1);
    old.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (source, junk) in [
            (JUNK[0], vec![initiation(1, None)]),
            (
                "127.0.2.1",
                vec![with_route(initiation(1, Some(&[8; 32])), 1)],
            ),
            (JUNK[2], vec![vec![0; 148], vec![1; 148], data(9, 9)]),
        ] {
            let (peer, stop) = (Peer::at(source, gateway.addr("wg")), &stop);
            scope.spawn(move || flood(&peer, &junk, stop));
        }
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..5 {
                // Ours, which name their route, and foreign ones, which do not.
                for route in [None, Some(1)] {
                    let client = Peer::at("127.0.4.1", gateway.addr("wg"));
                    client.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                    server.socket().set_read_timeout(Some(TIMEOUT)).unwrap();
                    let handshake = initiation(round, Some(&key));
                    let sent = match route {
                        Some(route) => with_route(handshake.clone(), route),
                        None => handshake.clone(),
                    };
                    shake_hands(&client, &server, &sent, &handshake);
                }
                shake_hands(&old, &server, &data(index(1), 3), &data(index(1), 3));
            }
            for reason in ["unknown_mac1", "bad_mac1", "unknown_kind", "source_rate"] {
                wait::until(reason, LIMIT, || {
                    gateway.value(DROPPED, &[("reason", reason)]) > 0.0
                })
                .unwrap();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = passed {
            std::panic::resume_unwind(panic);
        }
    });
    let flows = gateway.value("rhizome_listener_connections_active", &[("listener", "wg")]);
    assert_eq!(flows, 11.0, "junk has no flows");
}

#[test]
fn empty_budget_stops_only_key_search() {
    let server = Server::start();
    let key = [3; 32];
    let more = format!("publicKeys: [\"{}\"], routeId", base64(&key));
    let routes = numbered(&[&server]).replace("routeId", &more);
    let text = config("wireguard: { scanRate: 0, scanBurst: 3 }\n");
    let gateway = Gateway::start(&text, &routes);
    let junk = Peer::at("127.0.1.1", gateway.addr("wg"));
    for _ in 0..4 {
        junk.send(&initiation(1, None));
    }
    gateway.wait_value(DROPPED, &[("reason", "scan_budget")], 1.0);
    gateway.wait_value(
        "rhizome_wireguard_scans_total",
        &[("result", "budget")],
        1.0,
    );
    let foreign = Peer::new(&gateway);
    foreign.send(&initiation(2, Some(&key)));
    gateway.wait_value(DROPPED, &[("reason", "scan_budget")], 2.0);
    let ours = Peer::new(&gateway);
    ours.send(&with_route(initiation(3, Some(&key)), 1));
    assert_eq!(server.receive().datagram, initiation(3, Some(&key)));
    ours.exchange(&server, 1, 1);
}
