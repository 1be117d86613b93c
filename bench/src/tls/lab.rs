//! One case of one profile: starts both ends and what is between, measures, and adds the figures.
//!
//! ```text
//! Profile ─▶ backend ─▶ target ─▶ load (again, if other processes used the processors) ─▶ run
//! ```
//!
//! Everything is started anew for each, so that no case inherits another's memory.

use std::net::SocketAddr;

use anyhow::Result;
use testkit::netns::Place;

use super::args::Tls;
use super::bulk::{self, Direction};
use super::figure as of;
use super::known::{CONNS, ONE_CPU};
use super::opening::Opening;
use super::window::{Meter, Spent};
use super::{Way, conns, idle, rtt};
use crate::backend::{Backend, Command};
use crate::cpus::{Bound, Role, bind};
use crate::latency::Latencies;
use crate::profile::{Case, Listener, Profile, Route, Setting, Target};
use crate::programs::value_name;
use crate::report::{Figure, Run};

pub(crate) struct Lab<'a> {
    pub(crate) asked: &'a Tls,
    pub(crate) place: Place<'a>,
    pub(crate) cpus: &'a Bound,
    pub(crate) run: Run,
    pub(crate) disturbed: Vec<String>,
}

#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) listener: Listener,
}

impl Lab<'_> {
    pub(crate) fn measure(&mut self, subject: Subject<'_>, case: Case) -> Result<()> {
        let backend = Backend::start(self.asked.backend())?;
        let (target, route) = self.start(subject, backend.address())?;
        let opening = self.opening(subject, &route);
        let through = Through {
            subject,
            way: Way {
                address: target.address(),
                opening: &opening,
                backend: &backend,
                meter: &Meter::of(&target),
            },
        };
        match case {
            Case::Bulk => self.bulk(&through),
            Case::Conns => self.conns(&through),
            Case::Idle => self.idle(&through),
            Case::Rtt => self.rtt(&through),
            // Another subcommand's.
            Case::Routes => Ok(()),
        }
        .map_err(|error| target.explain(error))
    }

    fn start(&self, subject: Subject<'_>, backend: SocketAddr) -> Result<(Target, Route)> {
        let (routes, asked) = self.asked.routes(backend);
        let setting = Setting {
            place: self.place,
            cpus: self.cpus,
            given: &self.asked.chosen.program,
            listener: subject.listener,
            routes,
        };
        Ok((Target::start(subject.profile, &setting)?, asked))
    }

    fn opening(&self, subject: Subject<'_>, route: &Route) -> Opening {
        let between = !subject.profile.is_direct();
        let listener = between.then_some(subject.listener);
        Opening::new(listener, route, self.asked.post_quantum)
    }

    fn conns(&mut self, through: &Through<'_>) -> Result<()> {
        let load = conns::Load {
            in_flight: self.asked.in_flight,
            warm_up: self.asked.warm_up,
            length: self.asked.length,
        };
        let words = vec![through.way.opening.canned(Command::Echo, b"!")];
        let case = self.case(through, &format!("{CONNS} ×{}", load.in_flight));
        let (found, spent) = self.undisturbed(through, &case, || {
            conns::run(through.way.address, words.clone(), load, through.way.meter)
        })?;
        self.operations(through, &case, found.done, &spent);
        self.add(through, &case, of::FAILED, found.failed as f64);
        self.latencies(through, &case, &found.latencies);
        Ok(())
    }

    fn bulk(&mut self, through: &Through<'_>) -> Result<()> {
        for connections in self.asked.connections.clone() {
            for (name, direction) in [("down", Direction::Down), ("up", Direction::Up)] {
                let load = bulk::Load {
                    connections,
                    direction,
                    warm_up: self.asked.warm_up,
                    length: self.asked.length,
                };
                let case = self.case(through, &format!("bulk {name} ×{connections}"));
                let (bytes, spent) =
                    self.undisturbed(through, &case, || bulk::run(through.way, load))?;
                let gigabytes = bytes as f64 / 1e9;
                let rate = gigabytes * 8.0 / spent.wall.as_secs_f64();
                self.add(through, &case, of::THROUGHPUT, rate);
                if let Some(cpu) = spent.proxy {
                    let each = cpu.as_secs_f64() / gigabytes;
                    self.add(through, &case, of::CPU_PER_GB, each);
                }
                let all = spent.machine.as_secs_f64() / gigabytes;
                self.add(through, &case, of::ALL_CPU_PER_GB, all);
                self.busy(through, &case, of::PROXY_BUSY, &spent);
            }
        }
        Ok(())
    }

    fn rtt(&mut self, through: &Through<'_>) -> Result<()> {
        let processor = self.cpus.of(Role::Proxy).filter(|cpus| cpus.len() == 1);
        let load = self.cpus.of(Role::Load);
        if let (Some(one), Some(load)) = (processor, load) {
            bind(None, one)?;
            through.way.backend.bind(one)?;
            let done = self.round_trips(through, ONE_CPU);
            bind(None, load)?;
            through.way.backend.bind(load)?;
            done?;
        }
        self.round_trips(through, "rtt")
    }

    fn round_trips(&mut self, through: &Through<'_>, what: &str) -> Result<()> {
        let (warm_up, length) = (self.asked.warm_up, self.asked.length);
        let case = self.case(through, what);
        let (latencies, spent) =
            self.undisturbed(through, &case, || rtt::run(through.way, warm_up, length))?;
        self.operations(through, &case, latencies.count(), &spent);
        self.latencies(through, &case, &latencies);
        Ok(())
    }

    fn idle(&mut self, through: &Through<'_>) -> Result<()> {
        let count = self.asked.idle();
        let case = self.case(through, &format!("idle ×{count}"));
        let outcome = idle::run(through.way, count)?;
        let count = outcome.count as f64;
        self.add(through, &case, of::EMPTY, outcome.before / 1024.0);
        self.add(through, &case, of::HELD, outcome.held / 1024.0);
        let each = |resident: f64| (resident - outcome.before) / count;
        self.add(through, &case, of::PER_CONNECTION, each(outcome.held));
        self.add(through, &case, of::KEPT, each(outcome.after));
        self.busy(through, &case, of::IDLE_BUSY, &outcome.idle);
        Ok(())
    }

    /// Names a case: the listener first, the size of the table last.
    fn case(&self, through: &Through<'_>, what: &str) -> String {
        let names = match self.asked.names {
            1 => String::new(),
            names => format!(", {names} names"),
        };
        format!("{} {what}{names}", value_name(through.subject.listener))
    }

    /// Runs once, and once more if other processes used too much of the processors; of two that were
    /// disturbed the better one counts, and is told about.
    fn undisturbed<T>(
        &mut self,
        through: &Through<'_>,
        case: &str,
        mut run: impl FnMut() -> Result<(T, Spent)>,
    ) -> Result<(T, Spent)> {
        let first = run()?;
        if !first.1.is_disturbed() {
            return Ok(first);
        }
        let second = run()?;
        let improved = second.1.others < first.1.others;
        let better = if improved { second } else { first };
        if better.1.is_disturbed() {
            let (setup, percent) = (through.setup(), better.1.others * 100.0);
            self.disturbed
                .push(format!("{setup}: {case} ({percent:.0} %)"));
        }
        Ok(better)
    }

    fn operations(&mut self, through: &Through<'_>, case: &str, done: u64, spent: &Spent) {
        let done = done as f64;
        let rate = done / spent.wall.as_secs_f64();
        self.add(through, case, of::PER_SECOND, rate);
        if let Some(cpu) = spent.proxy {
            let each = cpu.as_secs_f64() * 1e6 / done;
            self.add(through, case, of::CPU_EACH, each);
        }
        let each = spent.machine.as_secs_f64() * 1e6 / done;
        self.add(through, case, of::ALL_CPU_EACH, each);
        self.busy(through, case, of::PROXY_BUSY, spent);
    }

    fn latencies(&mut self, through: &Through<'_>, case: &str, latencies: &Latencies) {
        let (setup, figures) = (through.setup(), [of::P50, of::P99, of::MAX]);
        self.run
            .add_latencies(setup, (case, None), figures, 1e6, latencies);
    }

    fn busy(&mut self, through: &Through<'_>, case: &str, figure: Figure, spent: &Spent) {
        if let Some(percent) = spent.proxy_percent() {
            self.add(through, case, figure, percent);
        }
    }

    fn add(&mut self, through: &Through<'_>, case: &str, figure: Figure, value: f64) {
        self.run.add(through.setup(), case, figure, value);
    }
}

struct Through<'a> {
    subject: Subject<'a>,
    way: Way<'a>,
}

impl Through<'_> {
    fn setup(&self) -> &str {
        &self.subject.profile.name
    }
}
