//! Slow sockets of a peer that knows no credit: what others wait for, when closes are asked for, and how
//! much is lent meanwhile.

use std::sync::Arc;
use std::time::Duration;

use knp_proto::{
    Budget, EndReason, Extensions, LinkConfig, STREAM_WINDOW, StreamId, Tenant, TenantId,
    TenantLimits,
};

use crate::flow::{KIB, WINDOW, carry, established, held, open};
use crate::world::{End, World, generous, tenant};

/// The programs' `--max-buffered-bytes`.
const MEMORY: usize = 256 << 20;

/// What an upstream peer makes others wait for: one queue for the packets of all tunnels, and a source without
/// end for each of the first `slow` ones. It leaves out the time that a line takes, and that dials and their
/// answers wait for packets which are not in the queue yet.
struct Queue {
    world: World,
    /// The upstream peer: an agent with packets of 4 KiB, or a server with some of 32 KiB.
    peer: End,
    slow: u32,
    /// The tunnel of the others.
    other: u32,
    took: usize,
}

impl Queue {
    /// What grpc-go queues before a writer waits.
    const BYTES: usize = 64 * KIB;
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
        Self::behind(End::Agent, servers, slow)
    }

    /// Behind a `peer`, where the other end is of tenant `own`.
    fn behind(peer: End, own: &Arc<Tenant>, slow: u32) -> Self {
        let packet = Self::packet(peer);
        let config = LinkConfig {
            max_data_bytes: packet,
            quantum_bytes: packet,
            ..LinkConfig::default()
        };
        let others = tenant("other", generous(), 1 << 30);
        let [servers, agents] = match peer {
            End::Agent => [own, &others],
            End::Server => [&others, own],
        };
        let world = World::between(servers, agents, StreamId(1), Extensions::default(), config);
        let (world, took) = (established(world, slow + 1), 0);
        let other = slow;
        Self {
            world,
            peer,
            slow,
            other,
            took,
        }
    }

    /// Length of a packet of such a peer.
    fn packet(peer: End) -> usize {
        match peer {
            End::Agent => 4 * KIB,
            End::Server => 32 * KIB,
        }
    }

    /// Lets time pass, in which the first slow socket takes `len` bytes.
    fn step(&mut self, len: usize) {
        let (peer, own) = (self.peer, self.peer.other());
        self.world.pass(Self::STEP);
        let until = self.took + len;
        while self.took < until {
            match self.world.read(own, 0, until - self.took) {
                0 => break,
                len => self.took += len,
            }
        }
        loop {
            for number in 0..self.slow {
                while self.world.write(peer, number, 64 * KIB) > 0 {}
            }
            while self.world.transmit(own) | self.world.deliver(peer) {}
            let packets = Self::BYTES / Self::packet(peer);
            while self.world.on_the_way(own) < packets && self.world.transmit(peer) {}
            if !self.world.deliver(own) {
                return;
            }
        }
    }

    /// Has the end that waits for others send something, so that it may await an answer.
    fn ask(&mut self) {
        let (peer, own) = (self.peer, self.peer.other());
        self.world.write(own, self.other, 100);
        self.world.read(peer, self.other, KIB);
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
            let (peer, own) = (self.peer, self.peer.other());
            assert_eq!(self.world.write(peer, other, 100), 100);
            let answer = self.wait(len, |world| world.read(own, other, KIB) == 100);
            let number = other + 1;
            self.other = number;
            self.world.dial(number);
            let dial = self.wait(len, |world| world.server.sockets[&number].connected);
            let longest = answer.max(dial);
            assert!(
                longest < Duration::from_millis(600),
                "{answer:?} {dial:?} at {:?} held {}",
                self.world.now - start,
                held(&self.world, own)
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
    // Those of upstream's server are lent so much that they are cut after 5 s.
    for (peer, seconds, of_five) in [(End::Agent, 20, 4), (End::Server, 4, 3)] {
        let [one, hundred] = [1, 100].map(|slow| {
            let mut queue = Queue::behind(peer, &tenant("a", generous(), MEMORY), slow);
            let exchanges = queue.others(0, Duration::from_secs(seconds));
            let sockets = &queue.world.side(peer.other()).sockets;
            assert!((0..slow).all(|number| sockets[&number].is_live()));
            exchanges
        });
        assert!(
            hundred * 5 >= one * of_five,
            "{peer:?}: {hundred} exchanges of {one}"
        );
    }
}

#[test]
fn hundred_slow_destinations_are_not_cut() {
    const RATE: usize = 100 * KIB;
    let mut queue = Queue::behind(End::Server, &tenant("a", generous(), MEMORY), 100);
    for step in 1..=2000 {
        queue.ask();
        queue.step(0);
        for number in 0..100 {
            let due = RATE * step / 100 - queue.world.agent.sockets[&number].got;
            queue.world.read(End::Agent, number, due);
        }
    }
    let sockets = &queue.world.agent.sockets;
    for number in 0..100 {
        assert_eq!(sockets[&number].ended, None, "{number}");
        assert!(sockets[&number].got >= 18 * RATE, "{number}");
    }
}

#[test]
fn stalled_destinations_of_two_servers_stall_no_other() {
    let agents = tenant("a", generous(), MEMORY);
    let mut queues = [(); 2].map(|()| Queue::behind(End::Server, &agents, 100));
    let mut waited = [0; 2];
    for _ in 0..1000 {
        for (queue, waited) in queues.iter_mut().zip(&mut waited) {
            queue.ask();
            queue.step(0);
            if queue.world.read(End::Agent, 100, KIB) > 0 {
                *waited = 0;
            }
            queue.world.write(End::Server, 100, 100);
            *waited += 1;
            assert!(*waited < 100, "nothing passes for a second");
        }
    }
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
