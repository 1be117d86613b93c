//! The loads against the backend itself, and what is measured of whom.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use testkit::netns::Place;

use super::bulk::Direction;
use super::opening::{Opening, Words};
use super::window::Meter;
use super::*;
use crate::backend::{Backend, Command};
use crate::cpus::Cpus;
use crate::profile::{Route, Setting, Target};

const SHORT: Duration = Duration::from_millis(100);

fn profile(text: &str) -> Profile {
    Profile::read(text, Path::new("test.yaml")).unwrap()
}

/// The load's way to `backend` without anything between.
fn direct(backend: std::net::SocketAddr) -> Target {
    let bound = Cpus::default().bind_load().unwrap();
    let setting = Setting {
        place: Place::Here,
        cpus: &bound,
        given: &Given::default(),
        listener: Listener::Sni,
        routes: Route::table(1, backend),
    };
    Target::start(&profile("name: direct\n"), &setting).unwrap()
}

fn opening(listener: Option<Listener>) -> Opening {
    let nowhere = (Ipv4Addr::LOCALHOST, 1).into();
    Opening::new(listener, &Route::numbered(0, nowhere), false)
}

fn words() -> Vec<Words> {
    vec![opening(None).canned(Command::Echo, b"!")]
}

#[test]
fn connections_match_backend_count() {
    let backend = Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let target = direct(backend.address());
    let load = conns::Load {
        in_flight: 4,
        warm_up: Duration::ZERO,
        length: SHORT,
    };
    let meter = Meter::of(&target);
    let outcome = conns::run(target.address(), words(), load, &meter).unwrap();
    let accepted = backend.accepted();
    assert_eq!(outcome.done, accepted);
    assert_eq!(outcome.failed, 0);
    assert_eq!(outcome.latencies.count(), outcome.done);
    assert!(outcome.spent.wall >= SHORT && outcome.spent.proxy.is_none());
}

#[test]
fn missing_listener_is_an_error() {
    let backend = Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let target = direct(backend.address());
    drop(backend);
    let load = conns::Load {
        in_flight: 2,
        warm_up: Duration::ZERO,
        length: SHORT,
    };
    let meter = Meter::of(&target);
    let error = conns::run(target.address(), words(), load, &meter).unwrap_err();
    assert!(error.to_string().contains("none came through"), "{error}");
}

#[test]
fn bytes_arrive_both_ways() {
    let backend = Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let target = direct(backend.address());
    for direction in [Direction::Down, Direction::Up] {
        let load = bulk::Load {
            connections: 3,
            direction,
            warm_up: Duration::ZERO,
            length: SHORT,
        };
        let before = backend.discarded();
        let (address, meter) = (target.address(), Meter::of(&target));
        let outcome = bulk::run(address, &opening(None), &backend, load, &meter).unwrap();
        let discarded = backend.discarded() - before;
        match direction {
            Direction::Down => assert_eq!(discarded, 0),
            Direction::Up => assert!(discarded >= outcome.bytes),
        }
        assert!(
            outcome.bytes > 1_000_000,
            "{direction:?}: {}",
            outcome.bytes
        );
    }
}

#[test]
fn round_trips_are_one_after_the_other() {
    let backend = Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let target = direct(backend.address());
    let (address, meter) = (target.address(), Meter::of(&target));
    let outcome = rtt::run(address, &opening(None), Duration::ZERO, SHORT, &meter).unwrap();
    let together =
        outcome.latencies.quantile(0.0) * u32::try_from(outcome.latencies.count()).unwrap();
    assert!(outcome.latencies.count() > 0 && together <= outcome.spent.wall);
}

#[test]
fn steps_follow_listeners_then_cases() {
    let profiles = [
        profile("name: a\nlisteners: [sni, proxy]\n"),
        profile("name: b\ncases: [rtt]\n"),
    ];
    let listeners = [Listener::Sni, Listener::Proxy];
    let steps = steps(&listeners, &[Case::Conns, Case::Rtt], &profiles);
    let steps: Vec<String> = steps
        .iter()
        .map(|(subject, case)| {
            let listener = subject.listener.as_str();
            format!("{} {listener} {case:?}", subject.profile.name)
        })
        .collect();
    assert_eq!(
        steps,
        [
            "a sni Conns",
            "a sni Rtt",
            "b sni Rtt",
            "a proxy Conns",
            "a proxy Rtt"
        ]
    );
}
