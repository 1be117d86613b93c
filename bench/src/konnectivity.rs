//! `rhizome-bench konnectivity`: load through a konnectivity server and its agent.
//!
//! ```text
//! load ──▶ frontend (HTTP CONNECT or gRPC, UNIX socket or TLS) ──▶ server ──▶ agent ──▶ destination
//! ```

mod args;
mod credentials;
mod frontend;
mod grpc;
mod known;
mod load;
mod pair;
mod scenario;
mod side;
mod suite;
mod tunnel;

#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use self::args::{Common, What};
use self::frontend::Transport;
use self::load::Direction;
use self::scenario::{Lab, Target, harm, memory, speed};
use self::side::Side;
use self::suite::Extent;
use crate::cpus::Bound;
use crate::machine;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::Run;

pub(crate) use self::args::Konnectivity;

/// Measures what was asked for and prints it.
///
/// # Errors
/// When something cannot be started or measured.
pub(crate) fn run(asked: &Konnectivity, output: &Output) -> Result<ExitCode> {
    let common = &asked.common;
    let cpus = common.cpus().bind_load()?;
    let mut facts = machine::facts();
    facts.push(("processors", cpus.asked().to_string()));
    let mut lab = Lab::new(common.destination)?;
    let failures = match asked.what {
        What::Suite { mib, millis } => {
            let programs = common.programs(cpus)?;
            facts.push(("server", machine::version(&programs.server)));
            facts.push(("agent", machine::version(&programs.agent)));
            let extent = Extent {
                bytes: mib << 20,
                rounds: common.rounds,
                length: Duration::from_millis(millis),
            };
            suite::run(&mut lab, &programs, extent)?
        }
        what @ (What::Abandon { .. }
        | What::Dials(_)
        | What::Down(_)
        | What::Idle { .. }
        | What::Rtt(_)
        | What::Soak { .. }
        | What::Stall { .. }
        | What::Up(_)) => {
            single(&mut lab, common, what, &cpus)?;
            Vec::new()
        }
    };
    facts.push(("load after", machine::load_average()));
    let run = Run::new(&lab.samples, &facts, known::RECORDED_OF, known::known);
    output.deliver(&run, &failures)
}

/// Runs one scenario through each transport, over and over.
fn single(lab: &mut Lab, common: &Common, what: What, cpus: &Bound) -> Result<()> {
    let default = match what {
        // These say nothing without a proxy.
        What::Abandon { .. } | What::Idle { .. } | What::Soak { .. } => &[Transport::HttpUds][..],
        What::Dials(_)
        | What::Down(_)
        | What::Rtt(_)
        | What::Stall { .. }
        | What::Suite { .. }
        | What::Up(_) => &[Transport::Direct, Transport::HttpUds][..],
    };
    let transports = common.transports(default);
    let fresh = matches!(what, What::Idle { .. });
    let mut progress = Progress::new(common.rounds * transports.len());
    let mut targets = Vec::new();
    for round in 0..common.rounds {
        for (nth, transport) in transports.iter().enumerate() {
            progress.step(transport.as_str());
            if round == 0 || fresh {
                targets.truncate(nth);
                targets.push(target(common, *transport, cpus)?);
            }
            if let Some(target) = targets.get_mut(nth) {
                measure(lab, target, what).map_err(|error| target.explain(error))?;
            }
        }
        if fresh {
            targets.clear();
        }
    }
    Ok(())
}

fn target(common: &Common, transport: Transport, cpus: &Bound) -> Result<Target> {
    if transport == Transport::Direct {
        return Ok(Target::direct());
    }
    let Some(frontend) = common.running(transport)? else {
        return Target::start(&common.programs(cpus.clone())?, transport);
    };
    Ok(Target {
        transport,
        frontend,
        server: Side::new(common.server_pid, common.server_metrics),
        agent: Side::new(common.agent_pid, common.agent_metrics),
        pair: None,
    })
}

fn measure(lab: &mut Lab, target: &mut Target, what: What) -> Result<()> {
    match what {
        What::Abandon { count } => harm::abandon(lab, target, count),
        What::Dials(pace) => speed::dials(lab, target, pace.load()?),
        What::Down(bulk) => speed::bulk(lab, target, Direction::Down, bulk.mib << 20, bulk.streams),
        What::Idle { count } => memory::idle(lab, target, count),
        What::Rtt(pace) => speed::rtt(lab, target, pace.load()?),
        What::Soak { count } => harm::soak(lab, target, count),
        What::Stall {
            who,
            count,
            seconds,
        } => harm::stall(lab, target, who, count, Duration::from_secs(seconds)),
        // Has targets of its own.
        What::Suite { .. } => Ok(()),
        What::Up(bulk) => speed::bulk(lab, target, Direction::Up, bulk.mib << 20, bulk.streams),
    }
}
