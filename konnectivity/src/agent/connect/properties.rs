//! What holds of the search for servers, whatever happens in whatever order.
//!
//! ```text
//!   steps drawn by lot ──▶ Connector
//!                    └───▶ Model: who is connected, when the last attempt was ──▶ compared
//! ```

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::tests::origin;
use super::*;

/// Servers there may be.
const SERVERS: u8 = 6;

#[derive(Clone, Debug)]
enum Step {
    /// The next attempt fails, once it is due.
    Fail,
    /// It leads to a server, who tells of so many.
    Reach(u8, u32),
    /// The connection to a server ends, if there is one.
    Lose(u8),
    /// A server is about to end, if there is a connection to it.
    Drain(u8),
    /// Leases are counted, or no longer.
    Count(Option<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![0..=u32::from(SERVERS) + 1, Just(u32::MAX)];
    prop_oneof![
        2 => Just(Step::Fail),
        4 => (0..SERVERS, count.clone()).prop_map(|(server, count)| Step::Reach(server, count)),
        2 => (0..SERVERS).prop_map(Step::Lose),
        1 => (0..SERVERS).prop_map(Step::Drain),
        1 => proptest::option::of(count).prop_map(Step::Count),
    ]
}

/// Steps, each with the time before it and a random number.
fn steps() -> impl Strategy<Value = Vec<(Duration, u64, Step)>> {
    let wait = (0_u64..20_000).prop_map(Duration::from_millis);
    vec((wait, any::<u64>(), step()), 0..60)
}

fn params() -> impl Strategy<Value = ConnectParams> {
    let source = prop_oneof![Just(CountSource::Default), Just(CountSource::Max)];
    (10_u64..2_000, 1_u32..20, any::<bool>(), source).prop_map(
        |(milliseconds, times, forever, source)| {
            let interval = Duration::from_millis(milliseconds);
            ConnectParams {
                interval,
                interval_cap: interval * times,
                forever,
                source,
            }
        },
    )
}

/// A connector, and what must be true of it.
struct Model {
    connector: Connector,
    params: ConnectParams,
    now: Instant,
    connected: BTreeSet<u8>,
    draining: BTreeSet<u8>,
    last_attempt: Option<Instant>,
}

impl Model {
    fn new(params: ConnectParams) -> Self {
        let now = origin();
        Self {
            connector: Connector::new(params, now),
            params,
            now,
            connected: BTreeSet::new(),
            draining: BTreeSet::new(),
            last_attempt: None,
        }
    }

    /// Waits for the next attempt; returns whether there is to be one.
    fn wait_due(&mut self) -> Result<bool, TestCaseError> {
        let Some(due) = self.connector.due() else {
            return Ok(false);
        };
        prop_assert!(
            due <= self.now + self.longest(),
            "the search goes on in time"
        );
        if let Some(last) = self.last_attempt {
            prop_assert!(
                due >= last + self.params.interval / SOON,
                "no server is hammered"
            );
        }
        self.now = self.now.max(due);
        self.last_attempt = Some(self.now);
        Ok(true)
    }

    fn longest(&self) -> Duration {
        self.params.interval_cap * 11 / 10
    }

    fn reach(&mut self, random: u64, server: u8, count: u32) -> Result<(), TestCaseError> {
        let name = server.to_string();
        let verdict = self.connector.connected(self.now, random, &name, count);
        let new = self.connected.insert(server);
        prop_assert_eq!(verdict == Verdict::Keep, new);
        Ok(())
    }

    fn take(&mut self, random: u64, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Fail if self.wait_due()? => self.connector.failed(self.now, random),
            Step::Reach(server, count) if self.wait_due()? => self.reach(random, server, count)?,
            Step::Fail | Step::Reach(..) => {}
            Step::Lose(server) => {
                let name = server.to_string();
                self.connector.lost(self.now, random, &name);
                self.connected.remove(&server);
                self.draining.remove(&server);
            }
            Step::Drain(server) => {
                let name = server.to_string();
                self.connector.server_drains(self.now, random, &name);
                if self.connected.contains(&server) {
                    self.draining.insert(server);
                }
            }
            Step::Count(count) => self.connector.counted(self.now, random, count),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let servers = self.connector.servers();
        prop_assert!((1..=MAX_SERVERS).contains(&servers));
        prop_assert_eq!(self.connector.known.len(), self.connected.len());
        let staying = self.connected.difference(&self.draining).count();
        let missing = staying < servers as usize;
        let sought = missing || self.params.forever;
        prop_assert_eq!(self.connector.due().is_some(), sought);
        Ok(())
    }
}

/// Takes steps, all the while checking that attempts keep their distance and never cease while a server
/// is missing.
fn after(params: ConnectParams, steps: &[(Duration, u64, Step)]) -> Result<Model, TestCaseError> {
    let mut model = Model::new(params);
    for (wait, random, step) in steps {
        model.now += *wait;
        model.take(*random, step)?;
        model.check()?;
    }
    Ok(model)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn all_servers_are_found_by_attempts(
        params in params(),
        steps in steps(),
        random in any::<u64>(),
        first in 0..SERVERS,
    ) {
        let mut model = after(params, &steps)?;
        let all = u32::from(SERVERS);
        model.connector.counted(model.now, random, Some(all));
        for step in 0..SERVERS {
            if model.connected.len() == usize::from(SERVERS) {
                break;
            }
            prop_assert!(model.wait_due()?, "a server is missing");
            model.reach(random, (first + step) % SERVERS, all)?;
        }
        prop_assert_eq!(model.connector.known.len(), usize::from(SERVERS));
    }

    #[test]
    fn success_resets_back_off(
        params in params(),
        failures in 0_usize..40,
        random in any::<u64>(),
    ) {
        let mut model = Model::new(params);
        for _ in 0..failures {
            model.take(random, &Step::Fail)?;
        }
        model.take(random, &Step::Reach(0, 2))?;
        model.take(random, &Step::Fail)?;
        let due = model.connector.due();
        prop_assert!(due.is_some_and(|due| due <= model.now + params.interval * 11 / 10));
    }

    #[test]
    fn nothing_is_due_once_it_drains(params in params(), steps in steps(), later in steps()) {
        let mut model = after(params, &steps)?;
        model.connector.drain();
        for (wait, random, step) in &later {
            model.now += *wait;
            model.take(*random, step)?;
            prop_assert_eq!(model.connector.due(), None);
        }
    }
}
