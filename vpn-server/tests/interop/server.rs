//! Our server with other people's clients.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use testkit::netns::Place;
use testkit::wait;

use crate::everyone::{with_everyone, with_everyone_twice};
use crate::field::{AWAY, By, Field, HOME, LIMIT, PORT, SEED, alive};
use crate::nat::{Kind, Way};
use crate::programs::{DEVICE, Ours, Theirs};

const MOVES: &str = "rhizome_tunnel_path_changes_total";
const MTU: &str = "rhizome_tunnel_peer_mtu_bytes";

#[test]
fn any_client_carries_connections_whatever_else_comes() {
    with_everyone_twice(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let server = Ours::server(&field);
        assert!(!server.is_ready());
        let client = Theirs::client(&field, &nat);
        server.wait_ready(true);
        field.ping(DEVICE);
        let held = field.hold(By::Proxy);
        field.stream(By::Proxy);

        nat.junk(AWAY);
        alive(&held);
        assert!(server.is_ready());
        assert_eq!(server.metric(MOVES, &[]), 0.0, "{}", server.tunnel());

        let answered = nat.count(Way::ToClient, Kind::Response);
        client.forget_sessions();
        wait::until("another handshake", LIMIT, || {
            nat.count(Way::ToClient, Kind::Response) > answered
        })
        .unwrap();
        alive(&held);
        server.wait_ready(true);
        nat.junk(HOME);
        field.stream(By::Proxy);
        alive(&held);
        assert_eq!(nat.marked(), 0);
        assert_eq!(server.metric(MTU, &[]), 1420.0);
    });
}

#[test]
fn a_client_that_moves_is_followed() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let server = Ours::server(&field);
        let _client = Theirs::client(&field, &nat);
        let held = field.hold(By::Proxy);
        server.wait_remote(HOME);
        for (at, place) in [AWAY, HOME, HOME, AWAY].into_iter().enumerate() {
            nat.rebind(place);
            alive(&held);
            server.wait_remote(place);
            let moves = "the move to be counted";
            wait::until(moves, LIMIT, || server.metric(MOVES, &[]) > at as f64).unwrap();
        }
        server.wait_ready(true);
        assert_eq!(nat.count(Way::ToClient, Kind::Response), 1);
    });
}

#[test]
fn a_copy_of_what_a_client_sent_moves_nothing() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let server = Ours::server(&field);
        let _client = Theirs::client(&field, &nat);
        let held = field.hold(By::Proxy);
        for _ in 0..20 {
            nat.junk(AWAY);
            held.wait_exchanges(1, LIMIT).unwrap();
        }
        server.wait_remote(HOME);
        assert_eq!(server.metric(MOVES, &[]), 0.0);
    });
}

#[test]
fn either_end_may_be_restarted() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let server = Ours::server(&field);
        let client = Theirs::client(&field, &nat);
        let held = field.hold(By::Proxy);
        drop(client);
        server.wait_ready(false);
        let _client = Theirs::client(&field, &nat);
        server.wait_ready(true);
        alive(&held);

        drop(held);
        drop(server);
        let server = Ours::server(&field);
        // It does not know where its client is, which notices 15 s after it sent something.
        wait::until("the client to notice", LIMIT, || {
            field.call_from_shoot();
            server.is_ready()
        })
        .unwrap();
        field.stream(By::Proxy);
    });
}

#[test]
fn keepalives_tell_where_a_client_is_but_not_that_it_is_well() {
    with_everyone(|case| {
        let field = Field::lay(case);
        Field::answer_pings(&field.shoot, false);
        let nat = field.nat();
        let server = Ours::server(&field);
        let _client = Theirs::client(&field, &nat);
        server.wait_remote(HOME);
        nat.rebind(AWAY);
        server.wait_remote(AWAY);
        let tunnel = server.tunnel();
        assert_eq!(tunnel["healthy"], false, "{tunnel}");
        assert!(!server.is_ready());
        Field::answer_pings(&field.shoot, true);
        server.wait_ready(true);
        assert_eq!(nat.count(Way::ToClient, Kind::Response), 1);
    });
}

#[test]
fn under_a_flood_of_handshakes_clients_show_a_cookie() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let _server = Ours::server(&field);
        let client = Theirs::client(&field, &nat);
        let held = field.hold(By::Proxy);
        let bind = || UdpSocket::bind((AWAY, 0)).unwrap();
        let socket = Place::In(&field.shoot).run(bind).unwrap();
        let (copy, stop) = (nat.initiation(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&copy, (SEED, PORT));
                    wait::pause(Duration::from_millis(1));
                }
            });
            let outcome = wait::until("a handshake by a cookie", LIMIT, || {
                let cookies = nat.count(Way::ToClient, Kind::Cookie);
                let answers = nat.count(Way::ToClient, Kind::Response);
                client.forget_sessions();
                let asked = wait::until("an answer", LIMIT, || {
                    nat.count(Way::ToClient, Kind::Response) > answers
                });
                // What was answered had the second authenticator (WireGuard paper §5.4.4).
                let without = nat.initiation().ends_with(&[0; 16]);
                asked.is_ok() && !without && nat.count(Way::ToClient, Kind::Cookie) > cookies
            });
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
        alive(&held);
    });
}
