//! `rhizome-bench tunnel`: bytes and pings through tunnels, ours and others', between namespaces.
//!
//! ```text
//!   iperf3, pings ──▶ server ══ tunnel (through a gateway) ══ client ──▶ iperf3, the kernel
//!                     (the seed)   cable, or a bad line       (the shoot)
//! ```
//!
//! One tunnel runs at a time; rounds go through all of them, every other one backwards, so that a
//! machine that gets busier meanwhile does so for all.

mod args;
mod cases;
mod figure;
mod iperf;
mod known;
mod network;
mod openvpn;
mod ours;
mod ping;
mod plain;
mod running;
mod setup;
mod wireguard;

use std::io::{Write, stderr};
use std::process::ExitCode;

use anyhow::Result;
use testkit::netns::privileges::{Privileges, acquire};

use self::args::Case;
use self::cases::{Lab, fits};
use self::network::Network;
use self::setup::Setup;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::Run;
use crate::{interrupt, machine};

pub(crate) use self::args::Tunnel;

pub(crate) fn run(asked: &Tunnel, output: &Output) -> Result<ExitCode> {
    if let Privileges::Elsewhere(status) = acquire()? {
        let failed = !status.success();
        return Ok(ExitCode::from(u8::from(failed)));
    }
    interrupt::watch()?;
    let programs = asked.programs()?;
    let mut facts = machine::facts();
    facts.push(("client", machine::version(&programs.client)));
    facts.push(("server", machine::version(&programs.server)));
    facts.push(("gateway", machine::version(&programs.gateway)));
    let mut setups = Vec::new();
    for setup in asked.setups() {
        match setup.missing() {
            None => setups.push(setup),
            Some(why) => {
                let _ = writeln!(stderr(), "left out: {}: {why}", setup.name());
                facts.push(("left out", setup.name().to_owned()));
            }
        }
    }
    let mut lab = Lab {
        short: Network::lay(false)?,
        long: Network::lay(true)?,
        programs,
        run: Run::default(),
    };
    let failures = rounds(&mut lab, asked, &setups);
    let compared = "wireguard-go of Debian 13; by TCP, OpenVPN through Envoy; in this run";
    output.finish(&mut lab.run, facts, &failures, compared, known::known)
}

fn rounds(lab: &mut Lab, asked: &Tunnel, setups: &[Setup]) -> Vec<String> {
    let mut steps = Vec::new();
    for setup in setups {
        let wants = |case| asked.has(case) && fits(*setup, case);
        // Both are of one tunnel.
        let idle = [Case::Idle, Case::Bulk]
            .into_iter()
            .find(|case| wants(*case));
        let rest = [Case::Blocked, Case::Long, Case::Loss, Case::Rate];
        let rest = rest.into_iter().filter(|case| wants(*case));
        steps.extend(idle.into_iter().chain(rest).map(|case| (*setup, case)));
    }
    let mut progress = Progress::new(steps.len() * asked.rounds);
    for _ in 0..asked.rounds {
        for (setup, case) in &steps {
            let what = format!("{}: {case:?}", setup.name());
            progress.run(&what, || measure(lab, asked, *setup, *case));
        }
        steps.reverse();
    }
    std::mem::take(&mut progress.failures)
}

fn measure(lab: &mut Lab, asked: &Tunnel, setup: Setup, case: Case) -> Result<()> {
    match case {
        Case::Idle | Case::Bulk => {
            let bulk = asked.has(Case::Bulk) && fits(setup, Case::Bulk);
            lab.short(asked, setup, bulk)
        }
        Case::Blocked => lab.blocked(setup),
        Case::Long => lab.long(asked, setup, false),
        Case::Loss => lab.long(asked, setup, true),
        Case::Rate => lab.rates(asked, setup),
    }
}
