//! Two TCP connections that take turns, on the simulated links of [`path`](super::path).

use std::collections::BTreeMap;
use std::time::Duration;

use tunnel_proto::path::{CloseReason, Event, LinkId, Mode, Params, Segments, Transport};

use super::ms;
use super::path::{NEAR, SHUT, World};

fn params(mode: Mode) -> Params {
    Params {
        mode,
        turn: ms(9000),
        ..Params::default()
    }
}

pub(super) fn by_tcp() -> World {
    let mut world = World::new(params(Mode::Tcp), NEAR, SHUT);
    world.run(ms(60_000));
    world
}

/// Lets time pass in a busy tunnel by a line that loses nothing.
fn busy(world: &mut World, time: Duration) {
    busy_over(world, time, |_| {});
}

/// The same by a line that loses packets: `lose` is called after each thousand that came.
pub(super) fn busy_over(world: &mut World, time: Duration, mut lose: impl FnMut(&mut Segments)) {
    let end = world.now + time;
    while world.now < end {
        if let Some(link) = world.selector.watched() {
            let counted = world.counted.entry(link).or_default();
            counted.received = counted.received.wrapping_add(1000);
            lose(counted);
            let counted = *counted;
            world.selector.handle_segments(world.now, link, counted);
        }
        world.selector.handle_busy(world.now);
        world.act();
        world.run(ms(250));
    }
}

pub(super) fn turns(world: &World) -> Vec<(Duration, LinkId)> {
    let of = |(at, event): &(Duration, Event)| {
        let Event::Use { link, turn, .. } = event else {
            return None;
        };
        turn.then_some((*at, *link))
    };
    world.log.iter().filter_map(of).collect()
}

pub(super) fn other(world: &World) -> LinkId {
    let active = world.active_link();
    let mut links = world.links.keys().filter(|link| **link != active);
    *links.next().unwrap()
}

#[test]
fn tunnel_that_is_busy_for_long_has_two_connections_that_take_turns() {
    let mut world = by_tcp();
    assert_eq!(world.links.len(), 1);
    let first = world.active_link();
    let begin = world.time();
    busy(&mut world, ms(60_000));
    let second = other(&world).max(world.active_link());
    let turns = turns(&world);
    let mut before = begin;
    for (number, (at, link)) in turns.iter().enumerate() {
        // Half a second before the first connection's estimate expires, and before the second's does,
        // which is a second younger; whole turns.
        let expected = match number {
            0 => 9500,
            1 => 8500,
            _ => 9000,
        };
        let length = *at - before;
        let late = ms(500); // two looks, of which there are four a second
        assert!(
            (ms(expected)..ms(expected) + late).contains(&length),
            "{turns:?}"
        );
        assert_eq!(*link, if number % 2 == 0 { second } else { first });
        before = *at;
    }
    assert_eq!(turns.len(), 6, "{turns:?}");
}

#[test]
fn load_that_ends_before_an_estimate_expires_needs_one_connection() {
    let mut world = by_tcp();
    busy(&mut world, ms(7000));
    world.run(ms(60_000));
    let tcp = |event: &Event| {
        matches!(
            event,
            Event::Dial {
                transport: Transport::Tcp,
                ..
            }
        )
    };
    assert_eq!(world.log.iter().filter(|(_, event)| tcp(event)).count(), 1);
}

#[test]
fn no_estimate_expires_while_its_connection_is_used() {
    for idle in [ms(500), ms(3000), ms(60_000)] {
        let mut world = World::new(params(Mode::Tcp), NEAR, SHUT);
        world.run(idle);
        let (first, begin) = (world.active_link(), world.time());
        busy(&mut world, ms(120_000));
        // When the round trip was measured last: by connecting, or by what was sent first in a turn
        // that began when that had expired.
        let dials = world.log.iter().filter_map(|(at, event)| match event {
            Event::Dial { link, .. } => Some((*link, *at)),
            Event::Close { .. }
            | Event::Down
            | Event::Probe { .. }
            | Event::Pad { .. }
            | Event::Use { .. } => None,
        });
        let mut learned: BTreeMap<LinkId, Duration> = dials.collect();
        let mut used = vec![(begin, first)];
        used.extend(turns(&world));
        assert!(used.len() > 10, "{used:?}");
        for pair in used.windows(2) {
            let [(from, link), (until, _)] = [pair[0], pair[1]];
            let known = learned.get_mut(&link).unwrap();
            if from >= *known + ms(10_000) {
                *known = from;
            }
            assert!(until < *known + ms(10_000), "{idle:?}: {used:?}");
        }
    }
}

#[test]
fn connection_of_which_the_turn_is_not_is_closed_a_minute_after_the_last_busy_moment() {
    let mut world = by_tcp();
    busy(&mut world, ms(10_000));
    let (used, spare) = (world.active_link(), other(&world));
    world.run(ms(55_000));
    assert_eq!(world.links.len(), 2);
    world.run(ms(11_000));
    assert_eq!(world.links.keys().collect::<Vec<_>>(), [&used]);
    let reason = CloseReason::Spare;
    let closed = Event::Close {
        link: spare,
        reason,
    };
    assert!(world.log.iter().any(|(_, event)| *event == closed));
    assert_eq!(world.active_link(), used);
    world.selector.handle_failed(world.now, used);
    world.act();
    world.run(ms(1000));
    assert!(
        world.active_link() > used.max(spare),
        "the one left is dialled again"
    );
}

#[test]
fn turn_of_a_connection_that_died_meanwhile_does_not_come() {
    let mut world = by_tcp();
    busy(&mut world, ms(20_000));
    let (used, next) = (world.active_link(), other(&world));
    let before = turns(&world).len();
    world.dead = Some(next);
    busy(&mut world, ms(20_000));
    let since = turns(&world).split_off(before);
    assert!(since.iter().all(|(_, link)| *link != next), "{since:?}");
    let successor = |(_, link): &(Duration, LinkId)| *link > used.max(next);
    assert!(since.iter().any(successor), "{since:?}");
}

#[test]
fn turn_that_is_over_by_the_end_of_a_pause_is_not_made_longer_by_it() {
    let mut world = by_tcp();
    busy(&mut world, ms(60_000));
    let before = turns(&world).len();
    world.run(ms(10_000));
    assert_eq!(turns(&world).len(), before, "nothing to carry");
    busy(&mut world, ms(500));
    assert_eq!(turns(&world).len(), before + 1);
    busy(&mut world, ms(8500));
    assert_eq!(turns(&world).len(), before + 1);
}

#[test]
fn busy_tunnel_keeps_one_connection_by_default() {
    let by_default = Params {
        mode: Mode::Tcp,
        ..Params::default()
    };
    let mut world = World::new(by_default, NEAR, SHUT);
    busy(&mut world, ms(60_000));
    assert_eq!(world.links.len(), 1);
    assert_eq!(turns(&world), []);
}

#[test]
fn busy_tunnel_takes_no_turns_while_udp_is_used() {
    let mut world = World::new(params(Mode::Auto), NEAR, NEAR);
    busy(&mut world, ms(60_000));
    assert_eq!(world.links.len(), 2, "one by each transport");
    assert_eq!(turns(&world), []);
}

#[test]
fn there_is_one_connection_where_the_kernel_does_not_tell_what_is_lost() {
    let mut world = by_tcp();
    for _ in 0..60 * 4 {
        world.selector.handle_busy(world.now);
        world.act();
        world.run(ms(250));
    }
    assert_eq!(world.links.len(), 1);
    assert_eq!(turns(&world), []);
}

/// What a line that loses one packet of a hundred does to nearly all segments, either way.
const LOSSES: [fn(&mut Segments); 2] = [
    |counted| counted.out_of_order += 900,
    |counted| {
        counted.received -= 1000;
        counted.sent += 1000;
        counted.resent += 10;
        counted.in_flight = 500;
    },
];

pub(super) fn closed(world: &World, reason: CloseReason) -> usize {
    let events = world.log.iter();
    events
        .filter(
            |(_, event)| matches!(event, Event::Close { reason: found, .. } if *found == reason),
        )
        .count()
}

#[test]
fn line_that_loses_packets_is_left_with_the_connection_it_had() {
    for lose in LOSSES {
        let mut world = by_tcp();
        let used = world.active_link();
        busy_over(&mut world, ms(120_000), lose);
        assert_eq!(world.active_link(), used);
        assert_eq!(world.links.len(), 1);
        assert_eq!(turns(&world), []);
        // The second was not even dialled.
        assert_eq!(closed(&world, CloseReason::Lossy), 0);
        assert!(world.selector.withholds_turns());
    }
}

#[test]
fn turns_end_with_the_one_in_which_packets_are_lost_and_go_on_a_minute_after_the_last() {
    for lose in LOSSES {
        let mut world = by_tcp();
        busy(&mut world, ms(60_000));
        let before = turns(&world).len();
        assert!(!world.selector.withholds_turns());
        let used = world.active_link();
        busy_over(&mut world, ms(30_000), lose);
        assert_eq!(world.active_link(), used);
        assert_eq!(world.links.len(), 1);
        assert!(world.selector.withholds_turns());
        busy(&mut world, ms(58_000));
        assert_eq!((world.links.len(), turns(&world).len()), (1, before));
        busy(&mut world, ms(24_000)); // until an estimate expires the next time
        assert!(!world.selector.withholds_turns());
        assert!(turns(&world).len() > before);
        assert_eq!(closed(&world, CloseReason::Lossy), 1);
    }
}

fn dials(world: &World) -> usize {
    let tcp = |event: &Event| {
        matches!(
            event,
            Event::Dial {
                transport: Transport::Tcp,
                ..
            }
        )
    };
    world.log.iter().filter(|(_, event)| tcp(event)).count()
}

#[test]
fn second_connection_that_is_refused_is_asked_for_now_and_then_alone() {
    let mut world = by_tcp();
    world.refuses = true;
    let before = dials(&world);
    busy(&mut world, ms(3_600_000));
    assert!((10..=25).contains(&(dials(&world) - before)));
    world.refuses = false;
    busy(&mut world, ms(310_000));
    assert_eq!(world.links.len(), 2);
    // One that is needed is dialled at once, whoever it was that was refused.
    world.refuses = true;
    let used = world.active_link();
    world.selector.handle_failed(world.now, used);
    world.act();
    world.refuses = false;
    world.run(ms(30_000));
    assert!(world.selector.active().is_some());
}

#[test]
fn turns_come_back_to_a_line_that_loses_no_more_than_one_that_never_lost_more() {
    let mut world = by_tcp();
    busy_over(&mut world, ms(30_000), LOSSES[0]);
    assert!(world.selector.withholds_turns());
    let mut looks = 0;
    busy_over(&mut world, ms(120_000), |counted| {
        looks += 1;
        counted.out_of_order += if looks % 36 == 20 { 200 } else { 0 };
    });
    assert!(!world.selector.withholds_turns());
    assert_eq!(world.links.len(), 2);
}

#[test]
fn lossy_line_is_not_given_up_for_longer_and_longer_when_nothing_was_tried() {
    let mut world = by_tcp();
    for _ in 0..12 {
        busy_over(&mut world, ms(15_000), LOSSES[0]);
        world.run(ms(65_000));
    }
    assert_eq!(world.links.len(), 1);
    busy(&mut world, ms(75_000));
    assert!(!world.selector.withholds_turns());
    assert_eq!(world.links.len(), 2);
}

#[test]
fn what_was_lost_by_tcp_is_not_told_of_udp() {
    let mut world = World::new(params(Mode::Auto), NEAR, SHUT);
    world.run(ms(5000));
    busy_over(&mut world, ms(30_000), LOSSES[0]);
    assert!(world.selector.withholds_turns());
    world.open_udp();
    busy(&mut world, ms(60_000));
    assert_eq!(
        world.selector.active().map(|(_, by)| by),
        Some(Transport::Udp)
    );
    assert!(!world.selector.withholds_turns());
}

#[test]
fn one_segment_that_is_lost_now_and_then_ends_no_turns() {
    let mut world = by_tcp();
    let mut looks = 0;
    busy_over(&mut world, ms(70_000), |counted| {
        looks += 1;
        // For a round trip each time: of 36,000 in a turn 200 wait.
        counted.out_of_order += if looks % 36 == 20 { 200 } else { 0 };
    });
    assert_eq!(world.links.len(), 2);
    assert_eq!(closed(&world, CloseReason::Lossy), 0);
    assert!(turns(&world).len() >= 6, "{:?}", turns(&world));
}

#[test]
fn line_that_loses_packets_because_of_a_second_connection_is_tried_less_and_less() {
    let mut world = by_tcp();
    let hours = ms(2 * 3_600_000);
    let end = world.now + hours;
    while world.now < end {
        let second = world.links.len() > 1;
        busy_over(&mut world, ms(250), |counted| {
            counted.out_of_order += if second { 500 } else { 0 };
        });
    }
    let dials = world.log.iter().filter_map(|(at, event)| {
        let tcp = matches!(
            event,
            Event::Dial {
                transport: Transport::Tcp,
                ..
            }
        );
        tcp.then_some(*at)
    });
    let dials: Vec<_> = dials.skip(1).collect();
    let pauses: Vec<_> = dials.windows(2).map(|two| two[1] - two[0]).collect();
    for (pause, least) in pauses.iter().zip([60, 120, 240, 480, 960, 960]) {
        let least = Duration::from_secs(least);
        assert!((least..least + ms(20_000)).contains(pause), "{pauses:?}");
    }
    assert!(pauses.len() >= 6, "{pauses:?}");
}
