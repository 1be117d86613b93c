//! The loads against the backend itself, and what is measured of whom.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use super::bulk::Direction;
use super::opening::Opening;
use super::window::Meter;
use super::*;
use crate::backend::{Backend, Command};
use crate::cpus::Cpus;
use crate::profile::{Route, Setting, Target};
use crate::programs::value_name;

const SHORT: Duration = Duration::from_millis(100);

fn profile(text: &str) -> Profile {
    Profile::read(text, Path::new("test.yaml")).unwrap()
}

/// A backend, and the load's way to it without anything between.
fn direct() -> (Backend, Target, Meter) {
    let backend = Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let bound = Cpus::default().bind_load().unwrap();
    let routes = Route::table(1, backend.address());
    let setting = Setting::here(&bound, Listener::Sni, routes);
    let target = Target::start(&profile("name: direct\n"), &setting).unwrap();
    let meter = Meter::of(&target);
    (backend, target, meter)
}

fn opening() -> Opening {
    let nowhere = (Ipv4Addr::LOCALHOST, 1).into();
    Opening::new(None, &Route::numbered(0, nowhere), false)
}

fn conns(target: &Target, meter: &Meter) -> Result<(conns::Found, window::Spent)> {
    let load = conns::Load {
        in_flight: 4,
        warm_up: Duration::ZERO,
        length: SHORT,
    };
    let words = vec![opening().canned(Command::Echo, b"!")];
    conns::run(target.address(), words, load, meter)
}

#[test]
fn connections_match_backend_count() {
    let (backend, target, meter) = direct();
    let (found, spent) = conns(&target, &meter).unwrap();
    assert_eq!((found.done, found.failed), (backend.accepted(), 0));
    assert_eq!(found.latencies.count(), found.done);
    assert!(spent.wall >= SHORT && spent.proxy.is_none());
    drop(backend);
    let error = conns(&target, &meter).unwrap_err();
    assert!(error.to_string().contains("none came through"), "{error}");
}

#[test]
fn bytes_arrive_both_ways() {
    let (backend, target, meter) = direct();
    for direction in [Direction::Down, Direction::Up] {
        let load = bulk::Load {
            connections: 3,
            direction,
            warm_up: Duration::ZERO,
            length: SHORT,
        };
        let before = backend.discarded();
        let way = Way {
            address: target.address(),
            opening: &opening(),
            backend: &backend,
            meter: &meter,
        };
        let (bytes, _) = bulk::run(way, load).unwrap();
        let discarded = backend.discarded() - before;
        match direction {
            Direction::Down => assert_eq!(discarded, 0),
            Direction::Up => assert!(discarded >= bytes),
        }
        assert!(bytes > 1_000_000, "{direction:?}: {bytes}");
    }
}

#[test]
fn round_trips_are_one_after_the_other() {
    let (backend, target, meter) = direct();
    let way = Way {
        address: target.address(),
        opening: &opening(),
        backend: &backend,
        meter: &meter,
    };
    let (latencies, spent) = rtt::run(way, Duration::ZERO, SHORT).unwrap();
    let count = u32::try_from(latencies.count()).unwrap();
    assert!(count > 0 && latencies.quantile(0.0) * count <= spent.wall);
}

#[test]
fn steps_follow_listeners_then_cases() {
    let profiles = [
        profile("name: a\nlisteners: [sni, proxy]\n"),
        profile("name: b\ncases: [rtt]\n"),
    ];
    let listeners = [Listener::Sni, Listener::Proxy];
    let steps = steps(&listeners, &[Case::Conns, Case::Rtt], &profiles);
    let steps = steps.iter().map(|(subject, case)| {
        let listener = value_name(subject.listener);
        format!("{} {listener} {case:?}", subject.profile.name)
    });
    let expected = [
        "a sni Conns",
        "a sni Rtt",
        "b sni Rtt",
        "a proxy Conns",
        "a proxy Rtt",
    ];
    assert_eq!(steps.collect::<Vec<_>>(), expected);
}
