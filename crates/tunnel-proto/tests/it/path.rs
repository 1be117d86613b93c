//! The choice of transport, on simulated links that open, close and fall silent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tunnel_proto::path::{Event, LinkId, Mode, Params, Selector, Transport};

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
struct Simulation {
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

impl Simulation {
    fn new(params: Params, tcp: Network, udp: Network) -> Self {
        let now = start();
        let mut sim = Self {
            selector: Selector::new(params, 1, LinkId(0), now),
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
        sim.act();
        sim
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

fn sim(tcp: Network, udp: Network) -> Simulation {
    Simulation::new(Params::default(), tcp, udp)
}

#[test]
fn first_to_answer_is_used_until_udp_answers() {
    let slow_udp = Network {
        rtt: ms(300),
        ..NEAR
    };
    let mut sim = sim(NEAR, slow_udp);
    let dialed: Vec<_> = sim.log.iter().map(|(at, event)| (*at, *event)).collect();
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
    sim.run(ms(2000));
    assert_eq!(sim.uses(ms(0)), [(ms(10), Some(Tcp)), (ms(300), Some(Udp))]);
}

#[test]
fn blocked_udp_is_used_soon_after_it_opens() {
    let mut sim = sim(NEAR, SHUT);
    sim.run(ms(60_000));
    assert_eq!(sim.uses(ms(0)), [(ms(10), Some(Tcp))]);
    sim.udp.open = true;
    sim.run(ms(22_000));
    assert_eq!(sim.uses(ms(60_000)).len(), 1);
    assert_eq!(sim.active(), Some(Udp));
    let tcp_closed = sim
        .log
        .iter()
        .any(|(_, event)| matches!(event, Event::Close { link, .. } if *link == LinkId(1)));
    assert!(!tcp_closed, "TCP stays connected");
}

#[test]
fn silent_udp_is_left_within_two_seconds() {
    for rtt in [1, 50, 250, 470] {
        for phase in (0..1000).step_by(50) {
            let mut sim = sim(
                Network {
                    rtt: ms(rtt),
                    ..NEAR
                },
                Network {
                    rtt: ms(rtt),
                    ..NEAR
                },
            );
            sim.run(ms(10_000 + phase));
            assert_eq!(sim.active(), Some(Udp));
            let died = sim.time();
            sim.udp.open = false;
            sim.arrivals.retain(|(_, arrival)| match arrival {
                Arrival::Connected(link) | Arrival::Pong(link, _) => sim.links[link] == Tcp,
            });
            sim.run(ms(2000));
            let uses = sim.uses(died);
            assert_eq!(uses.len(), 1, "rtt {rtt}, {phase}: {uses:?}");
            assert_eq!(uses[0].1, Some(Tcp));
        }
    }
}

#[test]
fn failure_that_is_told_is_left_at_once() {
    let mut sim = sim(NEAR, NEAR);
    sim.run(ms(5000));
    let link = sim.active_link();
    sim.selector.handle_failed(sim.now, link);
    sim.act();
    assert_eq!(sim.uses(ms(5000)), [(ms(5000), Some(Tcp))]);
}

#[test]
fn udp_that_died_is_trusted_later_each_time() {
    let mut sim = sim(NEAR, NEAR);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        sim.run(ms(7000));
        assert_eq!(sim.active(), Some(Udp));
        let link = sim.active_link();
        let died = sim.time();
        sim.selector.handle_failed(sim.now, link);
        sim.act();
        assert_eq!(sim.active(), Some(Tcp));
        sim.run(ms(61_000));
        let back = sim.uses(died + ms(1))[0];
        assert_eq!(back.1, Some(Udp));
        pauses.push((back.0 - died).as_secs());
    }
    assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
    sim.run(ms(301_000));
    let link = sim.active_link();
    let died = sim.time();
    sim.selector.handle_failed(sim.now, link);
    sim.run(ms(6000));
    assert_eq!(
        sim.uses(died).last().unwrap().1,
        Some(Udp),
        "all is forgotten"
    );
}

#[test]
fn long_rtt_and_single_losses_kill_no_link() {
    let far = Network {
        open: true,
        rtt: ms(1500),
    };
    let mut sim = sim(far, far);
    sim.run(ms(120_000));
    let closed = |sim: &Simulation| {
        sim.log
            .iter()
            .filter(|(_, event)| matches!(event, Event::Close { .. }))
            .count()
    };
    assert!(sim.probes < 320, "{} probes", sim.probes);
    assert_eq!(closed(&sim), 0, "{:?}", sim.log);
    sim = self::sim(NEAR, NEAR);
    sim.udp_loses_every = Some(3);
    sim.run(ms(600_000));
    assert_eq!(closed(&sim), 0);
    assert_eq!(sim.uses(ms(100)), []);
}

#[test]
fn down_is_reported_once_until_recovery() {
    let mut sim = sim(NEAR, NEAR);
    sim.run(ms(5000));
    (sim.tcp.open, sim.udp.open) = (false, false);
    sim.run(ms(60_000));
    let downs = sim.uses(ms(5000));
    assert_eq!(downs.last().unwrap().1, None);
    assert_eq!(downs.iter().filter(|(_, to)| to.is_none()).count(), 1);
    sim.tcp.open = true;
    sim.run(ms(12_000));
    assert_eq!(sim.active(), Some(Tcp));
}

#[test]
fn dials_are_spread_out_and_never_cease() {
    let mut sim = sim(SHUT, SHUT);
    sim.run(ms(600_000));
    let dials = |transport| {
        sim.log
            .iter()
            .filter(
                |(_, event)| matches!(event, Event::Dial { transport: t, .. } if *t == transport),
            )
            .count()
    };
    assert!((50..=80).contains(&dials(Tcp)), "{}", dials(Tcp));
    assert!((28..=55).contains(&dials(Udp)), "{}", dials(Udp));
    assert!(sim.uses(ms(0)).is_empty());
}

#[test]
fn mode_forbids_the_other_transport() {
    for (mode, transport) in [(Mode::Tcp, Tcp), (Mode::Udp, Udp)] {
        let mut sim = Simulation::new(
            Params {
                mode,
                ..Params::default()
            },
            NEAR,
            NEAR,
        );
        sim.run(ms(60_000));
        assert_eq!(sim.uses(ms(0)), [(ms(10), Some(transport))]);
        assert!(sim.links.values().all(|link| *link == transport));
        let link = sim.active_link();
        sim.selector.handle_failed(sim.now, link);
        sim.run(ms(1000));
        assert_eq!(sim.active(), Some(transport));
    }
}

#[test]
fn unanswering_link_is_never_switched_to() {
    let mut params = Params::default();
    params.probes.standby = ms(500);
    params.probes.misses = 12;
    let mut sim = Simulation::new(params, NEAR, NEAR);
    sim.run(ms(3000));
    let link = sim.active_link();
    sim.selector.handle_failed(sim.now, link);
    sim.act();
    sim.run(ms(4000));
    sim.udp.open = false; // a second before UDP would be preferred again
    sim.run(ms(10_000));
    assert_eq!(sim.uses(ms(3000)), [(ms(3000), Some(Tcp))]);
}

#[test]
fn unfit_udp_is_retried_after_pause() {
    let mut sim = sim(NEAR, NEAR);
    sim.run(ms(1000));
    let link = sim.active_link();
    sim.selector.handle_unfit(sim.now, link);
    sim.act();
    sim.run(ms(59_000));
    assert_eq!(sim.uses(ms(1000)), [(ms(1000), Some(Tcp))]);
    sim.run(ms(2000));
    assert_eq!(sim.active(), Some(Udp));
}

#[test]
fn received_packets_excuse_few_missing_answers() {
    let mut sim = sim(NEAR, NEAR);
    sim.run(ms(5000));
    sim.udp.open = false;
    let link = sim.active_link();
    for _ in 0..19 {
        sim.run(ms(100));
        sim.selector.handle_received(sim.now, link);
    }
    assert_eq!(sim.active(), Some(Udp), "1.9 s would be enough without");
    for _ in 0..20 {
        sim.run(ms(100));
        sim.selector.handle_received(sim.now, link);
    }
    assert_eq!(sim.active(), Some(Tcp), "but not for ever");
}

#[test]
fn round_trip_is_measured() {
    let mut sim = sim(
        SHUT,
        Network {
            rtt: ms(80),
            ..NEAR
        },
    );
    sim.run(ms(20_000));
    let stats = sim.selector.stats(sim.active_link()).unwrap();
    assert_eq!(stats.rtt, Some(ms(80)));
    assert_eq!(stats.timeout, ms(200));
    assert!(stats.lost == 0 && stats.answered > 35);
}

#[test]
fn loss_is_of_the_last_probes() {
    let params = Params {
        mode: Mode::Udp,
        ..Params::default()
    };
    let mut sim = Simulation::new(params, SHUT, NEAR);
    let mut loss_after = |lost, time| {
        sim.udp_loses_every = lost;
        sim.run(ms(time));
        assert_eq!(sim.active(), Some(Udp));
        sim.selector.stats(sim.active_link()).unwrap().loss()
    };
    assert_eq!(loss_after(None, 10_000_000), 0.0);
    let some = loss_after(Some(5), 100_000);
    assert!((0.15..0.25).contains(&some), "{some}");
    assert_eq!(loss_after(None, 100_000), 0.0);
    // Too short to lose the link: no answer follows.
    assert!(loss_after(Some(1), 800) > 0.0);
}

#[test]
fn unknown_links_are_ignored() {
    let mut sim = sim(NEAR, NEAR);
    sim.run(ms(1000));
    let (now, absent) = (sim.now, LinkId(999));
    sim.selector.handle_connected(now, absent);
    sim.selector.handle_pong(now, absent, 0);
    sim.selector.handle_received(now, absent);
    sim.selector.handle_failed(now, absent);
    sim.selector.handle_unfit(now, absent);
    let link = sim.active_link();
    sim.selector.handle_pong(now, link, 12_345);
    sim.act();
    assert_eq!((sim.active(), sim.uses(ms(500))), (Some(Udp), vec![]));
    assert_eq!(sim.selector.stats(absent), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn best_link_is_used_after_any_history(
        steps in prop::collection::vec((0_u8..6, 0_u64..9000), 0..40),
        rtts in (1_u64..900, 1_u64..900),
        udp_open in any::<bool>(),
    ) {
        let [tcp, udp] = [rtts.0, rtts.1].map(|rtt| Network { open: true, rtt: ms(rtt) });
        let mut sim = sim(tcp, udp);
        for (what, time) in steps {
            sim.run(ms(time));
            let active = sim.selector.active().map(|(link, _)| link);
            match (what, active) {
                (0, _) => sim.tcp.open ^= true,
                (1 | 2, _) => sim.udp.open ^= true,
                (3, Some(link)) => sim.selector.handle_failed(sim.now, link),
                (4, Some(link)) => sim.selector.handle_received(sim.now, link),
                _ => {}
            }
            sim.act();
            prop_assert!(sim.links.len() <= 2);
        }
        (sim.tcp.open, sim.udp.open) = (true, udp_open);
        sim.run(ms(100_000));
        let expected = if udp_open { Udp } else { Tcp };
        prop_assert_eq!(sim.active(), Some(expected));
    }
}
