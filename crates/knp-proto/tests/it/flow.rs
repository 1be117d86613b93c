//! Slow sockets: who waits, who is cut, and how much is held meanwhile.

use std::time::Duration;

use knp_proto::{
    EndReason, Extensions, INITIAL_WINDOW, LinkConfig, STREAM_WINDOW, StreamId, TenantLimits,
};

use crate::world::{End, World, generous, tenant};

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const WINDOW: usize = 256 * KIB;

/// A world with tunnels `0..count` open.
pub(crate) fn open(extensions: Extensions, config: LinkConfig, count: u32) -> World {
    established(World::new(extensions, config), count)
}

pub(crate) fn established(mut world: World, count: u32) -> World {
    world.answer_dials = true;
    for number in 0..count {
        world.dial(number);
    }
    world.settle();
    world
}

/// Moves packets, but nothing from a socket's tunnel to the socket.
pub(crate) fn carry(world: &mut World) {
    loop {
        let mut moved = false;
        for end in [End::Server, End::Agent] {
            while world.transmit(end) | world.deliver(end) {
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}

/// Writes as much as is taken, with packets moving in between.
fn pour(world: &mut World, end: End, number: u32, most: usize) -> usize {
    let mut written = 0;
    while written < most {
        let step = world.write(end, number, (64 * KIB).min(most - written));
        carry(world);
        if step == 0 && world.write(end, number, 1) == 0 {
            break;
        }
        written += step;
    }
    written
}

pub(crate) fn held(world: &World, end: End) -> usize {
    match end {
        End::Server => world.server.tenant.buffered_bytes(),
        End::Agent => world.agent.tenant.buffered_bytes(),
    }
}

#[test]
fn stalled_reader_stops_only_its_sender() {
    assert_eq!(INITIAL_WINDOW, WINDOW as u64);
    let mut world = open(Extensions::ALL, LinkConfig::default(), 2);
    let config = LinkConfig::default();
    let poured = pour(&mut world, End::Agent, 0, 64 << 20);
    assert!(poured <= WINDOW + config.outbox_bytes, "{poured}");
    assert_eq!(held(&world, End::Server), WINDOW);
    for _ in 0..1000 {
        assert_eq!(world.write(End::Agent, 1, 1000), 1000);
        carry(&mut world);
        assert_eq!(world.read(End::Server, 1, KIB), 1000);
    }
    assert!(world.server.sockets[&0].is_live());
    world.settle();
    assert_eq!(world.server.sockets[&0].got, world.agent.sockets[&0].sent);
}

#[test]
fn a_window_is_filled_to_the_byte_and_no_further() {
    let mut world = open(Extensions::ALL, LinkConfig::default(), 1);
    for _ in 0..5 {
        assert_eq!(world.write(End::Agent, 0, 60_001), 60_001);
        carry(&mut world);
    }
    assert_eq!(held(&world, End::Server), WINDOW);
    assert!(world.server.sockets[&0].is_live());
    world.settle();
    assert_eq!(world.server.sockets[&0].got, 5 * 60_001);
}

#[test]
fn fast_reader_grows_window_and_returns_memory() {
    let mut world = open(Extensions::ALL, LinkConfig::default(), 1);
    for _ in 0..100 {
        world.write(End::Agent, 0, 256 * KIB);
        world.settle();
    }
    let config = LinkConfig::default();
    assert_eq!(held(&world, End::Server), config.tunnel_bytes - WINDOW);
    let poured = pour(&mut world, End::Agent, 0, 64 << 20);
    // What was consumed since the last grant, at most half a window, is not granted yet.
    assert!(poured >= config.tunnel_bytes / 2, "{poured}");
    assert!(held(&world, End::Server) <= config.tunnel_bytes);
    world.close(End::Server, 0, false);
    world.settle();
    world.assert_idle();
}

#[test]
fn stalled_tunnels_stay_within_budget_with_room() {
    let limits = TenantLimits {
        buffered_bytes: 64 << 20,
        ..generous()
    };
    let servers = tenant("a", limits, 256 << 20);
    let config = LinkConfig::default();
    let world = World::of(&servers, StreamId(1), Extensions::ALL, config);
    let mut world = established(world, 101);
    for number in 0..100 {
        pour(&mut world, End::Agent, number, 8 << 20);
    }
    assert!(held(&world, End::Server) <= limits.buffered_bytes);
    let live = world.server.sockets.values().all(|socket| socket.is_live());
    assert!(live, "a sender that waits is not cut");
    assert_eq!(world.write(End::Agent, 100, 1000), 1000);
    carry(&mut world);
    assert_eq!(world.read(End::Server, 100, KIB), 1000);
}

/// Pours into tunnel 0 of two, without credit, until the stream's window is used up.
fn held_up(config: LinkConfig) -> World {
    let mut world = open(Extensions::default(), config, 2);
    for _ in 0..200 {
        world.write(End::Agent, 0, 64 * KIB);
        carry(&mut world);
    }
    assert!(world.server.link.is_held_up());
    let held = held(&world, End::Server);
    assert!(
        held <= WINDOW + STREAM_WINDOW + config.max_data_bytes,
        "{held}"
    );
    world
}

#[test]
fn stalled_reader_without_credit_is_cut_alone() {
    let config = LinkConfig::default();
    let mut world = held_up(config);
    let start = world.now;
    while world.server.sockets[&0].is_live() {
        pour(&mut world, End::Agent, 0, 1 << 20);
        world.pass(Duration::from_millis(100));
    }
    let (waited, limit) = (world.now - start, config.stall_timeout);
    assert!(
        waited >= limit && waited < limit + Duration::from_millis(300),
        "{waited:?}"
    );
    let ended = world.server.sockets[&0].ended.clone();
    assert_eq!(ended, Some(EndReason::SlowConsumer));
    assert_eq!(held(&world, End::Server), 0);
    assert!(!world.server.link.is_held_up());
    assert!(world.server.sockets[&1].is_live());
    carry(&mut world);
    assert!(!world.agent.sockets[&0].is_live(), "the other end was told");
}

#[test]
fn slow_reader_without_credit_is_awaited() {
    let config = LinkConfig::default();
    let mut world = held_up(config);
    for _ in 0..20 {
        assert!(world.server.link.is_held_up());
        world.pass(config.stall_timeout * 9 / 10);
        assert!(world.server.sockets[&0].is_live());
        assert!(world.read(End::Server, 0, 64 * KIB) > 0);
        pour(&mut world, End::Agent, 0, 1 << 20);
    }
    while world.server.link.is_held_up() {
        assert!(world.read(End::Server, 0, 64 * KIB) > 0);
    }
    world.pass(config.stall_timeout * 2);
    let socket = &world.server.sockets[&0];
    assert!(socket.is_live(), "it holds up nothing any more");
}

#[test]
fn nothing_is_lent_while_memory_is_short() {
    let limits = TenantLimits {
        buffered_bytes: 16 << 20,
        ..generous()
    };
    let servers = tenant("a", limits, 256 << 20);
    let config = LinkConfig::default();
    let world = World::of(&servers, StreamId(1), Extensions::default(), config);
    let mut world = established(world, 2);
    let start = world.now;
    while world.server.sockets[&0].is_live() {
        pour(&mut world, End::Agent, 0, 1 << 20);
        world.pass(Duration::from_millis(200));
        assert!(held(&world, End::Server) <= limits.buffered_bytes);
        assert!(world.now - start < config.stall_timeout);
    }
    let ended = world.server.sockets[&0].ended.clone();
    assert_eq!(ended, Some(EndReason::SlowConsumer), "sooner than usual");
}

#[test]
fn tunnel_that_held_up_others_releases_them_by_its_end() {
    let mut world = held_up(LinkConfig::default());
    world.close(End::Server, 0, true);
    assert!(!world.server.link.is_held_up());
    world.close(End::Server, 1, true);
    world.settle();
    world.assert_idle();
}

#[test]
fn memory_runs_out_for_the_largest_first() {
    let limits = TenantLimits {
        buffered_bytes: 2 << 20,
        ..generous()
    };
    let servers = tenant("a", limits, 256 << 20);
    let config = LinkConfig::default();
    let world = World::of(&servers, StreamId(1), Extensions::default(), config);
    let mut world = established(world, 3);
    pour(&mut world, End::Agent, 1, 100 * KIB);
    pour(&mut world, End::Agent, 0, 8 << 20);
    let ended = world.server.sockets[&0].ended.clone();
    assert_eq!(ended, Some(EndReason::OverBudget));
    assert!(world.server.sockets[&1].is_live());
    pour(&mut world, End::Agent, 2, 100 * KIB);
    assert!(world.server.sockets[&2].is_live());
    assert!(held(&world, End::Server) <= limits.buffered_bytes);
}

#[test]
fn every_tunnel_progresses_without_memory() {
    let limits = TenantLimits {
        buffered_bytes: 0,
        ..generous()
    };
    let servers = tenant("a", limits, 256 << 20);
    let config = LinkConfig::default();
    let world = World::of(&servers, StreamId(1), Extensions::ALL, config);
    let mut world = established(world, 1);
    let mut written = 0;
    for _ in 0..100 {
        written += world.write(End::Server, 0, 64 * KIB);
        world.settle();
    }
    assert_eq!(written, 100 * 4 * KIB);
    assert_eq!(world.agent.sockets[&0].got, written);
}

#[test]
fn a_busy_tunnel_does_not_delay_a_small_one() {
    let config = LinkConfig::default();
    let mut world = open(Extensions::ALL, config, 2);
    while world.write(End::Agent, 0, 64 * KIB) > 0 {}
    world.transmit(End::Agent);
    world.write(End::Agent, 1, 64);
    // At most the rest of the busy one's quantum goes first.
    for _ in 0..2 {
        world.transmit(End::Agent);
    }
    while world.deliver(End::Server) {}
    assert_eq!(world.read(End::Server, 1, 64), 64);
}

#[test]
fn many_small_writes_become_few_packets() {
    let mut world = open(Extensions::ALL, LinkConfig::default(), 1);
    for _ in 0..1000 {
        world.write(End::Agent, 0, 10);
    }
    let mut packets = 0;
    while world.transmit(End::Agent) {
        packets += 1;
    }
    assert_eq!(packets, 1);
}

#[test]
fn half_close_keeps_the_other_direction_open() {
    let mut world = open(Extensions::ALL, LinkConfig::default(), 1);
    world.write(End::Server, 0, 1000);
    world.settle();
    // Alone, so that the destination must be told of it.
    world.finish(End::Server, 0);
    world.settle();
    assert!(world.agent.sockets[&0].saw_end);
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.write(End::Agent, 0, 5000), 5000);
    world.finish(End::Agent, 0);
    world.settle();
    assert_eq!(world.server.sockets[&0].got, 5000);
    for end in [End::Server, End::Agent] {
        let ended = world.side(end).sockets[&0].ended.clone();
        assert_eq!(ended, Some(EndReason::Finished));
    }
    world.assert_idle();
}

#[test]
fn close_delivers_all_and_reset_is_reset() {
    for (discard, clean) in [(false, true), (true, false)] {
        for end in [End::Server, End::Agent] {
            let mut world = open(Extensions::ALL, LinkConfig::default(), 1);
            world.write(end, 0, 200 * KIB);
            world.close(end, 0, discard);
            world.settle();
            let peer = &world.side(end.other()).sockets[&0];
            let ended = peer.ended.clone().unwrap();
            assert_eq!(ended.is_clean(), clean, "{end:?}: {ended:?}");
            assert_eq!(peer.got, 200 * KIB);
            world.assert_idle();
        }
    }
}

#[test]
fn stalled_socket_of_closed_tunnel_is_dropped() {
    let config = LinkConfig::default();
    let mut world = open(Extensions::ALL, config, 1);
    world.write(End::Agent, 0, 1000);
    world.close(End::Agent, 0, false);
    carry(&mut world);
    world.pass(config.linger_timeout - Duration::from_millis(1));
    assert_eq!(world.read(End::Server, 0, 500), 500);
    world.pass(config.linger_timeout - Duration::from_millis(1));
    assert!(world.server.sockets[&0].is_live(), "it was getting on");
    world.pass(Duration::from_millis(1));
    let ended = world.server.sockets[&0].ended.clone();
    assert_eq!(ended, Some(EndReason::LingerTimeout));
    world.assert_idle();
}
