//! The search for the packet size, on links with holes.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tunnel_proto::path::{Mtu, MtuEvent};

use super::{ms, start};

/// A link that carries packets up to `hole` bytes, and answers small probes every half second.
struct Simulation {
    mtu: Mtu,
    now: Instant,
    begin: Instant,
    hole: u16,
    alive: bool,
    traffic: bool,
    rtt: Duration,
    answers: Vec<(Instant, u32)>,
    next_ping: Instant,
    probes: u32,
    log: Vec<(Duration, MtuEvent)>,
}

impl Simulation {
    fn new(hole: u16) -> Self {
        let now = start();
        let mut sim = Self {
            mtu: Mtu::new(1280, 1420, now),
            now,
            begin: now,
            hole,
            alive: true,
            traffic: true,
            rtt: ms(40),
            answers: Vec::new(),
            next_ping: now,
            probes: 0,
            log: Vec::new(),
        };
        sim.act();
        sim
    }

    fn act(&mut self) {
        while let Some(event) = self.mtu.poll_event() {
            if let MtuEvent::Probe { id, size } = event {
                self.probes += 1;
                if size <= self.hole && self.alive {
                    self.answers.push((self.now + self.rtt, id));
                }
            } else {
                self.log.push((self.now - self.begin, event));
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let answer = self.answers.iter().map(|(at, _)| *at).min();
            let timers = [answer, self.mtu.poll_timeout(), Some(self.next_ping)];
            let next = timers
                .into_iter()
                .flatten()
                .min()
                .filter(|next| *next <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            if answer == Some(next) {
                let at = self.answers.iter().position(|(at, _)| *at == next).unwrap();
                let (_, id) = self.answers.remove(at);
                self.mtu.handle_pong(self.now, id);
            } else if self.next_ping == next {
                self.next_ping += ms(500);
                if self.alive {
                    self.mtu.handle_alive(self.now, ms(200));
                }
                if self.traffic {
                    self.mtu.handle_traffic(self.now);
                }
            } else {
                self.mtu.handle_timeout(self.now);
            }
            self.act();
        }
        self.now = end;
    }
}

fn changed(mtu: u16) -> MtuEvent {
    MtuEvent::Changed { mtu }
}

#[test]
fn open_path_is_used_fully_after_two_round_trips() {
    let mut sim = Simulation::new(9000);
    assert_eq!(sim.mtu.mtu(), 1280, "until more is known");
    sim.run(ms(10_000));
    assert_eq!(sim.log, [(ms(80), changed(1420))]);
}

#[test]
fn size_between_is_found_within_one_step() {
    for hole in [1280, 1287, 1288, 1289, 1350, 1400, 1411, 1412, 1419] {
        let mut sim = Simulation::new(hole);
        sim.run(ms(20_000));
        let found = sim.mtu.mtu();
        assert!(found <= hole && hole - found <= 8, "{hole}: {found}");
        assert!(!sim.log.contains(&(ms(0), MtuEvent::Unfit)));
    }
}

#[test]
fn silent_hole_of_1280_is_found_in_five_seconds() {
    for phase in (0..1000).step_by(100) {
        let mut sim = Simulation::new(1420);
        sim.run(ms(30_000 + phase));
        sim.hole = 1280;
        sim.run(ms(5000));
        assert_eq!(sim.mtu.mtu(), 1280);
        assert_eq!(sim.log.last().unwrap().1, changed(1280));
        sim.hole = 1420;
        sim.run(ms(65_000));
        assert_eq!(sim.mtu.mtu(), 1420, "and left again when it is gone");
    }
}

#[test]
fn hole_opened_while_idle_is_found_by_traffic() {
    let mut sim = Simulation::new(1420);
    sim.run(ms(5000));
    sim.traffic = false;
    sim.run(ms(2000));
    let before = sim.probes;
    sim.hole = 1300;
    sim.run(ms(600_000));
    assert_eq!(sim.probes, before, "an idle link costs nothing");
    assert_eq!(sim.mtu.mtu(), 1420);
    sim.traffic = true;
    sim.run(ms(2500));
    assert!(sim.mtu.mtu() <= 1300);
    sim.run(ms(5000));
    assert!((1292..=1300).contains(&sim.mtu.mtu()));
}

#[test]
fn path_below_floor_is_reported_unfit_once() {
    let mut sim = Simulation::new(1279);
    sim.run(ms(100_000));
    assert_eq!(sim.log.len(), 1);
    assert_eq!(sim.log[0].1, MtuEvent::Unfit);
    assert!(sim.log[0].0 < ms(3000));
    let mut sim = Simulation::new(1420);
    sim.run(ms(3000));
    sim.hole = 1200;
    sim.run(ms(7000));
    let events: Vec<_> = sim.log.iter().map(|(_, event)| *event).collect();
    assert_eq!(events, [changed(1420), changed(1280), MtuEvent::Unfit]);
}

#[test]
fn dead_link_is_not_a_small_one() {
    let mut sim = Simulation::new(1420);
    sim.run(ms(3000));
    sim.alive = false;
    sim.run(ms(60_000));
    assert_eq!(sim.mtu.mtu(), 1420);
    sim.alive = true;
    sim.run(ms(3000));
    assert_eq!(sim.log, [(ms(80), changed(1420))]);
}

#[test]
fn lost_probes_do_not_shrink_the_size() {
    let mut sim = Simulation::new(1420);
    sim.run(ms(3000));
    for _ in 0..50 {
        sim.hole = 1000;
        sim.run(ms(250)); // two probes of three at most
        sim.hole = 1420;
        sim.run(ms(2000));
    }
    assert_eq!(sim.log, [(ms(80), changed(1420))]);
}

#[test]
fn path_shrinking_during_raise_is_found_in_5_s() {
    let mut sim = Simulation::new(1330);
    // A raise is under way from the sixtieth second on.
    for early in (0..4_000).step_by(50) {
        sim.hole = 1330;
        sim.run(ms(120_000));
        let since = sim.mtu.mtu();
        assert!((1322..=1330).contains(&since), "{since}");
        sim.run(ms(60_000 + early));
        sim.hole = 1280;
        sim.run(ms(5000));
        assert_eq!(sim.mtu.mtu(), 1280, "{early}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn size_follows_the_path(
        holes in prop::collection::vec((1280_u16..1500, 1_u64..20_000), 1..12),
        last in 1280_u16..1500,
    ) {
        let mut sim = Simulation::new(1420);
        for (hole, time) in holes {
            sim.hole = hole;
            sim.run(ms(time));
            prop_assert!((1280..=1420).contains(&sim.mtu.mtu()));
        }
        sim.hole = last;
        sim.run(ms(5000));
        prop_assert!(sim.mtu.mtu() <= last, "larger than the path after 5 s");
        sim.run(ms(90_000));
        prop_assert!(last.min(1420) - sim.mtu.mtu() <= 8);
        let unfit = sim.log.iter().any(|(_, event)| *event == MtuEvent::Unfit);
        prop_assert!(!unfit);
    }
}
