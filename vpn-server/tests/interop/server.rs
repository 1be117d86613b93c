//! Our server with other people's clients.

use std::net::UdpSocket;
use std::time::Duration;

use testkit::netns::Place;
use testkit::wait;

use crate::addresses::Addresses;
use crate::everyone::{with_everyone, with_everyone_twice};
use crate::field::{By, Field, LIMIT, alive};
use crate::nat::{Kind, Way};
use crate::programs::{DEVICE, Ours, Theirs};

/// Handshakes at once: a server answers 100 a second without a cookie.
const FLOOD: usize = 120;

const DROPPED: &str = "rhizome_tunnel_dropped_total";
const MOVES: &str = "rhizome_tunnel_path_changes_total";
const MTU: &str = "rhizome_tunnel_peer_mtu_bytes";

#[test]
fn any_client_carries_connections_despite_junk() {
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

        nat.junk(field.addresses.away);
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
        nat.junk(field.addresses.home);
        field.stream(By::Proxy);
        alive(&held);
        assert_eq!(nat.marked(), 0);
        assert_eq!(server.metric(MTU, &[]), 1420.0);
    });
}

#[test]
fn moved_client_is_followed() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let server = Ours::server(&field);
        let _client = Theirs::client(&field, &nat);
        let held = field.hold(By::Proxy);
        server.wait_remote(field.addresses.home);
        let Addresses { home, away, .. } = *field.addresses;
        for (at, place) in [away, home, home, away].into_iter().enumerate() {
            nat.rebind(place);
            alive(&held);
            server.wait_remote(place);
            let moves = "the move to be counted";
            wait::until(moves, LIMIT, || server.metric(MOVES, &[]) > at as f64).unwrap();
        }
        server.wait_ready(true);
    });
}

#[test]
fn replayed_datagram_moves_nothing() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let server = Ours::server(&field);
        let _client = Theirs::client(&field, &nat);
        let held = field.hold(By::Proxy);
        for _ in 0..4 {
            nat.junk(field.addresses.away);
            held.wait_exchanges(1, LIMIT).unwrap();
        }
        wait::until("a replay to be dropped", LIMIT, || {
            server.metric(DROPPED, &[("reason", "replay")]) > 0.0
        })
        .unwrap();
        server.wait_remote(field.addresses.home);
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
fn keepalives_update_address_but_not_health() {
    with_everyone(|case| {
        let field = Field::lay(case);
        field.answer_pings(&field.shoot, false);
        let nat = field.nat();
        let server = Ours::server(&field);
        let _client = Theirs::client(&field, &nat);
        server.wait_remote(field.addresses.home);
        nat.rebind(field.addresses.away);
        server.wait_remote(field.addresses.away);
        let tunnel = server.tunnel();
        assert_eq!(tunnel["healthy"], false, "{tunnel}");
        assert!(!server.is_ready());
        field.answer_pings(&field.shoot, true);
        server.wait_ready(true);
    });
}

#[test]
fn clients_show_cookie_during_handshake_flood() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let _server = Ours::server(&field);
        let client = Theirs::client(&field, &nat);
        field.stream(By::Proxy);
        let bind = || UdpSocket::bind((field.addresses.away, 0)).unwrap();
        let socket = Place::In(&field.shoot).run(bind).unwrap();
        let copy = nat.initiation();
        let flood = || {
            for _ in 0..FLOOD {
                let _ = socket.send_to(&copy, field.addresses.endpoint());
            }
            wait::pause(Duration::from_millis(100));
        };
        let cookies = || nat.count(Way::ToClient, Kind::Cookie);
        let responses = || nat.count(Way::ToClient, Kind::Response);
        wait::until("a handshake by a cookie", LIMIT, || {
            let before = (cookies(), responses());
            client.forget_sessions();
            // No longer than it takes, and not for ever: all of it is answered in turn.
            let mut bursts = 0..10;
            let first = wait::until("the first answer", LIMIT, || {
                if bursts.next().is_some() {
                    flood();
                }
                before != (cookies(), responses())
            });
            let second = wait::until("a response", LIMIT, || responses() > before.1);
            // What was answered had the second authenticator (WireGuard paper §5.4.4).
            let has_cookie = !nat.initiation().ends_with(&[0; 16]);
            first.is_ok() && second.is_ok() && has_cookie && cookies() > before.0
        })
        .unwrap();
        field.stream(By::Proxy);
    });
}
