//! Two TCP connections that take turns, on the simulated links of [`path`](super::path).

use std::time::Duration;

use tunnel_proto::path::{CloseReason, Event, LinkId, Mode, Params};

use super::ms;
use super::path::{NEAR, SHUT, World};

fn params(mode: Mode) -> Params {
    Params {
        mode,
        turn: ms(9000),
        ..Params::default()
    }
}

fn by_tcp() -> World {
    let mut world = World::new(params(Mode::Tcp), NEAR, SHUT);
    world.run(ms(60_000));
    world
}

/// Lets time pass in a busy tunnel.
fn busy(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.selector.handle_busy(world.now);
        world.act();
        world.run(ms(250));
    }
}

fn turns(world: &World) -> Vec<(Duration, LinkId)> {
    let of = |(at, event): &(Duration, Event)| {
        let Event::Use { link, turn, .. } = event else {
            return None;
        };
        turn.then_some((*at, *link))
    };
    world.log.iter().filter_map(of).collect()
}

fn other(world: &World) -> LinkId {
    let active = world.active_link();
    let mut links = world.links.keys().filter(|link| **link != active);
    *links.next().unwrap()
}

#[test]
fn idle_tunnel_has_one_connection_and_busy_one_two_that_take_turns() {
    let mut world = by_tcp();
    assert_eq!(world.links.len(), 1);
    let first = world.active_link();
    let begin = world.time();
    busy(&mut world, ms(60_000));
    let second = other(&world).max(world.active_link());
    let turns = turns(&world);
    let mut before = begin;
    for (number, (at, link)) in turns.iter().enumerate() {
        let grown = ms(250) * 2_u32.saturating_pow(u32::try_from(number).unwrap());
        let expected = grown.min(ms(9000));
        let length = *at - before;
        let late = ms(500); // two looks, of which there are four a second
        assert!((expected..expected + late).contains(&length), "{turns:?}");
        assert_eq!(*link, if number % 2 == 0 { second } else { first });
        before = *at;
    }
    assert_eq!(turns.len(), 10, "{turns:?}");
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
fn there_is_one_connection_when_turns_are_off_and_while_udp_is_used() {
    let off = Params {
        mode: Mode::Tcp,
        turn: Duration::ZERO,
        ..params(Mode::Tcp)
    };
    let mut world = World::new(off, NEAR, SHUT);
    busy(&mut world, ms(60_000));
    assert_eq!(world.links.len(), 1);
    let mut world = World::new(params(Mode::Auto), NEAR, NEAR);
    busy(&mut world, ms(60_000));
    assert_eq!(world.links.len(), 2, "one by each transport");
    assert_eq!(turns(&world), []);
}
