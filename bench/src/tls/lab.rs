//! One case of one profile: starts both ends and what is between, measures, and adds the figures.
//!
//! ```text
//! Profile ─▶ backend ─▶ target ─▶ load (again, if other processes used the processors) ─▶ samples
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
use super::{conns, idle, rtt};
use crate::backend::{Backend, Command};
use crate::cpus::{Bound, Role, bind};
use crate::latency::Latencies;
use crate::profile::{Case, Listener, Profile, Route, Setting, Target};
use crate::programs::Given;
use crate::samples::{Figure, Samples};

/// What all cases have in common, and what was found.
pub(crate) struct Lab<'a> {
    pub(crate) asked: &'a Tls,
    pub(crate) place: Place<'a>,
    pub(crate) cpus: &'a Bound,
    pub(crate) given: &'a Given,
    pub(crate) samples: Samples,
    pub(crate) disturbed: Vec<String>,
}

/// A profile behind one of its listeners.
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
            target: &target,
            opening: &opening,
            backend: &backend,
            meter: Meter::of(&target),
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
            given: self.given,
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
        let words = vec![through.opening.canned(Command::Echo, b"!")];
        let what = format!("{CONNS} ×{}", self.asked.in_flight);
        let case = self.case(through.subject, &what);
        let outcome = self.undisturbed(
            through.setup(),
            &case,
            || conns::run(through.address(), words.clone(), load, &through.meter),
            |outcome| &outcome.spent,
        )?;
        self.operations(through.setup(), &case, outcome.done, &outcome.spent);
        self.add(through, &case, of::FAILED, outcome.failed as f64);
        self.latencies(through.setup(), &case, &outcome.latencies)
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
                let what = format!("bulk {name} ×{connections}");
                let case = self.case(through.subject, &what);
                let outcome = self.undisturbed(
                    through.setup(),
                    &case,
                    || {
                        let (opening, backend) = (through.opening, through.backend);
                        bulk::run(through.address(), opening, backend, load, &through.meter)
                    },
                    |outcome| &outcome.spent,
                )?;
                let (bytes, spent) = (outcome.bytes as f64, &outcome.spent);
                let rate = bytes * 8.0 / 1e9 / spent.wall.as_secs_f64();
                self.add(through, &case, of::THROUGHPUT, rate);
                if let Some(cpu) = spent.proxy {
                    let each = cpu.as_secs_f64() / (bytes / 1e9);
                    self.add(through, &case, of::CPU_PER_GB, each);
                }
                let all = spent.machine.as_secs_f64() / (bytes / 1e9);
                self.add(through, &case, of::ALL_CPU_PER_GB, all);
                self.busy(through, &case, of::PROXY_BUSY, spent);
            }
        }
        Ok(())
    }

    fn rtt(&mut self, through: &Through<'_>) -> Result<()> {
        let processor = self.cpus.of(Role::Proxy).filter(|cpus| cpus.len() == 1);
        let load = self.cpus.of(Role::Load);
        if let (Some(one), Some(load)) = (processor, load) {
            bind(None, one)?;
            through.backend.bind(one)?;
            let done = self.round_trips(through, ONE_CPU);
            bind(None, load)?;
            through.backend.bind(load)?;
            done?;
        }
        self.round_trips(through, "rtt")
    }

    fn round_trips(&mut self, through: &Through<'_>, what: &str) -> Result<()> {
        let (warm_up, length) = (self.asked.warm_up, self.asked.length);
        let case = self.case(through.subject, what);
        let outcome = self.undisturbed(
            through.setup(),
            &case,
            || {
                let opening = through.opening;
                rtt::run(through.address(), opening, warm_up, length, &through.meter)
            },
            |outcome| &outcome.spent,
        )?;
        let count = outcome.latencies.count();
        self.operations(through.setup(), &case, count, &outcome.spent);
        self.latencies(through.setup(), &case, &outcome.latencies)
    }

    fn idle(&mut self, through: &Through<'_>) -> Result<()> {
        let count = self.asked.idle();
        let case = self.case(through.subject, &format!("idle ×{count}"));
        let (opening, backend) = (through.opening, through.backend);
        let outcome = idle::run(through.address(), opening, backend, count, &through.meter)?;
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
    fn case(&self, subject: Subject<'_>, what: &str) -> String {
        let names = match self.asked.names {
            1 => String::new(),
            names => format!(", {names} names"),
        };
        format!("{} {what}{names}", subject.listener.as_str())
    }

    /// Runs once, and once more if other processes used too much of the processors; of two that were
    /// disturbed the better one counts, and is told about.
    fn undisturbed<T>(
        &mut self,
        setup: &str,
        case: &str,
        mut run: impl FnMut() -> Result<T>,
        spent: impl Fn(&T) -> &Spent,
    ) -> Result<T> {
        let first = run()?;
        if !spent(&first).is_disturbed() {
            return Ok(first);
        }
        let second = run()?;
        if !spent(&second).is_disturbed() {
            return Ok(second);
        }
        let better = if spent(&second).others < spent(&first).others {
            second
        } else {
            first
        };
        let percent = spent(&better).others * 100.0;
        self.disturbed
            .push(format!("{setup}: {case} ({percent:.0} %)"));
        Ok(better)
    }

    fn operations(&mut self, setup: &str, case: &str, done: u64, spent: &Spent) {
        let done = done as f64;
        let mut add = |figure, value| self.samples.add(setup, case, figure, value);
        add(of::PER_SECOND, done / spent.wall.as_secs_f64());
        if let Some(cpu) = spent.proxy {
            add(of::CPU_EACH, cpu.as_secs_f64() * 1e6 / done);
        }
        add(of::ALL_CPU_EACH, spent.machine.as_secs_f64() * 1e6 / done);
        if let Some(percent) = spent.proxy_percent() {
            add(of::PROXY_BUSY, percent);
        }
    }

    fn latencies(&mut self, setup: &str, case: &str, latencies: &Latencies) -> Result<()> {
        let figures = [of::P50, of::P99, of::MAX];
        self.samples
            .add_quantiles(setup, case, figures, 1e6, latencies);
        self.samples.add_latencies(setup, case, latencies)
    }

    fn busy(&mut self, through: &Through<'_>, case: &str, figure: Figure, spent: &Spent) {
        if let Some(percent) = spent.proxy_percent() {
            self.add(through, case, figure, percent);
        }
    }

    fn add(&mut self, through: &Through<'_>, case: &str, figure: Figure, value: f64) {
        self.samples.add(through.setup(), case, figure, value);
    }
}

/// Both ends and what is between.
struct Through<'a> {
    subject: Subject<'a>,
    target: &'a Target,
    opening: &'a Opening,
    backend: &'a Backend,
    meter: Meter,
}

impl Through<'_> {
    fn address(&self) -> SocketAddr {
        self.target.address()
    }

    fn setup(&self) -> &str {
        &self.subject.profile.name
    }
}
