//! All figures a pair is held to, in about three minutes.
//!
//! ```text
//! one pair a transport ──▶ rounds: direct, http-uds, http-mtls, grpc-uds, and back ──▶ speed
//!                      ──▶ stalled tunnels, abandoned dials, very many dials
//! fresh pairs          ──▶ memory
//! ```
//!
//! Rounds are interleaved, and every other one runs backwards, so that a machine that gets busier
//! meanwhile does so for all.

use std::time::Duration;

use anyhow::{Result, bail};

use super::frontend::Transport;
use super::load::{Direction, Load};
use super::pair::Programs;
use super::scenario::harm::{self, Stalled};
use super::scenario::{Lab, Target, memory, speed};
use crate::progress::Progress;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Bytes of a transfer.
    pub(crate) bytes: u64,
    /// Repetitions of what is fast.
    pub(crate) rounds: usize,
    /// Length of one run of round trips or dials.
    pub(crate) length: Duration,
}

/// Runs everything through pairs of `programs`.
///
/// # Errors
/// When a pair cannot be started, or everything failed through one of them.
pub(crate) fn run(lab: &mut Lab, programs: &Programs, extent: Extent) -> Result<Vec<String>> {
    let steps = TRANSPORTS.len() * (extent.rounds * SPEED_STEPS + HARM_STEPS + 1)
        + extent.rounds * SPEED_STEPS;
    let mut run = Run {
        progress: Progress::new(steps),
        failures: Vec::new(),
    };
    for transport in MEMORY {
        run.step(lab, &format!("{}: memory", transport.as_str()), |lab| {
            let target = Target::start(programs, transport)?;
            memory::idle(lab, &target, IDLE).map_err(|error| target.explain(error))
        });
    }
    let mut targets = vec![Target::direct()];
    for transport in TRANSPORTS {
        targets.push(Target::start(programs, transport)?);
    }
    for round in 0..extent.rounds {
        let mut order: Vec<&Target> = targets.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for target in order {
            run.speed(lab, target, extent);
        }
    }
    for target in targets.iter_mut().skip(1) {
        run.harm(lab, target);
    }
    if lab.samples.series().is_empty() {
        bail!("nothing could be measured:\n{}", run.failures.join("\n"));
    }
    Ok(run.failures)
}

struct Run {
    progress: Progress,
    failures: Vec<String>,
}

impl Run {
    /// One failure does not end the others: a table with a gap says more than none.
    fn step(&mut self, lab: &mut Lab, what: &str, work: impl FnOnce(&mut Lab) -> Result<()>) {
        self.progress.step(what);
        if let Err(error) = work(lab) {
            self.failures.push(format!("{what}: {error:#}"));
        }
    }

    fn speed(&mut self, lab: &mut Lab, target: &Target, extent: Extent) {
        let name = target.transport.as_str();
        for (word, direction) in [("down", Direction::Down), ("up", Direction::Up)] {
            self.step(lab, &format!("{name}: {word}"), |lab| {
                speed::bulk(lab, target, direction, extent.bytes, 1)
                    .map_err(|error| target.explain(error))
            });
        }
        for connections in [1, 16] {
            self.step(lab, &format!("{name}: rtt c={connections}"), |lab| {
                speed::rtt(lab, target, closed(connections, extent.length))
                    .map_err(|error| target.explain(error))
            });
        }
        for connections in [1, 16, 64] {
            self.step(lab, &format!("{name}: dials c={connections}"), |lab| {
                speed::dials(lab, target, closed(connections, extent.length))
                    .map_err(|error| target.explain(error))
            });
        }
    }

    fn harm(&mut self, lab: &mut Lab, target: &mut Target) {
        let name = target.transport.as_str();
        for (who, count) in STALLS {
            self.step(lab, &format!("{name}: {who:?} ×{count} stalls"), |lab| {
                harm::stall(lab, target, who, count, STALL).map_err(|error| target.explain(error))
            });
        }
        self.step(lab, &format!("{name}: abandoned dials"), |lab| {
            harm::abandon(lab, target, ABANDONED).map_err(|error| target.explain(error))
        });
        self.step(lab, &format!("{name}: soak"), |lab| {
            harm::soak(lab, target, SOAK).map_err(|error| target.explain(error))
        });
    }
}

/// A closed loop with a short warm-up.
fn closed(connections: usize, length: Duration) -> Load {
    Load {
        connections,
        warm_up: WARM_UP,
        length,
        interval: None,
    }
}

const TRANSPORTS: [Transport; 3] = [Transport::HttpUds, Transport::HttpMtls, Transport::GrpcUds];
const MEMORY: [Transport; 2] = [Transport::HttpUds, Transport::GrpcUds];
/// None first: what the machine alone does to the others.
const STALLS: [(Stalled, usize); 5] = [
    (Stalled::Reader, 0),
    (Stalled::Reader, 1),
    (Stalled::Reader, 100),
    (Stalled::Destination, 1),
    (Stalled::Destination, 100),
];
const SPEED_STEPS: usize = 7;
const HARM_STEPS: usize = 7;
const IDLE: usize = 1000;
const ABANDONED: usize = 20;
const SOAK: usize = 10_000;
const STALL: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(200);
