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
use super::sheet::Sheet;
use super::window::Meter;
use super::{Way, conns, idle, rtt};
use crate::backend::{Backend, Command};
use crate::cpus::{Bound, Role, bind};
use crate::profile::{Case, Listener, Profile, Route, Setting, Target};
use crate::programs::value_name;

pub(crate) struct Lab<'a> {
    pub(crate) asked: &'a Tls,
    pub(crate) place: Place<'a>,
    pub(crate) cpus: &'a Bound,
    pub(crate) sheet: Sheet,
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
        let (found, spent) = self.sheet.undisturbed(through.setup(), &case, || {
            conns::run(through.way.address, words.clone(), load, through.way.meter)
        })?;
        self.sheet
            .operations(through.setup(), &case, found.done, &spent);
        self.sheet
            .add(through.setup(), &case, of::FAILED, found.failed as f64);
        self.sheet
            .latencies(through.setup(), &case, &found.latencies);
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
                let (bytes, spent) = self
                    .sheet
                    .undisturbed(through.setup(), &case, || bulk::run(through.way, load))?;
                self.sheet.bytes(through.setup(), &case, bytes, &spent);
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
        let (latencies, spent) = self.sheet.undisturbed(through.setup(), &case, || {
            rtt::run(through.way, warm_up, length)
        })?;
        self.sheet
            .operations(through.setup(), &case, latencies.count(), &spent);
        self.sheet.latencies(through.setup(), &case, &latencies);
        Ok(())
    }

    fn idle(&mut self, through: &Through<'_>) -> Result<()> {
        let count = self.asked.idle();
        let case = self.case(through, &format!("idle ×{count}"));
        let outcome = idle::run(through.way, count)?;
        let count = outcome.count as f64;
        self.sheet
            .add(through.setup(), &case, of::EMPTY, outcome.before / 1024.0);
        self.sheet
            .add(through.setup(), &case, of::HELD, outcome.held / 1024.0);
        let each = |resident: f64| (resident - outcome.before) / count;
        self.sheet.add(
            through.setup(),
            &case,
            of::PER_CONNECTION,
            each(outcome.held),
        );
        self.sheet
            .add(through.setup(), &case, of::KEPT, each(outcome.after));
        self.sheet
            .busy(through.setup(), &case, of::IDLE_BUSY, &outcome.idle);
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
