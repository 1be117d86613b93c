//! The load against the servers themselves.

use std::path::Path;
use std::time::Duration;

use crate::cpus::Cpus;
use crate::tls::window::Meter;

use super::client::Client;
use super::load::Load;
use super::server::{LIST, LIST_BYTES, Server};
use super::*;

const SHORT: Duration = Duration::from_millis(100);

/// A server, and the load's way to it without anything between.
fn direct() -> (World, Server, Client, Meter) {
    let world = World::new().unwrap();
    let mut servers = world.servers(1).unwrap();
    let bound = Cpus::default().bind_load().unwrap();
    let profile = Profile::read("name: direct\n", Path::new("test.yaml")).unwrap();
    let setting = (Place::Here, &[][..], &bound);
    let target = world.start(&profile, &servers, setting).unwrap();
    let client = world.client(&profile, &target).unwrap();
    let meter = Meter::of(&target);
    (world, servers.remove(0), client, meter)
}

fn load(protocol: Protocol, path: &'static str, fresh: bool) -> Load {
    Load {
        protocol,
        path,
        at_once: 2,
        fresh,
        warm_up: Duration::ZERO,
        length: SHORT,
    }
}

#[test]
fn requests_match_server_count() {
    let (_world, server, client, meter) = direct();
    for (protocol, fresh) in [
        (Protocol::Http1, false),
        (Protocol::Http2, false),
        (Protocol::Http2, true),
    ] {
        let before = server.requests();
        let (found, spent) = load::run(&client, load(protocol, SMALL, fresh), &meter).unwrap();
        let (counted, asked) = (found.latencies.count(), server.requests() - before);
        // Those that ended after the time that counts are not in it: one of each connection.
        assert!(
            (counted..=counted + 2).contains(&asked),
            "{counted} of {asked}"
        );
        assert!(spent.wall >= SHORT && spent.proxy.is_none());
    }
}

#[test]
fn large_answers_arrive_whole() {
    let (_world, _server, client, meter) = direct();
    let long = Load {
        length: Duration::from_secs(2),
        ..load(Protocol::Http2, LIST, false)
    };
    let (found, _) = load::run(&client, long, &meter).unwrap();
    let whole = found.latencies.count() * LIST_BYTES as u64;
    // Of two connections what had come before, and what was not over yet.
    let of_two = 2 * LIST_BYTES as u64;
    let bytes = found.bytes;
    assert!(
        (whole..=whole + 2 * of_two).contains(&(bytes + of_two)),
        "{bytes} bytes, {whole} in whole answers"
    );
}

#[test]
fn request_of_unverified_user_is_refused() {
    let (_world, _server, client, meter) = direct();
    let forged = Client {
        user: "system:admin",
        ..client
    };
    let error = load::run(&forged, load(Protocol::Http2, SMALL, false), &meter).unwrap_err();
    assert!(format!("{error:#}").contains("403 Forbidden"), "{error:#}");
}

#[test]
fn event_reaches_every_watch() {
    let (_world, server, client, meter) = direct();
    let load = watches::Load {
        count: 5,
        events: 3,
    };
    let outcome = watches::run(&client, &server, load, &meter).unwrap();
    assert_eq!(outcome.latencies.count(), 15);
    assert_eq!((outcome.before, outcome.held), (None, None));
}

#[test]
fn requests_apart_are_percent_of_the_mean() {
    let apart = |requests: &[u64]| {
        spread::Outcome {
            requests: requests.to_vec(),
            failed: 0,
        }
        .apart()
    };
    assert_eq!(apart(&[100, 100, 100]), 0.0);
    assert_eq!(apart(&[95, 100, 105]), 10.0);
    assert_eq!(apart(&[150, 150, 0]), 150.0);
}
