//! Throughput, round trips and dials, with the CPU time they take.

use anyhow::Result;

use super::figure as of;
use super::{Lab, MIB, Target};
use crate::konnectivity::load::{self, Load, Outcome};
use crate::tls::bulk::Direction;

pub(crate) fn bulk(
    lab: &mut Lab,
    target: &Target,
    direction: Direction,
    bytes: u64,
    streams: usize,
) -> Result<()> {
    let word = format!("{direction:?}").to_lowercase();
    let address = lab.backend.address();
    let before = target.usage()?;
    let work = load::bulk(&target.frontend, address, direction, bytes, streams);
    let took = lab.runtime.block_on(work)?;
    let used = target.usage()?.cpu_since(&before);
    let mib = bytes as f64 * streams as f64 / MIB;
    let case = format!("{word} ×{streams}");
    lab.add(target, &case, of::THROUGHPUT, mib / took.as_secs_f64());
    let used = used.map(|seconds| seconds / (mib / 1024.0));
    lab.add_some(target, &case, of::CPU_PER_GIB, used);
    Ok(())
}

pub(crate) fn rtt(lab: &mut Lab, target: &Target, load: Load) -> Result<()> {
    let echo = lab.backend.address();
    let before = target.usage()?;
    let work = load::pings(&target.frontend, echo, load);
    let outcome = lab.runtime.block_on(work)?;
    add(lab, target, &named("rtt", load), &outcome, &before)
}

pub(crate) fn dials(lab: &mut Lab, target: &Target, load: Load) -> Result<()> {
    let echo = lab.backend.address();
    let before = target.usage()?;
    let work = load::dials(&target.frontend, echo, load);
    let outcome = lab.runtime.block_on(work)?;
    add(lab, target, &named("dials", load), &outcome, &before)
}

fn named(word: &str, load: Load) -> String {
    let connections = load.connections;
    match load.interval {
        None => format!("{word} c={connections}"),
        Some(interval) => {
            let rate = connections as f64 / interval.as_secs_f64();
            format!("{word} c={connections} at {rate:.0}/s")
        }
    }
}

fn add(
    lab: &mut Lab,
    target: &Target,
    case: &str,
    outcome: &Outcome,
    before: &super::Usages,
) -> Result<()> {
    let used = target.usage()?.cpu_since(before);
    lab.add(target, case, of::PER_SECOND, outcome.rate());
    let latencies = &outcome.latencies;
    let figures = [of::P50, of::P99, of::MAX];
    lab.add_latencies(target, (case, None), figures, latencies);
    // The warm-up's operations take CPU time as well.
    let each = used.map(|seconds| seconds * 1e6 / outcome.all.max(1) as f64);
    lab.add_some(target, case, of::CPU_EACH, each);
    if outcome.unanswered > 0 {
        lab.add(target, case, of::UNANSWERED, outcome.unanswered as f64);
    }
    Ok(())
}
