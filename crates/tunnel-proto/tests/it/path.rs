//! The choice of transport, on simulated links that open, close and fall silent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tunnel_proto::path::{CloseReason, Event, LinkId, Mode, Params, Selector, Transport};

use super::{ms, start};
use Transport::{Tcp, Udp};

/// What the network does with one transport.
#[derive(Clone, Copy, Debug)]
struct Network {
    /// Whether packets get through.
    open: bool,
    /// One round trip.
    rtt: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Arrival {
    Connected(LinkId),
    Pong(LinkId, u32),
}

/// A selector, the network under it, and everything that happened.
struct World {
    selector: Selector,
    begin: Instant,
    now: Instant,
    tcp: Network,
    udp: Network,
    /// Lets every n-th probe on UDP vanish.
    udp_loses_every: Option<u32>,
    links: BTreeMap<LinkId, Transport>,
    arrivals: Vec<(Instant, Arrival)>,
    probes: u32,
    log: Vec<(Duration, Event)>,
}

impl World {
    fn new(params: Params, tcp: Network, udp: Network) -> Self {
        let now = start();
        let mut world = Self {
            selector: Selector::new(params, 1, now),
            begin: now,
            now,
            tcp,
            udp,
            udp_loses_every: None,
            links: BTreeMap::new(),
            arrivals: Vec::new(),
            probes: 0,
            log: Vec::new(),
        };
        world.act();
        world
    }

    fn network(&self, link: LinkId) -> Network {
        match self.links[&link] {
            Tcp => self.tcp,
            Udp => self.udp,
        }
    }

    /// Does what the selector asks for.
    fn act(&mut self) {
        while let Some(event) = self.selector.poll_event() {
            self.log.push((self.now - self.begin, event));
            match event {
                Event::Dial { link, transport } => {
                    self.links.insert(link, transport);
                    self.send(link, Arrival::Connected(link));
                }
                Event::Probe { link, id } => {
                    self.probes += 1;
                    let lossy = self.links[&link] == Udp;
                    let lost = self.udp_loses_every.filter(|_| lossy);
                    if lost.is_none_or(|n| !self.probes.is_multiple_of(n)) {
                        self.send(link, Arrival::Pong(link, id));
                    }
                }
                Event::Close { link, .. } => {
                    self.links.remove(&link).unwrap();
                    let of = |arrival: &Arrival| match arrival {
                        Arrival::Connected(link) | Arrival::Pong(link, _) => *link,
                    };
                    self.arrivals.retain(|(_, arrival)| of(arrival) != link);
                }
                Event::Use { link, .. } => assert!(self.links.contains_key(&link)),
                Event::Down => assert_eq!(self.selector.active(), None),
            }
        }
        if let Some((link, transport)) = self.selector.active() {
            assert_eq!(self.links[&link], transport);
        }
    }

    fn send(&mut self, link: LinkId, arrival: Arrival) {
        let network = self.network(link);
        if network.open {
            self.arrivals.push((self.now + network.rtt, arrival));
        }
    }

    /// Lets time pass, from one thing that happens to the next.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 100_000, "time does not pass");
            self.arrivals.sort_by_key(|(at, _)| *at);
            let arrival = self.arrivals.first().map(|(at, _)| *at);
            let timer = self.selector.poll_timeout();
            let next = arrival
                .into_iter()
                .chain(timer)
                .min()
                .filter(|next| *next <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, arrival) = self.arrivals.remove(0);
                match arrival {
                    Arrival::Connected(link) => self.selector.handle_connected(self.now, link),
                    Arrival::Pong(link, id) => self.selector.handle_pong(self.now, link, id),
                }
            } else {
                self.selector.handle_timeout(self.now);
            }
            self.act();
        }
        self.now = end;
    }

    fn active(&self) -> Option<Transport> {
        Some(self.selector.active()?.1)
    }

    fn active_link(&self) -> LinkId {
        self.selector.active().unwrap().0
    }

    /// Changes of the link in use since `since`: when, and to what.
    fn uses(&self, since: Duration) -> Vec<(Duration, Option<Transport>)> {
        let of = |(at, event): &(Duration, Event)| match event {
            Event::Use { transport, .. } => Some((*at, Some(*transport))),
            Event::Down => Some((*at, None)),
            Event::Close { .. } | Event::Dial { .. } | Event::Probe { .. } => None,
        };
        let uses = self.log.iter().filter_map(of);
        uses.filter(|(at, _)| *at >= since).collect()
    }

    fn time(&self) -> Duration {
        self.now - self.begin
    }
}

const NEAR: Network = Network {
    open: true,
    rtt: ms(10),
};
const SHUT: Network = Network {
    open: false,
    rtt: ms(10),
};

fn world(tcp: Network, udp: Network) -> World {
    World::new(Params::default(), tcp, udp)
}

#[test]
fn both_are_dialed_at_once_and_the_first_is_used_until_udp_answers() {
    let slow_udp = Network {
        rtt: ms(300),
        ..NEAR
    };
    let mut world = world(NEAR, slow_udp);
    let dialed: Vec<_> = world.log.iter().map(|(at, event)| (*at, *event)).collect();
    let dial = |id, transport| {
        (
            ms(0),
            Event::Dial {
                link: LinkId(id),
                transport,
            },
        )
    };
    assert_eq!(dialed, [dial(1, Tcp), dial(2, Udp)]);
    world.run(ms(2000));
    assert_eq!(
        world.uses(ms(0)),
        [(ms(10), Some(Tcp)), (ms(300), Some(Udp))]
    );
}

#[test]
fn blocked_udp_delays_nothing_and_is_used_soon_after_it_opens() {
    let mut world = world(NEAR, SHUT);
    world.run(ms(60_000));
    assert_eq!(world.uses(ms(0)), [(ms(10), Some(Tcp))]);
    world.udp.open = true;
    world.run(ms(22_000));
    assert_eq!(world.uses(ms(60_000)).len(), 1);
    assert_eq!(world.active(), Some(Udp));
    let tcp_closed = world
        .log
        .iter()
        .any(|(_, event)| matches!(event, Event::Close { link, .. } if *link == LinkId(1)));
    assert!(!tcp_closed, "TCP stays connected");
}

#[test]
fn silent_death_of_udp_is_left_within_two_seconds() {
    for rtt in [1, 50, 250, 470] {
        for phase in (0..1000).step_by(50) {
            let mut world = world(
                Network {
                    rtt: ms(rtt),
                    ..NEAR
                },
                Network {
                    rtt: ms(rtt),
                    ..NEAR
                },
            );
            world.run(ms(10_000 + phase));
            assert_eq!(world.active(), Some(Udp));
            let died = world.time();
            world.udp.open = false;
            world.arrivals.retain(|(_, arrival)| match arrival {
                Arrival::Connected(link) | Arrival::Pong(link, _) => world.links[link] == Tcp,
            });
            world.run(ms(2000));
            let uses = world.uses(died);
            assert_eq!(uses.len(), 1, "rtt {rtt}, {phase}: {uses:?}");
            assert_eq!(uses[0].1, Some(Tcp));
        }
    }
}

#[test]
fn failure_that_is_told_is_left_at_once() {
    let mut world = world(NEAR, NEAR);
    world.run(ms(5000));
    let link = world.active_link();
    world.selector.handle_failed(world.now, link);
    world.act();
    assert_eq!(world.uses(ms(5000)), [(ms(5000), Some(Tcp))]);
}

#[test]
fn udp_that_died_is_trusted_later_each_time() {
    let mut world = world(NEAR, NEAR);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        world.run(ms(7000));
        assert_eq!(world.active(), Some(Udp));
        let link = world.active_link();
        let died = world.time();
        world.selector.handle_failed(world.now, link);
        world.act();
        assert_eq!(world.active(), Some(Tcp));
        world.run(ms(61_000));
        let back = world.uses(died + ms(1))[0];
        assert_eq!(back.1, Some(Udp));
        pauses.push((back.0 - died).as_secs());
    }
    assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
    world.run(ms(301_000));
    let link = world.active_link();
    let died = world.time();
    world.selector.handle_failed(world.now, link);
    world.run(ms(6000));
    assert_eq!(
        world.uses(died).last().unwrap().1,
        Some(Udp),
        "all is forgotten"
    );
}

#[test]
fn long_round_trips_and_single_losses_are_no_death() {
    let far = Network {
        open: true,
        rtt: ms(1500),
    };
    let mut world = world(far, far);
    world.run(ms(120_000));
    let closed = |world: &World| {
        world
            .log
            .iter()
            .filter(|(_, event)| matches!(event, Event::Close { .. }))
            .count()
    };
    assert!(world.probes < 320, "{} probes", world.probes);
    assert_eq!(closed(&world), 0, "{:?}", world.log);
    world = self::world(NEAR, NEAR);
    world.udp_loses_every = Some(3);
    world.run(ms(600_000));
    assert_eq!(closed(&world), 0);
    assert_eq!(world.uses(ms(100)), []);
}

#[test]
fn everything_down_is_said_once_and_left_when_something_comes_back() {
    let mut world = world(NEAR, NEAR);
    world.run(ms(5000));
    (world.tcp.open, world.udp.open) = (false, false);
    world.run(ms(60_000));
    let downs = world.uses(ms(5000));
    assert_eq!(downs.last().unwrap().1, None);
    assert_eq!(downs.iter().filter(|(_, to)| to.is_none()).count(), 1);
    world.tcp.open = true;
    world.run(ms(12_000));
    assert_eq!(world.active(), Some(Tcp));
}

#[test]
fn dials_are_spread_out_and_never_cease() {
    let mut world = world(SHUT, SHUT);
    world.run(ms(600_000));
    let dials = |transport| {
        world
            .log
            .iter()
            .filter(
                |(_, event)| matches!(event, Event::Dial { transport: t, .. } if *t == transport),
            )
            .count()
    };
    assert!((50..=80).contains(&dials(Tcp)), "{}", dials(Tcp));
    assert!((28..=55).contains(&dials(Udp)), "{}", dials(Udp));
    assert!(world.uses(ms(0)).is_empty());
}

#[test]
fn mode_forbids_the_other_transport() {
    for (mode, transport) in [(Mode::Tcp, Tcp), (Mode::Udp, Udp)] {
        let mut world = World::new(
            Params {
                mode,
                ..Params::default()
            },
            NEAR,
            NEAR,
        );
        world.run(ms(60_000));
        assert_eq!(world.uses(ms(0)), [(ms(10), Some(transport))]);
        assert!(world.links.values().all(|link| *link == transport));
        let link = world.active_link();
        world.selector.handle_failed(world.now, link);
        world.run(ms(1000));
        assert_eq!(world.active(), Some(transport));
    }
}

#[test]
fn link_that_is_told_to_go_is_replaced_before_it_is_closed() {
    let params = Params {
        mode: Mode::Tcp,
        ..Params::default()
    };
    let mut world = World::new(
        params,
        Network {
            rtt: ms(400),
            ..NEAR
        },
        SHUT,
    );
    world.run(ms(5000));
    let old = world.active_link();
    world.selector.handle_drain(world.now, old);
    world.act();
    assert_eq!(world.active_link(), old, "still the only one");
    world.run(ms(399));
    assert_eq!(world.active_link(), old);
    world.run(ms(2));
    assert_ne!(world.active_link(), old);
    assert!(
        world.links.contains_key(&old),
        "packets may be on their way"
    );
    world.run(ms(3000));
    assert!(!world.links.contains_key(&old));
    assert!(
        world.uses(ms(0)).iter().all(|(_, to)| to.is_some()),
        "never down"
    );
    let closed = world
        .log
        .iter()
        .find(|(_, event)| matches!(event, Event::Close { .. }));
    let reason = CloseReason::Drained;
    assert_eq!(closed.unwrap().1, Event::Close { link: old, reason });
}

#[test]
fn link_that_was_told_to_go_serves_again_while_there_is_no_other() {
    let params = Params {
        mode: Mode::Tcp,
        ..Params::default()
    };
    let mut world = World::new(params, NEAR, SHUT);
    world.run(ms(5000));
    let old = world.active_link();
    world.selector.handle_drain(world.now, old);
    world.act();
    world.run(ms(1000));
    let new = world.active_link();
    assert_ne!(new, old);
    world.tcp.open = false; // to new connections; the old one is answered by hand
    world.selector.handle_failed(world.now, new);
    world.act();
    for _ in 0..400 {
        assert_eq!(world.active_link(), old);
        world.run(ms(10));
        let answered: Vec<u32> = world
            .log
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Probe { link, id } if *link == old => Some(*id),
                Event::Probe { .. } | Event::Close { .. } | Event::Dial { .. } => None,
                Event::Down | Event::Use { .. } => None,
            })
            .collect();
        world
            .selector
            .handle_pong(world.now, old, *answered.last().unwrap());
        world.act();
    }
}

#[test]
fn link_that_stopped_answering_is_no_place_to_move_to() {
    let mut params = Params::default();
    params.probes.standby = ms(500);
    params.probes.misses = 12;
    let mut world = World::new(params, NEAR, NEAR);
    world.run(ms(3000));
    let link = world.active_link();
    world.selector.handle_failed(world.now, link);
    world.act();
    world.run(ms(4000));
    world.udp.open = false; // a second before UDP would be preferred again
    world.run(ms(10_000));
    assert_eq!(world.uses(ms(3000)), [(ms(3000), Some(Tcp))]);
}

#[test]
fn udp_that_is_too_small_is_left_alone_for_a_while() {
    let mut world = world(NEAR, NEAR);
    world.run(ms(1000));
    let link = world.active_link();
    world.selector.handle_unfit(world.now, link);
    world.act();
    world.run(ms(59_000));
    assert_eq!(world.uses(ms(1000)), [(ms(1000), Some(Tcp))]);
    world.run(ms(2000));
    assert_eq!(world.active(), Some(Udp));
}

#[test]
fn packets_that_come_in_excuse_a_few_missing_answers() {
    let mut world = world(NEAR, NEAR);
    world.run(ms(5000));
    world.udp.open = false;
    let link = world.active_link();
    for _ in 0..19 {
        world.run(ms(100));
        world.selector.handle_received(world.now, link);
    }
    assert_eq!(world.active(), Some(Udp), "1.9 s would be enough without");
    for _ in 0..20 {
        world.run(ms(100));
        world.selector.handle_received(world.now, link);
    }
    assert_eq!(world.active(), Some(Tcp), "but not for ever");
}

#[test]
fn round_trip_is_measured() {
    let mut world = world(
        SHUT,
        Network {
            rtt: ms(80),
            ..NEAR
        },
    );
    world.run(ms(20_000));
    let stats = world.selector.stats(world.active_link()).unwrap();
    assert_eq!(stats.rtt, Some(ms(80)));
    assert_eq!(stats.timeout, ms(200));
    assert!(stats.sent - stats.answered <= 1 && stats.answered > 35);
}

#[test]
fn unknown_links_are_ignored() {
    let mut world = world(NEAR, NEAR);
    world.run(ms(1000));
    let (now, nobody) = (world.now, LinkId(999));
    world.selector.handle_connected(now, nobody);
    world.selector.handle_pong(now, nobody, 0);
    world.selector.handle_received(now, nobody);
    world.selector.handle_drain(now, nobody);
    world.selector.handle_failed(now, nobody);
    world.selector.handle_unfit(now, nobody);
    let link = world.active_link();
    world.selector.handle_pong(now, link, 12_345);
    world.act();
    assert_eq!((world.active(), world.uses(ms(500))), (Some(Udp), vec![]));
    assert_eq!(world.selector.stats(nobody), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_happened_the_best_is_used_in_the_end(
        steps in prop::collection::vec((0_u8..7, 0_u64..9000), 0..40),
        rtts in (1_u64..900, 1_u64..900),
        udp_open in any::<bool>(),
    ) {
        let [tcp, udp] = [rtts.0, rtts.1].map(|rtt| Network { open: true, rtt: ms(rtt) });
        let mut world = world(tcp, udp);
        for (what, time) in steps {
            world.run(ms(time));
            let active = world.selector.active().map(|(link, _)| link);
            match (what, active) {
                (0, _) => world.tcp.open ^= true,
                (1 | 2, _) => world.udp.open ^= true,
                (3, Some(link)) => world.selector.handle_drain(world.now, link),
                (4, Some(link)) => world.selector.handle_failed(world.now, link),
                (5, Some(link)) => world.selector.handle_received(world.now, link),
                _ => {}
            }
            world.act();
            prop_assert!(world.links.len() <= 4);
        }
        (world.tcp.open, world.udp.open) = (true, udp_open);
        world.run(ms(100_000));
        let expected = if udp_open { Udp } else { Tcp };
        prop_assert_eq!(world.active(), Some(expected));
    }
}
