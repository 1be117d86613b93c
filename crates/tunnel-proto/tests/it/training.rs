//! Padding over a second TCP connection ahead of its first turn, on the simulated links of
//! [`path`](super::path).

use std::time::Duration;

use tunnel_proto::path::{Event, LinkId, MOST_PADDING, Padding, Segments};

use super::ms;
use super::path::World;
use super::turns::{busy_over, by_tcp, other, turns};

/// When what was to be sent and asked for, by which link.
fn trained(world: &World) -> Vec<(Duration, LinkId, Padding)> {
    let of = |(at, event): &(Duration, Event)| match event {
        Event::Train { link, padding } => Some((*at, *link, *padding)),
        Event::Close { .. } | Event::Dial { .. } | Event::Down => None,
        Event::Probe { .. } | Event::Use { .. } => None,
    };
    world.log.iter().filter_map(of).collect()
}

/// Has so many more segments a second sent and received than the thousand a look.
fn more(sent: u32, received: u32) -> impl Fn(&mut Segments) {
    move |counted| {
        counted.sent += sent;
        counted.received += received;
    }
}

#[test]
fn second_connection_is_trained_once_ahead_of_its_first_turn() {
    let mut world = by_tcp();
    busy_over(&mut world, ms(120_000), more(4000, 0));
    let second = other(&world).max(world.active_link());
    let trained = trained(&world);
    let [(at, link, padding)] = trained[..] else {
        panic!("{trained:?}");
    };
    assert_eq!(link, second);
    let (turn, _) = turns(&world)[0];
    assert!(
        (ms(500)..ms(1000)).contains(&(turn - at)),
        "{at:?} {turn:?}"
    );
    // By 10 ms of 16,000 segments a second, and 4,000.
    let line = |rate: u32| f64::from(rate) * 1220.0 * 0.01;
    for (octets, rate) in [(padding.send, 16_000), (padding.ask, 4000)] {
        let expected = line(rate);
        let near = expected * 0.9..expected * 1.01;
        assert!(near.contains(&f64::from(octets)), "{octets} {expected}");
    }
}

#[test]
fn direction_that_carries_little_needs_no_padding_and_none_gets_more_than_the_most() {
    for (sent, expected) in [(100, 0), (u32::MAX / 1000, MOST_PADDING)] {
        let mut world = by_tcp();
        busy_over(&mut world, ms(12_000), |counted| {
            counted.sent = counted.sent.wrapping_add(sent);
        });
        let trained = trained(&world);
        assert_eq!(trained.len(), 1);
        assert_eq!(trained[0].2.send, expected);
    }
}

#[test]
fn connection_in_place_of_a_second_one_that_died_is_trained_as_well() {
    let mut world = by_tcp();
    busy_over(&mut world, ms(20_000), more(0, 0));
    let (used, next) = (world.active_link(), other(&world));
    world.dead = Some(next);
    busy_over(&mut world, ms(20_000), more(0, 0));
    let links: Vec<_> = trained(&world).iter().map(|(_, link, _)| *link).collect();
    assert_eq!(links.len(), 2, "{links:?}");
    assert!(links[1] > used.max(next));
}
