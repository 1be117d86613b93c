//! Tests of the search for servers, with simulated time, chance and load balancers.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do as the origin"
)]
pub(super) fn origin() -> Instant {
    Instant::now()
}

/// Chance that is the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// An agent before a load balancer that chooses at random.
struct World {
    connector: Connector,
    dice: Dice,
    start: Instant,
    now: Instant,
    servers: Vec<&'static str>,
    /// What servers say.
    count: u32,
    attempts: Vec<Duration>,
}

impl World {
    fn new(params: ConnectParams, servers: &[&'static str], seed: u64) -> Self {
        let now = origin();
        Self {
            connector: Connector::new(params, now),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            start: now,
            now,
            servers: servers.to_vec(),
            count: u32::try_from(servers.len()).unwrap(),
            attempts: Vec::new(),
        }
    }

    /// Lets everything that is due within `time` happen.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.connector.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.attempts.push(self.now - self.start);
            let random = self.dice.roll();
            if self.servers.is_empty() {
                self.connector.failed(self.now, random);
            } else {
                let choice = usize::try_from(random >> 32).unwrap() % self.servers.len();
                let server = self.servers[choice];
                self.connector
                    .connected(self.now, random, server, self.count);
            }
        }
        self.now = end;
    }

    fn lose(&mut self, server: &str) {
        self.servers.retain(|known| *known != server);
        let random = self.dice.roll();
        self.connector.lost(self.now, random, server);
    }
}

fn forever() -> ConnectParams {
    ConnectParams {
        forever: true,
        ..ConnectParams::default()
    }
}

#[test]
fn single_server_is_connected_once() {
    let mut world = World::new(ConnectParams::default(), &["a"], 1);
    world.run(SECOND * 3600);
    assert_eq!(world.attempts, [Duration::ZERO]);
    assert_eq!(world.connector.due(), None);
}

#[test]
fn all_of_three_servers_are_found_in_time() {
    let found = (0..1000).filter(|seed| {
        let mut world = World::new(ConnectParams::default(), &["a", "b", "c"], *seed);
        world.run(SECOND * 15);
        world.connector.known.len() == 3
    });
    assert!(found.count() > 980);
    for seed in 0..1000 {
        let mut world = World::new(ConnectParams::default(), &["a", "b", "c"], seed);
        world.run(SECOND * 600);
        assert_eq!(world.connector.known.len(), 3, "seed {seed}");
    }
}

#[test]
fn added_server_is_found_while_dials_wait() {
    let found = (0..1000).filter(|seed| {
        let mut world = World::new(forever(), &["a", "b", "c"], *seed);
        world.run(SECOND * 600);
        world.servers.push("d");
        world.connector.counted(world.now, 5, Some(4));
        world.run(SECOND * 5);
        world.connector.known.len() == 4
    });
    let found = found.count();
    assert!(found > 990, "{found}");
}

#[test]
fn sticky_load_balancer_is_not_hammered() {
    let mut world = World::new(ConnectParams::default(), &["a"], 1);
    world.count = 3;
    world.run(SECOND * 3600);
    assert!(world.attempts.len() < 400, "{}", world.attempts.len());
    // Nor is the search given up.
    world.servers = vec!["b"];
    world.run(SECOND * 12);
    assert_eq!(world.connector.known.len(), 2);
}

#[test]
fn down_servers_are_tried_once_per_cap() {
    let mut world = World::new(ConnectParams::default(), &[], 1);
    world.run(SECOND * 600);
    let gaps = world.attempts.windows(2).map(|pair| pair[1] - pair[0]);
    let rare = |gap| (SECOND * 10..=SECOND * 11).contains(&gap);
    assert!(gaps.skip(10).all(rare), "{:?}", world.attempts);
    assert!(world.attempts[1] >= SECOND);
}

#[test]
fn an_outage_that_is_over_slows_no_search() {
    for found_again in [&["a"][..], &["a", "b"]] {
        let mut world = World::new(ConnectParams::default(), &[], 1);
        world.run(SECOND * 600);
        world.servers = found_again.to_vec();
        world.count = 3;
        for _ in 0..11 {
            if world.connector.known.is_empty() {
                world.run(SECOND);
            }
        }
        assert!(!world.connector.known.is_empty());
        world.servers.clear();
        world.run(SECOND * 2);
        let before = world.attempts.len();
        world.run(SECOND * 2);
        assert!(world.attempts.len() > before, "{:?}", world.attempts);
    }
}

#[test]
fn lost_server_is_sought_at_once() {
    let mut world = World::new(ConnectParams::default(), &["a"], 1);
    world.run(SECOND * 60);
    world.attempts.clear();
    let lost = world.now - world.start;
    world.lose("a");
    world.count = 1;
    world.run(SECOND * 10);
    let after: Vec<_> = world.attempts.iter().map(|at| *at - lost).collect();
    assert!(after[0] <= SECOND / 5, "{after:?}");
    let first_second = after.iter().filter(|at| **at <= SECOND).count();
    assert!((3..=5).contains(&first_second), "{after:?}");
    assert!(after.len() < 12, "{after:?}");
}

#[test]
fn server_that_closes_is_not_hammered() {
    let ten = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    for (servers, leaves, rounds, pause, attempts) in [
        (&ten[..1], "a", 600, SECOND / 10, 20),
        // It costs the others little.
        (&ten, "j", 12_000, SECOND / 20, 299),
    ] {
        let mut world = World::new(ConnectParams::default(), servers, 1);
        for _ in 0..rounds {
            world.run(pause);
            let random = world.dice.roll();
            world.connector.lost(world.now, random, leaves);
        }
        let made = world.attempts.len();
        assert!(made <= attempts, "{made} of {servers:?}");
    }
}

#[test]
fn search_slows_down_once_all_are_found() {
    let mut world = World::new(forever(), &["a", "b"], 7);
    world.run(SECOND * 600);
    assert_eq!(world.connector.known.len(), 2);
    assert!(world.attempts.len() < 100, "{}", world.attempts.len());
    world.servers.extend(["c", "d"]);
    world.count = 4;
    world.run(SECOND * 120);
    assert_eq!(world.connector.known.len(), 4);
}

#[test]
fn a_lower_count_ends_no_connection() {
    let mut world = World::new(forever(), &["a", "b", "c"], 7);
    world.run(SECOND * 600);
    world.count = 1;
    world.run(SECOND * 600);
    assert_eq!(world.connector.known.len(), 3);
}

#[test]
fn leases_count_when_they_are_known() {
    let mut world = World::new(ConnectParams::default(), &["a", "b", "c"], 3);
    world.count = 1;
    world.run(SECOND * 60);
    assert_eq!(world.connector.known.len(), 1);
    world.connector.counted(world.now, 5, Some(3));
    world.run(SECOND * 300);
    assert_eq!(world.connector.known.len(), 3);
    world.connector.counted(world.now, 5, Some(0));
    assert_eq!(world.connector.servers(), 1);
}

#[test]
fn the_larger_count_wins_when_asked_for() {
    for (source, leases, expected) in [
        (CountSource::Max, 2, 3),
        (CountSource::Max, 4, 4),
        (CountSource::Default, 2, 2),
    ] {
        let params = ConnectParams {
            source,
            ..ConnectParams::default()
        };
        let now = origin();
        let mut connector = Connector::new(params, now);
        assert_eq!(connector.connected(now, 0, "a", 3), Verdict::Keep);
        connector.counted(now, 0, Some(leases));
        assert_eq!(connector.servers(), expected);
    }
}

#[test]
fn known_server_is_duplicate_until_lost() {
    let now = origin();
    let mut connector = Connector::new(ConnectParams::default(), now);
    assert_eq!(connector.connected(now, 0, "a", 0), Verdict::Keep);
    assert_eq!(connector.servers(), 1);
    assert_eq!(connector.connected(now, 0, "a", 2), Verdict::Duplicate);
    connector.lost(now, 0, "a");
    connector.lost(now, 0, "never there");
    assert_eq!(connector.connected(now, 0, "a", 2), Verdict::Keep);
}
