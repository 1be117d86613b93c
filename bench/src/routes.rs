//! `rhizome-bench routes`: tables of many names, changed and used.
//!
//! ```text
//! profile + N names ──▶ start, memory ──▶ one more name ──▶ stalls, memory, changes a second
//! profile + each N, at once ──▶ new connections in turns, idle ones: the same as with one name?
//! ```
//!
//! Rounds go through all profiles and sizes, every other one backwards, so that a machine that gets
//! busier meanwhile does so for all.

mod figure;
mod known;
mod measure;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use testkit::netns::Place;

use self::measure::Found;
use crate::backend::Backend;
use crate::cpus::{Bound, Cpus};
use crate::output::Output;
use crate::profile::{Case, Chosen, Listener, Profile};
use crate::programs::Given;
use crate::progress::Progress;
use crate::report::Run;
use crate::tls::{network, present, seconds};
use crate::{interrupt, limits, machine};

/// Tables of many names: what they cost to load, to change and to use, beside other proxies.
#[derive(Args, Debug)]
pub(crate) struct Routes {
    #[command(flatten)]
    chosen: Chosen,
    /// Names in a table, one size after the other; what connections cost more with each is compared
    /// with the first.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 10_000])]
    names: Vec<u32>,
    /// Repetitions.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Seconds of new connections, and of changes one after the other.
    #[arg(long = "seconds", default_value = "2", value_parser = seconds)]
    length: Duration,
    /// Idle connections whose memory is measured.
    #[arg(long, default_value_t = 2000)]
    idle: usize,
    /// Binds processors, as in `proxy=0,load=1`; by default the first two that we may use.
    #[arg(long)]
    cpus: Option<Cpus>,
}

struct Lab<'a> {
    place: Place<'a>,
    backend: Backend,
    cpus: Bound,
    given: &'a [Given],
    length: Duration,
    idle: usize,
}

/// Measures what was asked for and prints it: in a network of its own as root, else on this
/// machine's loopback.
pub(crate) fn run(asked: &Routes, output: &Output) -> Result<ExitCode> {
    let sizes = &asked.names;
    ensure!(
        !sizes.is_empty() && sizes.iter().all(|names| (1..=MAX_NAMES).contains(names)),
        "--names: from 1 to {MAX_NAMES}"
    );
    limits::raise()?;
    interrupt::watch()?;
    network::inside(|place, network| measured(asked, output, place, network))
}

fn measured(asked: &Routes, output: &Output, place: Place<'_>, network: &str) -> Result<ExitCode> {
    let cpus = asked.cpus.clone().map_or_else(Cpus::apart, Ok)?;
    let cpus = cpus.bind_load()?;
    let backend = Backend::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let most = limits::proxied(limits::descriptors());
    let lab = Lab {
        place,
        backend,
        cpus,
        given: &asked.chosen.program,
        length: asked.length,
        idle: asked.idle.clamp(1, most),
    };
    let mut facts = machine::facts();
    facts.push(("processors", lab.cpus.asked().to_string()));
    facts.push(("network", network.to_owned()));
    facts.push(("idle conns", lab.idle.to_string()));
    let fits =
        |profile: &Profile| profile.supports(Listener::Sni, Case::Routes) && !profile.is_direct();
    let chosen = asked
        .chosen
        .profiles(&[Listener::Sni])?
        .into_iter()
        .filter(fits)
        .collect();
    let profiles = present(chosen, lab.given, &mut facts);
    let mut run = Run::default();
    let failures = rounds(&lab, asked, &profiles, &mut run);
    compare(&mut run, &asked.names);
    let compared = "the best of the others, in this run";
    output.finish(&mut run, facts, &failures, compared, known::known)
}

const MAX_NAMES: u32 = 100_000;

fn rounds(lab: &Lab<'_>, asked: &Routes, profiles: &[Profile], run: &mut Run) -> Vec<String> {
    let sizes = asked.names.iter();
    let tables = sizes.flat_map(|names| profiles.iter().map(|profile| (*names, profile)));
    let mut tables: Vec<(u32, &Profile)> = tables.collect();
    let mut users: Vec<&Profile> = profiles.iter().collect();
    let mut progress = Progress::new((tables.len() + users.len()) * asked.rounds);
    for _ in 0..asked.rounds {
        for (names, profile) in &tables {
            let what = format!("{}, {}: table", profile.name, case(*names));
            progress.run(&what, || {
                let mut found = Found::new();
                let measured = measure::table(lab, profile, *names, &mut found);
                keep(run, &profile.name, *names, found);
                measured
            });
        }
        for profile in &users {
            progress.run(&format!("{}: connections", profile.name), || {
                let mut each = |names, found| keep(run, &profile.name, names, found);
                measure::connections(lab, profile, &asked.names, &mut each)
            });
        }
        tables.reverse();
        users.reverse();
    }
    std::mem::take(&mut progress.failures)
}

fn keep(run: &mut Run, setup: &str, names: u32, found: Found) {
    for (figure, value) in found {
        run.add(setup, &case(names), figure, value);
    }
}

/// Adds how much more memory an idle connection has with each table than with the first, and where
/// each case is along the axis of names.
fn compare(run: &mut Run, names: &[u32]) {
    let Some((first, rest)) = names.split_first() else {
        return;
    };
    let setups: BTreeSet<String> = run.rows.iter().map(|row| row.setup.clone()).collect();
    for setup in setups {
        let median = |names: u32| run.median(&setup, &case(names), figure::IDLE);
        // Of nothing, nothing is more.
        let Some(base) = median(*first).filter(|base| *base > 0.0) else {
            continue;
        };
        let more = |names: &u32| Some((*names, (median(*names)? / base - 1.0) * 100.0));
        let found: Vec<(u32, f64)> = rest.iter().filter_map(more).collect();
        for (names, percent) in found {
            run.add(&setup, &case(names), figure::IDLE_MORE, percent);
        }
    }
    for names in names {
        for row in run.rows.iter_mut().filter(|row| row.case == case(*names)) {
            row.at = Some(("names".to_owned(), f64::from(*names)));
        }
    }
}

fn case(names: u32) -> String {
    if names == 1 {
        return "1 name".to_owned();
    }
    format!("{names} names")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_with_first_size() {
        let mut run = Run::default();
        for (names, kib) in [(1, 4.0), (1000, 4.1), (10_000, 4.4)] {
            keep(&mut run, "a", names, vec![(figure::IDLE, kib)]);
        }
        compare(&mut run, &[1, 1000, 10_000]);
        let more = |case| run.median("a", case, figure::IDLE_MORE);
        assert!((more("1000 names").unwrap() - 2.5).abs() < 1e-9);
        assert!((more("10000 names").unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(more("1 name"), None);
    }
}
