//! `rhizome-bench konnectivity`: load through a konnectivity server and its agent.
//!
//! ```text
//! load ──▶ frontend (HTTP CONNECT or gRPC, UNIX socket or TLS) ──▶ server ──▶ agent ──▶ destination
//!
//! fresh pairs          ──▶ memory
//! one pair a transport ──▶ rounds: direct, http-uds, http-mtls, grpc-uds, and back ──▶ speed
//!                      ──▶ stalled tunnels, abandoned dials, very many dials
//! ```
//!
//! Rounds are interleaved, and every other one runs backwards, so that a machine that gets busier
//! meanwhile does so for all.

mod frontend;
mod grpc;
mod known;
mod load;
mod pair;
mod scenario;
mod tunnel;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::frontend::Transport;
use self::load::Load;
use self::pair::Programs;
pub(crate) use self::scenario::figure::UNANSWERED;
use self::scenario::harm::{self, Port, Stalled};
use self::scenario::{Lab, Target, memory, speed};
use crate::cpus::{Bound, Cpus};
use crate::machine;
use crate::output::Output;
use crate::programs::{program, value_name};
use crate::progress::Progress;
use crate::report::Run;
use crate::tls::bulk::Direction;

/// Load through a konnectivity server and its agent, which are started for it: everything a pair is held to,
/// through three transports, in about three minutes.
#[derive(Args, Debug)]
pub(crate) struct Konnectivity {
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Transports to measure, besides none.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = TRANSPORTS)]
    transport: Vec<Transport>,
    /// MiB of a transfer.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Milliseconds of one run of round trips or dials.
    #[arg(long, default_value_t = 1000)]
    millis: u64,
    /// Repetitions of what is fast.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The server's program; by default the one beside this program.
    #[arg(long)]
    server: Option<PathBuf>,
    /// The agent's program; by default the one beside this program.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// More flags for the server, separated by blanks.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    server_args: String,
    /// More flags for the agent, separated by blanks.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    agent_args: String,
    /// Processors to run on, as in `server=0,agent=0,load=1`; several are joined by `+`.
    #[arg(long)]
    cpus: Option<Cpus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Memory of idle tunnels.
    Idle,
    /// Throughput, round trips, dials.
    Speed,
    /// Stalled tunnels, abandoned dials, ten thousand dials.
    Harm,
}

pub(crate) fn run(asked: &Konnectivity, output: &Output) -> Result<ExitCode> {
    let cpus = asked.cpus.clone().unwrap_or_default().bind_load()?;
    let mut facts = machine::facts();
    facts.push(("processors", cpus.asked().to_string()));
    let mut lab = Lab::new()?;
    let programs = asked.programs(cpus)?;
    facts.push(("server", machine::version(&programs.server)));
    facts.push(("agent", machine::version(&programs.agent)));
    let failures = measure(&mut lab, &programs, asked)?;
    output.finish(&mut lab.run, facts, &failures, "", known::known)
}

/// Measures what floods of an agent do to others, over a UNIX socket; of none first, to compare.
/// Then what strangers cost at the server's ports.
pub(crate) fn floods(
    server: Option<&PathBuf>,
    agent: Option<&PathBuf>,
    cpus: Bound,
) -> Result<Run> {
    let mut lab = Lab::new()?;
    let programs = Programs {
        agent: program(agent, "konnectivity-agent")?,
        agent_args: Vec::new(),
        cpus,
        server: program(server, "konnectivity-server")?,
        server_args: Vec::new(),
    };
    let target = Target::start(&programs, Transport::HttpUds)?;
    let work = harm::stall(&mut lab, &target, Stalled::Reader, 0, STALL)
        .and_then(|()| harm::flood(&mut lab, &target, false, STALL))
        .and_then(|()| harm::flood(&mut lab, &target, true, STALL));
    work.map_err(|error| target.explain(error))?;
    for (port, transport) in [
        (Port::Agents, Transport::HttpUds),
        (Port::ApiServers, Transport::HttpMtls),
    ] {
        for halves in 0..=2 {
            let target = Target::start(&programs, transport)?;
            harm::strangers(&mut lab, &target, port, halves, STRANGERS)
                .map_err(|error| target.explain(error))?;
        }
    }
    Ok(lab.run)
}

impl Konnectivity {
    fn has(&self, case: Case) -> bool {
        self.cases.is_empty() || self.cases.contains(&case)
    }

    fn programs(&self, cpus: Bound) -> Result<Programs> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Ok(Programs {
            agent: program(self.agent.as_ref(), "konnectivity-agent")?,
            agent_args: words(&self.agent_args),
            cpus,
            server: program(self.server.as_ref(), "konnectivity-server")?,
            server_args: words(&self.server_args),
        })
    }

    fn steps(&self) -> usize {
        let transports = self.transport.len();
        let count = |case, steps| if self.has(case) { steps } else { 0 };
        count(Case::Idle, transports)
            + count(Case::Speed, (transports + 1) * self.rounds * SPEED_STEPS)
            + count(Case::Harm, transports * HARM_STEPS)
    }
}

fn measure(lab: &mut Lab, programs: &Programs, asked: &Konnectivity) -> Result<Vec<String>> {
    let mut progress = Progress::new(asked.steps());
    if asked.has(Case::Idle) {
        for transport in &asked.transport {
            progress.run(&format!("{}: memory", value_name(*transport)), || {
                let target = Target::start(programs, *transport)?;
                memory::idle(lab, &target, IDLE).map_err(|error| target.explain(error))
            });
        }
    }
    if !asked.has(Case::Speed) && !asked.has(Case::Harm) {
        return Ok(std::mem::take(&mut progress.failures));
    }
    let mut targets = vec![Target::direct()];
    for transport in &asked.transport {
        targets.push(Target::start(programs, *transport)?);
    }
    for round in 0..asked.rounds {
        let mut order: Vec<&Target> = targets.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for target in order.into_iter().filter(|_| asked.has(Case::Speed)) {
            speed(&mut progress, lab, target, asked);
        }
    }
    for target in targets.iter_mut().skip(1).filter(|_| asked.has(Case::Harm)) {
        harm(&mut progress, lab, target);
    }
    Ok(std::mem::take(&mut progress.failures))
}

fn speed(progress: &mut Progress, lab: &mut Lab, target: &Target, asked: &Konnectivity) {
    let load = |connections| Load {
        connections,
        warm_up: WARM_UP,
        length: Duration::from_millis(asked.millis),
        interval: None,
    };
    let mut step = |what: String, work: &dyn Fn(&mut Lab) -> Result<()>| {
        let what = format!("{}: {what}", value_name(target.transport));
        progress.run(&what, || work(lab).map_err(|error| target.explain(error)));
    };
    for direction in [Direction::Down, Direction::Up] {
        step(format!("{direction:?}"), &|lab| {
            speed::bulk(lab, target, direction, asked.mib << 20, 1)
        });
    }
    for connections in [1, 16] {
        step(format!("rtt c={connections}"), &|lab| {
            speed::rtt(lab, target, load(connections))
        });
    }
    for connections in [1, 16, 64] {
        step(format!("dials c={connections}"), &|lab| {
            speed::dials(lab, target, load(connections))
        });
    }
}

fn harm(progress: &mut Progress, lab: &mut Lab, target: &mut Target) {
    type Work = fn(&mut Lab, &mut Target) -> Result<()>;
    let name = value_name(target.transport);
    for (stalled, count) in STALLS {
        progress.run(&format!("{name}: {stalled:?} ×{count} stalls"), || {
            harm::stall(lab, target, stalled, count, STALL).map_err(|error| target.explain(error))
        });
    }
    let rest: [(&str, Work); 2] = [
        ("abandoned dials", |lab, target| {
            harm::abandon(lab, target, ABANDONED)
        }),
        ("soak", |lab, target| harm::soak(lab, target, SOAK)),
    ];
    for (what, work) in rest {
        progress.run(&format!("{name}: {what}"), || {
            work(lab, target).map_err(|error| target.explain(error))
        });
    }
}

const TRANSPORTS: [Transport; 3] = [Transport::HttpUds, Transport::HttpMtls, Transport::GrpcUds];
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
/// Fewer than one source may hold, if 20,000 files may be open.
const STRANGERS: u32 = 1000;
const WARM_UP: Duration = Duration::from_millis(200);
