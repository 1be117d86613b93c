//! Lines that lose, reorder, shrink and delay.

use std::time::Duration;

use testkit::impair::{Direction, Impairment};
use testkit::tunnel_world::{LIMIT, Params, Part, World};
use testkit::wait;

use crate::world::{NOTICED, alive, dial, hold, lived, start, wait_transport};

/// Sends half a megabyte there and back, in pieces that fill packets, and expects it unchanged.
fn transfer(world: &World) {
    let mut stream = dial(world, 0);
    let piece: Vec<u8> = (0..32_768_u32).map(|number| number as u8).collect();
    for _ in 0..16 {
        assert!(stream.exchange(&piece).unwrap() == piece, "other bytes");
    }
}

/// Returns how many packets were larger than a client's line carries.
fn too_large(world: &World) -> u64 {
    let counts = Direction::BOTH.map(|direction| world.link(0).counts(direction).too_large);
    counts.into_iter().sum()
}

/// Waits until a client sends packets of nearly 1,420 bytes.
fn wait_large(world: &World) {
    let mtu = || world.metric(Part::Client(0), "rhizome_tunnel_peer_mtu_bytes", &[]);
    wait::until("large packets to be tried", LIMIT, || mtu() > Some(1380.0)).unwrap();
}

fn over(transport: &'static str) -> Params {
    Params {
        transport,
        ..Params::default()
    }
}

#[test]
fn bytes_arrive_over_lossy_reordering_line() {
    for transport in ["tcp", "udp"] {
        let (world, _echo) = start(over(transport));
        let held = hold(&world, 0);
        world.link(0).set_both(Impairment {
            loss: 0.01,
            duplicate: 0.01,
            reorder: 0.01,
            ..Impairment::long(Duration::from_millis(5), 0.01)
        });
        transfer(&world);
        alive(&held);
        for direction in Direction::BOTH {
            let counts = world.link(0).counts(direction);
            assert!(counts.lost > 0, "{counts:?}");
        }
    }
}

/// Its segments are small from the beginning, so that no hole is ever met.
#[test]
fn tcp_fits_narrowest_line() {
    let (world, _echo) = start(over("tcp"));
    let held = hold(&world, 0);
    let narrow = Impairment {
        largest: Some(1280),
        ..Impairment::default()
    };
    world.link(0).set_both(narrow);
    transfer(&world);
    alive(&held);
    assert_eq!(too_large(&world), 0);
}

#[test]
fn hole_present_from_start_is_avoided() {
    for params in [Params::default(), over("udp")] {
        let mut world = crate::world::lay(params);
        let _echo = world.echo(crate::world::ECHO).unwrap();
        let hole = Impairment {
            largest: Some(1400),
            ..Impairment::default()
        };
        world.link(0).set_both(hole);
        world.start().unwrap();
        wait_transport(&world, 0, 0, "udp");
        transfer(&world);
    }
}

#[test]
fn silent_hole_for_large_packets_is_avoided() {
    // What is left of the smaller one for inner packets is 1280 bytes, IPv6's least.
    for largest in [1400, 1340] {
        let (world, _echo) = start(over("udp"));
        let held = hold(&world, 0);
        wait_large(&world);
        held.begin_anew();
        let hole = Impairment {
            largest: Some(largest),
            ..Impairment::default()
        };
        world.link(0).set_both(hole);
        transfer(&world);
        lived(&held, &format!("a hole of {largest}"), NOTICED);
        let counts = world.link(0).counts(Direction::Back);
        assert!(counts.too_large > 0, "{counts:?}");
    }
}

#[test]
fn udp_fits_narrow_line_that_reports() {
    let (world, _echo) = start(over("udp"));
    wait_large(&world);
    let narrow = Impairment {
        largest: Some(1400),
        tells: true,
        ..Impairment::default()
    };
    world.link(0).set_both(narrow);
    transfer(&world);
    assert!(too_large(&world) > 0);
}

#[test]
fn tcp_is_used_where_udp_does_not_fit() {
    let mut world = crate::world::lay(Params::default());
    let _echo = world.echo(crate::world::ECHO).unwrap();
    let hole = Impairment {
        largest: Some(1280),
        ..Impairment::default()
    };
    world.link(0).set_both(hole);
    world.start().unwrap();
    wait_transport(&world, 0, 0, "tcp");
    transfer(&world);
}

#[test]
fn slow_line_with_long_queue_is_not_dead() {
    let (world, _echo) = start(Params::default());
    wait_transport(&world, 0, 0, "udp");
    let held = hold(&world, 0);
    held.begin_anew();
    world.link(0).set_both(Impairment {
        rate: Some(10_000_000),
        queue: 200,
        ..Impairment::long(Duration::from_millis(10), 0.0)
    });
    transfer(&world);
    lived(&held, "a slow line", NOTICED);
}
