//! Slow sockets: who waits, who is cut, and how much is held meanwhile.

use std::sync::Arc;
use std::time::Duration;

use knp_proto::{
    Budget, EndReason, Extensions, INITIAL_WINDOW, LinkConfig, STREAM_WINDOW, StreamId, Tenant,
    TenantId, TenantLimits,
};

use crate::world::{End, World, generous, tenant};

const KIB: usize = 1 << 10;
const WINDOW: usize = 256 * KIB;
/// The programs' `--max-buffered-bytes`.
const MEMORY: usize = 256 << 20;

/// A world with tunnels `0..count` open.
fn open(extensions: Extensions, config: LinkConfig, count: u32) -> World {
    established(World::new(extensions, config), count)
}

fn established(mut world: World, count: u32) -> World {
    world.answer_dials = true;
    for number in 0..count {
        world.dial(number);
    }
    world.settle();
    world
}

/// Moves packets, but nothing from a socket's tunnel to the socket.
fn carry(world: &mut World) {
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

fn held(world: &World, end: End) -> usize {
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
    world.pass(config.stall_timeout - Duration::from_millis(1));
    assert!(world.server.sockets[&0].is_live());
    world.pass(Duration::from_millis(1));
    world.pass(Duration::from_millis(200));
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

/// What upstream's agent makes others wait for: one queue for the packets of all tunnels, of 4 KiB
/// each, and a source without end for each of the first `slow` ones. It leaves out the time that a line
/// takes.
struct Queue {
    world: World,
    slow: u32,
    /// The tunnel of the others.
    other: u32,
    took: usize,
}

impl Queue {
    /// grpc-go's 64 KiB.
    const PACKETS: usize = 16;
    const STEP: Duration = Duration::from_millis(10);

    fn new(slow: u32) -> Self {
        Self::within(slow, MEMORY)
    }

    /// Of a tenant that may hold so many bytes.
    fn within(slow: u32, buffered_bytes: usize) -> Self {
        let limits = TenantLimits {
            buffered_bytes,
            ..generous()
        };
        Self::of(&tenant("a", limits, MEMORY), slow)
    }

    fn of(servers: &Arc<Tenant>, slow: u32) -> Self {
        let config = LinkConfig {
            max_data_bytes: 4 * KIB,
            quantum_bytes: 4 * KIB,
            ..LinkConfig::default()
        };
        let world = World::of(servers, StreamId(1), Extensions::default(), config);
        let (world, took) = (established(world, slow + 1), 0);
        let other = slow;
        Self {
            world,
            slow,
            other,
            took,
        }
    }

    /// Lets time pass, in which the first slow socket takes `len` bytes.
    fn step(&mut self, len: usize) {
        self.world.pass(Self::STEP);
        let until = self.took + len;
        while self.took < until {
            match self.world.read(End::Server, 0, until - self.took) {
                0 => break,
                len => self.took += len,
            }
        }
        loop {
            for number in 0..self.slow {
                while self.world.write(End::Agent, number, 64 * KIB) > 0 {}
            }
            while self.world.transmit(End::Server) | self.world.deliver(End::Agent) {}
            while self.world.on_the_way(End::Server) < Self::PACKETS
                && self.world.transmit(End::Agent)
            {}
            if !self.world.deliver(End::Server) {
                return;
            }
        }
    }

    /// Returns how long `done` takes to become true.
    fn wait(&mut self, len: usize, mut done: impl FnMut(&mut World) -> bool) -> Duration {
        let mut waited = Duration::ZERO;
        while !done(&mut self.world) {
            self.step(len);
            waited += Self::STEP;
            assert!(waited < Duration::from_secs(10), "it waits for ever");
        }
        waited
    }

    /// Has others exchange and dial for `time`, while the slow one takes `rate` bytes a second. Returns how
    /// often they did.
    fn others(&mut self, rate: usize, time: Duration) -> u32 {
        let (len, start) = (rate / 100, self.world.now);
        let before = self.other;
        while self.world.now - start < time {
            self.step(len);
            let other = self.other;
            assert_eq!(self.world.write(End::Agent, other, 100), 100);
            let answer = self.wait(len, |world| world.read(End::Server, other, KIB) == 100);
            let number = other + 1;
            self.other = number;
            self.world.dial(number);
            let dial = self.wait(len, |world| world.server.sockets[&number].connected);
            let longest = answer.max(dial);
            assert!(
                longest < Duration::from_millis(600),
                "{answer:?} {dial:?} at {:?} held {}",
                self.world.now - start,
                held(&self.world, End::Server)
            );
            self.world.close(End::Server, other, false);
        }
        self.other - before
    }
}

#[test]
fn slow_reader_without_credit_keeps_its_pace() {
    for (rate, time) in [(1 << 20, 90), (100 * KIB, 30)] {
        let mut queue = Queue::new(1);
        let time = Duration::from_secs(time);
        queue.others(rate, time);
        assert!(queue.world.server.sockets[&0].is_live());
        let due = rate * time.as_secs() as usize;
        assert!(queue.took >= due - rate, "{} of {due}", queue.took);
    }
    let mut queue = Queue::new(1);
    queue.others(1 << 20, Duration::from_secs(60));
    let held = held(&queue.world, End::Server);
    assert!(held < STREAM_WINDOW * 2, "{held}");
}

#[test]
fn reader_without_credit_may_not_use_memory_up_by_trickling() {
    for (rate, memory) in [(100 * KIB, 64), (KIB, 64), (100 * KIB, 256)] {
        let mut queue = Queue::within(1, memory << 20);
        queue.others(rate, Duration::from_secs(240));
        let ended = queue.world.server.sockets[&0].ended.clone();
        let held = held(&queue.world, End::Server);
        assert_eq!(
            ended,
            Some(EndReason::SlowConsumer),
            "{rate} bytes/s, {held} held"
        );
    }
}

#[test]
fn stalled_readers_without_credit_stall_no_other() {
    for slow in [1, 100] {
        let mut queue = Queue::new(slow);
        queue.others(0, Duration::from_secs(20));
        let sockets = &queue.world.server.sockets;
        assert!((0..slow).all(|number| sockets[&number].is_live()));
        queue.others(0, Duration::from_secs(12));
        for number in 0..slow {
            let ended = queue.world.server.sockets[&number].ended.clone();
            assert_eq!(ended, Some(EndReason::SlowConsumer), "{number} of {slow}");
        }
        assert!(held(&queue.world, End::Server) <= WINDOW);
    }
}

#[test]
fn hundred_stalled_readers_cost_others_what_one_costs() {
    let [one, hundred] = [1, 100].map(|slow| {
        let mut queue = Queue::new(slow);
        let exchanges = queue.others(0, Duration::from_secs(20));
        let sockets = &queue.world.server.sockets;
        assert!((0..slow).all(|number| sockets[&number].is_live()));
        exchanges
    });
    assert!(hundred * 5 >= one * 4, "{hundred} exchanges of {one}");
}

#[test]
fn little_is_lent_while_no_answer_is_awaited() {
    let mut queue = Queue::new(100);
    let start = queue.world.now;
    while queue.world.now - start < Duration::from_secs(29) {
        queue.step(0);
    }
    let sockets = &queue.world.server.sockets;
    assert!((0..100).all(|number| sockets[&number].is_live()));
    let held = held(&queue.world, End::Server);
    assert!(held < 128 << 20, "{held}");
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

/// Has tunnel 0 of `count` hold up the others.
fn one_holds_up(count: u32) -> World {
    let mut world = open(Extensions::default(), LinkConfig::default(), count);
    while !world.server.link.is_held_up() {
        world.write(End::Agent, 0, 64 * KIB);
        carry(&mut world);
    }
    world
}

/// Closes a tunnel, and returns whether the agent was asked to.
fn close(world: &mut World, number: u32) -> bool {
    world.close(End::Server, number, true);
    carry(world);
    !world.agent.sockets[&number].is_live()
}

#[test]
fn next_close_waits_while_all_wait_for_pulses() {
    let mut world = one_holds_up(3);
    assert!(close(&mut world, 1));
    assert!(!close(&mut world, 2));
    while world.read(End::Server, 0, 64 * KIB) > 0 {}
    carry(&mut world);
    assert!(!world.agent.sockets[&2].is_live(), "there is no slow one");
}

#[test]
fn close_amid_much_data_overtakes_waiting_one() {
    let mut world = one_holds_up(4);
    world.write(End::Agent, 3, 64 * KIB);
    carry(&mut world);
    assert!(close(&mut world, 1));
    assert!(!close(&mut world, 2));
    assert!(close(&mut world, 3));
    assert!(world.agent.sockets[&2].is_live());
}

#[test]
fn next_close_is_sent_when_no_pulse_follows() {
    let mut world = one_holds_up(3);
    assert!(close(&mut world, 1));
    assert!(!close(&mut world, 2));
    // Nothing more comes, and nothing is taken.
    let start = world.now;
    while world.agent.sockets[&2].is_live() {
        let due = world.server.link.poll_timeout().expect("a close waits");
        assert!(due > world.now && due <= start + Duration::from_millis(300));
        world.pass(due - world.now);
        carry(&mut world);
    }
    assert!(world.server.sockets[&0].is_live());
}

#[test]
fn stalled_readers_of_many_links_are_cut_before_memory_is_out() {
    // A tenant with three links, and as many tenants with one each.
    for tenants in [1, 3] {
        let limits = TenantLimits {
            buffered_bytes: MEMORY,
            ..generous()
        };
        let process = Budget::new(MEMORY);
        let own: Vec<_> = (0..tenants)
            .map(|_| Tenant::new(TenantId::new("a"), limits, Arc::clone(&process)))
            .collect();
        let mut queues: Vec<_> = (0..3)
            .map(|number| Queue::of(&own[number % tenants], 60))
            .collect();
        for _ in 0..4000 {
            queues.iter_mut().for_each(|queue| queue.step(0));
        }
        for queue in &queues {
            let sockets = &queue.world.server.sockets;
            for number in 0..60 {
                let ended = sockets[&number].ended.clone();
                assert_eq!(ended, Some(EndReason::SlowConsumer), "{number}");
            }
            assert!(sockets[&60].is_live());
        }
    }
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
