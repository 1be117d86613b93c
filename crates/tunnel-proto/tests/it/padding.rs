//! Padding over a second TCP connection ahead of its first turn, on the simulated links of
//! [`path`](super::path).

use std::time::Duration;

use tunnel_proto::path::{CloseReason, Event, LinkId, MOST_PADDING, Padding, Segments};

use super::ms;
use super::path::World;
use super::turns::{busy_over, by_tcp, closed, other, turns};

/// When what was to be sent and asked for, by which link.
fn padded(world: &World) -> Vec<(Duration, LinkId, Padding)> {
    let of = |(at, event): &(Duration, Event)| match event {
        Event::Pad { link, padding } => Some((*at, *link, *padding)),
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
fn second_connection_is_padded_once_ahead_of_its_first_turn() {
    let mut world = by_tcp();
    busy_over(&mut world, ms(120_000), more(4000, 0));
    let second = other(&world).max(world.active_link());
    let padded = padded(&world);
    let [(at, link, padding)] = padded[..] else {
        panic!("{padded:?}");
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
        let padded = padded(&world);
        assert_eq!(padded.len(), 1);
        assert_eq!(padded[0].2.send, expected);
    }
}

#[test]
fn connection_in_place_of_a_second_one_that_died_is_padded_as_well() {
    let mut world = by_tcp();
    busy_over(&mut world, ms(20_000), more(0, 0));
    let (used, next) = (world.active_link(), other(&world));
    world.dead = Some(next);
    busy_over(&mut world, ms(20_000), more(0, 0));
    let links: Vec<_> = padded(&world).iter().map(|(_, link, _)| *link).collect();
    assert_eq!(links.len(), 2, "{links:?}");
    assert!(links[1] > used.max(next));
}

#[test]
fn what_padding_loses_says_nothing_of_the_line() {
    let mut world = by_tcp();
    let first = world.active_link();
    while turns(&world).is_empty() && world.time() < ms(90_000) {
        let on_its_way = !padded(&world).is_empty();
        // The load's connection shares the line with the padding, and loses some as well.
        busy_over(&mut world, ms(250), |counted| {
            counted.out_of_order += if on_its_way { 900 } else { 0 };
        });
        if on_its_way && world.links.len() == 2 {
            let second = *world.links.keys().find(|link| **link != first).unwrap();
            world.counted.entry(second).or_insert(Segments {
                sent: 5000,
                resent: 400,
                in_flight: 400,
                received: 5000,
                out_of_order: 3000,
            });
        }
    }
    assert_ne!(world.active_link(), first);
    busy_over(&mut world, ms(50_000), |_| {});
    assert_eq!(closed(&world, CloseReason::Lossy), 0);
    assert!(!world.selector.withholds_turns());
    assert_eq!(turns(&world).len(), 6, "{:?}", turns(&world));
}

#[test]
fn what_the_line_loses_after_the_padding_is_seen_in_the_first_turn() {
    let mut world = by_tcp();
    while turns(&world).is_empty() && world.time() < ms(90_000) {
        busy_over(&mut world, ms(250), |_| {});
    }
    busy_over(&mut world, ms(20_000), |counted| {
        counted.out_of_order += 900
    });
    assert_eq!(closed(&world, CloseReason::Lossy), 1);
    assert!(world.selector.withholds_turns());
}

#[test]
fn round_trip_made_long_by_a_queue_asks_for_no_more_than_is_sent_until_the_turn() {
    let mut world = by_tcp();
    world.tcp.rtt = ms(900);
    busy_over(&mut world, ms(20_000), more(1000, 0));
    let most = 0.5 * 1220.0 * 4000.0;
    // The first answer comes when the turn is due.
    assert_eq!(padded(&world), []);
    // One that is made anew early in a turn has answered long before the next.
    let taken = turns(&world).len();
    assert_ne!(taken, 0);
    while turns(&world).len() == taken && world.time() < ms(90_000) {
        busy_over(&mut world, ms(250), more(1000, 0));
    }
    world.dead = Some(other(&world));
    busy_over(&mut world, ms(8000), more(1000, 0));
    let padded = padded(&world);
    assert_eq!(padded.len(), 1);
    let sent = f64::from(padded[0].2.send);
    assert!(sent <= most && sent > 0.9 * most, "{padded:?}");
}

#[test]
fn no_padding_is_sent_when_the_load_is_over_or_the_turn_has_come() {
    let mut world = by_tcp();
    busy_over(&mut world, ms(20_000), more(0, 0));
    assert_eq!(padded(&world).len(), 1);
    world.run(ms(10_000));
    let (active, spare) = (world.active_link(), other(&world));
    world.selector.handle_failed(world.now, spare);
    world.act();
    world.run(ms(20_000));
    assert_eq!((world.links.len(), padded(&world).len()), (2, 1));
    // The load is back, and the turn is due: it goes over the new one at once.
    busy_over(&mut world, ms(1000), more(0, 0));
    assert_ne!(world.active_link(), active);
    assert_eq!(padded(&world).len(), 1);
}

#[test]
fn what_is_lost_long_after_padding_counts_again() {
    let mut world = by_tcp();
    while padded(&world).is_empty() && world.time() < ms(90_000) {
        busy_over(&mut world, ms(250), |_| {});
    }
    let second = other(&world);
    world.dead = Some(second);
    world.refuses = true;
    busy_over(&mut world, ms(30_000), |counted| {
        counted.out_of_order += 900
    });
    assert!(world.selector.withholds_turns());
}
