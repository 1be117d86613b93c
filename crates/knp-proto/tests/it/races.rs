//! Every order in which a dial and its close can happen.
//!
//! A schedule is a sequence of steps: each decision (of a client, of an agent's dialler, of time)
//! at most once, packets delivered in between in every possible way. All schedules of every small
//! set of decisions are run from the start; afterwards both ends must agree on what is left, and
//! once the server closes that, nothing may be.

use std::time::Duration;

use knp_proto::{Extensions, LinkConfig};

use crate::world::{End, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    AgentCloses,
    AgentConnects,
    AgentFails,
    AgentFinishes,
    AgentResets,
    Deliver(End),
    Lose,
    ServerCloses,
    ServerFinishes,
    ServerResets,
    /// Long enough for a dial to be given up.
    Wait,
}

const DECISIONS: [Step; 10] = [
    Step::AgentCloses,
    Step::AgentConnects,
    Step::AgentFails,
    Step::AgentFinishes,
    Step::AgentResets,
    Step::Lose,
    Step::ServerCloses,
    Step::ServerFinishes,
    Step::ServerResets,
    Step::Wait,
];

const TUNNEL: u32 = 3;
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

fn begin(extensions: Extensions) -> World {
    let config = LinkConfig {
        dial_timeout: DIAL_TIMEOUT,
        ..LinkConfig::default()
    };
    let mut world = World::new(extensions, config);
    world.dial(TUNNEL);
    send_all(&mut world);
    world
}

fn send_all(world: &mut World) {
    for end in [End::Server, End::Agent] {
        let sent = |world: &mut World| {
            let socket = world.side(end).sockets.get(&TUNNEL);
            socket.is_some_and(|socket| socket.sent > 0)
        };
        if !sent(world) {
            // Data that crosses whatever comes.
            world.write(end, TUNNEL, 10);
        }
        while world.transmit(end) {}
    }
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::AgentCloses => world.close(End::Agent, TUNNEL, false),
        Step::AgentConnects => world.answer(TUNNEL, Ok(())),
        Step::AgentFails => world.answer(TUNNEL, Err("refused".to_owned())),
        Step::AgentFinishes => world.finish(End::Agent, TUNNEL),
        Step::AgentResets => world.close(End::Agent, TUNNEL, true),
        Step::Deliver(to) => {
            world.deliver(to);
        }
        Step::Lose => world.lose(),
        Step::ServerCloses => world.close(End::Server, TUNNEL, false),
        Step::ServerFinishes => world.finish(End::Server, TUNNEL),
        Step::ServerResets => world.close(End::Server, TUNNEL, true),
        Step::Wait => world.pass(DIAL_TIMEOUT / 2),
    }
    send_all(world);
}

fn replay(extensions: Extensions, schedule: &[Step]) -> World {
    let mut world = begin(extensions);
    for step in schedule {
        take(&mut world, *step);
    }
    world
}

/// Runs every schedule that begins with `schedule`; returns how many there were.
fn explore(extensions: Extensions, decisions: &[Step], schedule: &mut Vec<Step>) -> usize {
    let world = replay(extensions, schedule);
    let mut next: Vec<Step> = [End::Server, End::Agent]
        .into_iter()
        .filter(|to| world.on_the_way(*to) > 0)
        .map(Step::Deliver)
        .collect();
    next.extend(decisions.iter().filter(|step| !schedule.contains(step)));
    if next.is_empty() {
        check(world, schedule);
        return 1;
    }
    let mut count = 0;
    for step in next {
        schedule.push(step);
        count += explore(extensions, decisions, schedule);
        schedule.pop();
    }
    count
}

fn check(mut world: World, schedule: &[Step]) {
    world.settle();
    let live = |world: &mut World, end| {
        let socket = world.side(end).sockets.get(&TUNNEL);
        socket.is_some_and(|socket| socket.is_live() && socket.connected)
    };
    let (server, agent) = (live(&mut world, End::Server), live(&mut world, End::Agent));
    assert_eq!(server, agent, "only one end goes on after {schedule:?}");
    if server {
        world.close(End::Server, TUNNEL, false);
        world.settle();
    }
    // A dial that was never answered is given up by both.
    world.pass(DIAL_TIMEOUT);
    world.settle();
    world.assert_idle();
}

fn subsets(size: usize) -> Vec<Vec<Step>> {
    let masks = 0u32..1 << DECISIONS.len();
    let sized = masks.filter(|mask| mask.count_ones() as usize == size);
    sized
        .map(|mask| {
            let chosen = DECISIONS.iter().enumerate();
            chosen
                .filter(|(at, _)| mask & (1 << at) != 0)
                .map(|(_, step)| *step)
                .collect()
        })
        .collect()
}

fn explore_all(extensions: Extensions) -> usize {
    let sets = (0..=3).flat_map(subsets);
    sets.map(|decisions| explore(extensions, &decisions, &mut Vec::new()))
        .sum()
}

#[test]
fn no_order_leaks_without_extensions() {
    let schedules = explore_all(Extensions::default());
    assert!(schedules > 10_000, "only {schedules} schedules");
}

#[test]
fn no_order_leaks_with_credit_and_half_close() {
    let schedules = explore_all(Extensions::ALL);
    assert!(schedules > 10_000, "only {schedules} schedules");
}
