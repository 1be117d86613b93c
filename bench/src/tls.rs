//! `rhizome-bench tls`: load through gateways that pass TLS through, ours and others'.
//!
//! ```text
//!   load ──ClientHello, PROXY header or CONNECT──▶ gateway ──▶ backend
//!   (one processor)                                (another)   (the load's)
//! ```
//!
//! One gateway runs at a time; rounds go through all of them, every other one backwards, so that a
//! machine that gets busier meanwhile does so for all. The memory of idle connections does not depend
//! on the load: it is measured in the first round alone. No side does any cryptography: what is
//! measured is the gateway.

mod args;
pub(crate) mod bulk;
pub(crate) mod conns;
pub(crate) mod figure;
pub(crate) mod idle;
mod known;
mod lab;
pub(crate) mod network;
pub(crate) mod opening;
mod rtt;
pub(crate) mod sheet;
pub(crate) mod trial;
pub(crate) mod window;

#[cfg(test)]
mod tests;

use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use testkit::netns::Place;
use tokio::runtime::Runtime;

use self::lab::{Lab, Subject};
use self::opening::Opening;
use self::sheet::Sheet;
use self::window::Meter;
use crate::backend::Backend;
use crate::machine::Facts;
use crate::output::Output;
use crate::profile::{Case, Listener, Profile};
use crate::programs::{Given, value_name};
use crate::progress::Progress;
use crate::{interrupt, limits, machine};

pub(crate) use self::args::{Tls, seconds};

/// Measures what was asked for and prints it: in a network of its own as root, else, or when a
/// gateway runs already, on this machine's loopback.
pub(crate) fn run(asked: &Tls, output: &Output) -> Result<ExitCode> {
    asked.check()?;
    limits::raise()?;
    interrupt::watch()?;
    if asked.at.is_some() {
        let network = "this machine's, as the gateway's";
        return measured(asked, output, Place::Here, network);
    }
    network::inside(|place, network| measured(asked, output, place, network))
}

/// What load goes through: where it is dialed, what is said there, and the other end.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) opening: &'a Opening,
    pub(crate) backend: &'a Backend,
    pub(crate) meter: &'a Meter,
}

pub(crate) fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("starting a runtime")
}

fn measured(asked: &Tls, output: &Output, place: Place<'_>, network: &str) -> Result<ExitCode> {
    // Before the load is bound, and finds one processor.
    let mut facts = machine::facts();
    let cpus = asked.cpus()?.bind_load()?;
    facts.push(("processors", cpus.asked().to_string()));
    facts.push(("network", network.to_owned()));
    facts.push(("idle conns", asked.idle().to_string()));
    let profiles = present(asked.profiles()?, &asked.chosen.program, &mut facts);
    let mut lab = Lab {
        asked,
        place,
        cpus: &cpus,
        sheet: Sheet::default(),
    };
    let failures = rounds(&mut lab, &profiles);
    lab.sheet.finish(output, facts, &failures, known::known)
}

/// Returns those of `profiles` whose programs are there; tells of the others.
pub(crate) fn present(profiles: Vec<Profile>, given: &[Given], facts: &mut Facts) -> Vec<Profile> {
    let (mut here, mut versions, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for profile in profiles {
        match profile.binary(given) {
            Ok(_) => {
                if let Some(version) = profile.version(given) {
                    versions.push(format!("{}: {version}", profile.name));
                }
                here.push(profile);
            }
            Err(error) => {
                let _ = writeln!(stderr(), "left out: {}: {error:#}", profile.name);
                missing.push(profile.name);
            }
        }
    }
    facts.push(("versions", versions.join("; ")));
    if !missing.is_empty() {
        facts.push(("left out", missing.join(", ")));
    }
    here
}

fn rounds(lab: &mut Lab<'_>, profiles: &[Profile]) -> Vec<String> {
    let mut steps = steps(&lab.asked.listener, &lab.asked.cases(), profiles);
    let later = steps.iter().filter(|(_, case)| *case != Case::Idle).count();
    let mut progress = Progress::new(steps.len() + later * lab.asked.rounds.saturating_sub(1));
    for _ in 0..lab.asked.rounds {
        for (subject, case) in &steps {
            let (name, listener) = (&subject.profile.name, value_name(subject.listener));
            let what = format!("{name}: {listener} {case:?}");
            progress.run(&what, || lab.measure(*subject, *case));
        }
        steps.retain(|(_, case)| *case != Case::Idle);
        steps.reverse();
    }
    std::mem::take(&mut progress.failures)
}

/// Returns what to measure of whom, all profiles of one case in a row.
fn steps<'a>(
    listeners: &[Listener],
    cases: &[Case],
    profiles: &'a [Profile],
) -> Vec<(Subject<'a>, Case)> {
    let mut steps = Vec::new();
    for &listener in listeners {
        for &case in cases {
            let able = profiles.iter().filter(|one| one.supports(listener, case));
            steps.extend(able.map(|profile| (Subject { profile, listener }, case)));
        }
    }
    steps
}
