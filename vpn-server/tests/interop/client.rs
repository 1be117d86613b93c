//! Our client with other people's servers.

use testkit::wait;

use crate::addresses::Addresses;
use crate::everyone::{with_everyone, with_everyone_twice};
use crate::field::{By, Field, LIMIT, alive};
use crate::nat::{Kind, Way};
use crate::programs::{Ours, Theirs};

#[test]
fn any_server_reaches_shoot_despite_junk() {
    with_everyone_twice(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let client = Ours::client(&field, &nat);
        assert!(!client.is_ready());
        let server = Theirs::server(&field);
        client.wait_ready(true);
        field.ping(server.device());
        let held = field.hold(By::Route);
        field.stream(By::Route);

        nat.junk(field.addresses.home);
        alive(&held);

        let begun = nat.count(Way::ToClient, Kind::Response);
        server.forget_sessions();
        wait::until("another handshake", LIMIT, || {
            nat.count(Way::ToClient, Kind::Response) > begun
        })
        .unwrap();
        alive(&held);
        client.wait_ready(true);
        nat.junk(field.addresses.away);
        field.stream(By::Route);
        alive(&held);
        assert_eq!(nat.marked(), 0);
    });
}

#[test]
fn server_follows_moved_client() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let client = Ours::client(&field, &nat);
        let _server = Theirs::server(&field);
        let held = field.hold(By::Route);
        let Addresses { home, away, .. } = *field.addresses;
        for place in [away, home, home] {
            nat.rebind(place);
            alive(&held);
        }
        client.wait_ready(true);
    });
}

#[test]
fn either_end_may_be_restarted() {
    with_everyone(|case| {
        let field = Field::lay(case);
        let nat = field.nat();
        let client = Ours::client(&field, &nat);
        let server = Theirs::server(&field);
        client.wait_ready(true);
        field.stream(By::Route);
        drop(server);
        client.wait_ready(false);
        let _server = Theirs::server(&field);
        client.wait_ready(true);
        field.stream(By::Route);

        drop(client);
        let client = Ours::client(&field, &nat);
        client.wait_ready(true);
        field.stream(By::Route);
    });
}

#[test]
fn server_without_answers_is_unhealthy() {
    with_everyone(|case| {
        let field = Field::lay(case);
        field.answer_pings(&field.seed, false);
        let nat = field.nat();
        let client = Ours::client(&field, &nat);
        let _server = Theirs::server(&field);
        wait::until("a handshake", LIMIT, || {
            nat.count(Way::ToClient, Kind::Response) > 0
        })
        .unwrap();
        assert!(!client.is_ready());
        field.answer_pings(&field.seed, true);
        client.wait_ready(true);
        field.stream(By::Route);
    });
}
