//! Programs that die or freeze without a word.

use std::time::Duration;

use testkit::process::Signal;
use testkit::tunnel_world::{Params, Part, World};
use testkit::wait::Stopwatch;

use crate::world::{NOTICED, alive, converse, doubled, hold, lived, pod, start};

/// The path that is left is not touched: no more than a busy machine's hiccups.
const UNTOUCHED: Duration = Duration::from_secs(2);

/// Dials some connections while a client's death has not been noticed yet. Each is made at its first
/// attempt, and well before a server would give it up.
fn dial_at_once(world: &World, what: &str) {
    for number in 0..6 {
        let clock = Stopwatch::start();
        let mut stream = world.dial(number % 2, &pod()).unwrap();
        assert_eq!(stream.exchange(b"hello").unwrap(), b"hello");
        let took = clock.elapsed();
        println!("{what}: dialed within {took:?}");
        assert!(took < NOTICED, "{what}: {took:?}");
    }
}

#[test]
fn killed_server_leaves_the_other_unharmed() {
    let (mut world, _echo) = start(doubled());
    let held = hold(&world, 1);
    held.begin_anew();
    world.child(Part::Server(0)).unwrap().kill().unwrap();
    converse(&world, 1);
    lived(&held, "the death of the other server", UNTOUCHED);
    world.start_part(Part::Server(0)).unwrap();
    world.wait_ready(Part::Server(0)).unwrap();
    converse(&world, 0);
}

#[test]
fn new_connections_avoid_killed_client() {
    let (mut world, _echo) = start(doubled());
    for client in 0..2 {
        world.child(Part::Client(client)).unwrap().kill().unwrap();
        dial_at_once(&world, &format!("client {client} killed"));
        world.start_part(Part::Client(client)).unwrap();
        world.wait_ready(Part::Client(client)).unwrap();
    }
}

#[test]
fn only_client_restarts_after_kill() {
    let (mut world, _echo) = start(Params::default());
    for _ in 0..2 {
        world.child(Part::Client(0)).unwrap().kill().unwrap();
        world.start_part(Part::Client(0)).unwrap();
        world.wait_ready(Part::Client(0)).unwrap();
        converse(&world, 0);
    }
}

#[test]
fn frozen_client_is_skipped_until_it_resumes() {
    let (mut world, _echo) = start(doubled());
    for client in 0..2 {
        let freeze = world.child(Part::Client(client)).unwrap();
        freeze.signal(Signal::STOP).unwrap();
        dial_at_once(&world, &format!("client {client} frozen"));
        world
            .child(Part::Client(client))
            .unwrap()
            .signal(Signal::CONT)
            .unwrap();
        world.wait_ready(Part::Client(client)).unwrap();
    }
}

#[test]
fn frozen_server_resumes_and_blocks_no_other() {
    let (mut world, _echo) = start(doubled());
    let (frozen, other) = (hold(&world, 0), hold(&world, 1));
    other.begin_anew();
    let server = world.child(Part::Server(0)).unwrap();
    server.signal(Signal::STOP).unwrap();
    converse(&world, 1);
    lived(&other, "the other server frozen", UNTOUCHED);
    world
        .child(Part::Server(0))
        .unwrap()
        .signal(Signal::CONT)
        .unwrap();
    alive(&frozen);
    world.wait_ready(Part::Server(0)).unwrap();
    converse(&world, 0);
}

#[test]
fn frozen_gateway_loses_no_connection() {
    let (mut world, _echo) = start(Params::default());
    let held = hold(&world, 0);
    let gateway = world.child(Part::Gateway).unwrap();
    gateway.signal(Signal::STOP).unwrap();
    testkit::wait::until("silence", testkit::tunnel_world::LIMIT, || {
        held.report().longest_gap > Duration::from_secs(3)
    })
    .unwrap();
    world
        .child(Part::Gateway)
        .unwrap()
        .signal(Signal::CONT)
        .unwrap();
    alive(&held);
    converse(&world, 0);
}
