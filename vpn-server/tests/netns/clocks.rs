//! A client that is started again with a clock that went back.

use std::time::Duration;

use testkit::tunnel_world::{LIMIT, Params, Part, World};
use testkit::wait::{self, Stopwatch};

use crate::world::{alive, converse, dropped, hold, pod, start, wait_dropped, wait_transport};

const CLIENT: Part = Part::Client(0);

/// How long the server refuses older handshakes after the last session, and as much again as a busy
/// machine may need.
const REFUSED: Duration = Duration::from_secs(180 + 30);

#[test]
fn server_follows_client_whose_clock_went_back() {
    let (mut world, _echo) = start(Params {
        transport: "udp",
        ..Params::default()
    });
    // Each process has a session of its own, so that the server's indices have risen.
    for _ in 0..3 {
        restart(&mut world, Duration::ZERO);
        world.wait_ready(CLIENT).unwrap();
        converse(&world, 0);
    }
    let before = dropped(&world, 0, "old_handshake");
    restart(&mut world, Duration::from_secs(3600));
    wait_dropped(&world, 0, "old_handshake", before);

    let clock = Stopwatch::start();
    wait::until_ok("a connection through the server", REFUSED, || {
        world.dial(0, &pod())
    })
    .unwrap();
    println!("followed after {:?}", clock.elapsed());
    world.wait_ready(CLIENT).unwrap();
    wait_transport(&world, 0, 0, "udp");
    alive(&hold(&world, 0));
}

/// Kills the client, so that it tells the server nothing, and starts it with a clock that is behind.
fn restart(world: &mut World, behind: Duration) {
    world.child(CLIENT).unwrap().kill().unwrap();
    world.start_part_behind(CLIENT, behind).unwrap();
    wait::until("the client's probes", LIMIT, || {
        world.probe(CLIENT, "/healthz").is_ok()
    })
    .unwrap();
}
