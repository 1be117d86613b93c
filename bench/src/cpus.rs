//! Which processors the load and the programs under test may run on.
//!
//! Our own threads are bound before any other is started; programs are started through `taskset`
//! (util-linux), so that they find themselves bound when they count their processors.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testkit::command;

use crate::programs::value_name;

/// Processors by role, as in `server=0,agent=0+1,load=1`. A role that is not named runs anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpus {
    by_role: BTreeMap<Role, Vec<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Role {
    Agent,
    Load,
    /// What is between clients and destination.
    Proxy,
    Server,
}

impl std::str::FromStr for Cpus {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut by_role = BTreeMap::new();
        for part in text.split(',') {
            let pair = part.split_once('=');
            let (name, cpus) = pair.with_context(|| format!("{part:?} is not ROLE=CPU"))?;
            let Ok(role) = Role::from_str(name, false) else {
                bail!("{name:?} is none of server, agent, proxy, load");
            };
            let cpus = cpus.split('+').map(|cpu| {
                let number = cpu.parse().ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
                number.with_context(|| format!("{cpu:?} is no processor"))
            });
            by_role.insert(role, cpus.collect::<Result<Vec<_>>>()?);
        }
        Ok(Self { by_role })
    }
}

impl Cpus {
    /// Puts a proxy and the load on a processor each, where we may use two; else nothing is bound.
    pub(crate) fn apart() -> Result<Self> {
        let [proxy, load, ..] = allowed()?[..] else {
            return Ok(Self::default());
        };
        let by_role = [(Role::Proxy, vec![proxy]), (Role::Load, vec![load])];
        Ok(Self {
            by_role: by_role.into(),
        })
    }

    /// Binds this thread, and the ones it will start, to the load's processors. Returns where
    /// everything else may run.
    pub(crate) fn bind_load(&self) -> Result<Bound> {
        let all = allowed()?;
        if let Some(cpus) = self.by_role.get(&Role::Load) {
            bind(None, cpus).context("binding the load to its processors")?;
        }
        Ok(Bound {
            cpus: self.clone(),
            all,
        })
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.by_role.is_empty() {
            return f.write_str("any");
        }
        for (nth, (role, cpus)) in self.by_role.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            let role = value_name(*role);
            write!(f, "{comma}{role}={}", list(cpus, "+"))?;
        }
        Ok(())
    }
}

/// Proof that the load is bound, and by that what others need not inherit.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    cpus: Cpus,
    all: Vec<usize>,
}

impl Bound {
    pub(crate) fn command(&self, role: Role, program: &std::path::Path) -> Result<Command> {
        if self.cpus.by_role.is_empty() {
            return Ok(Command::new(program));
        }
        let Some(taskset) = command::find("taskset") else {
            bail!("binding to processors needs `taskset` (Debian: util-linux)");
        };
        let cpus = self.cpus.by_role.get(&role).unwrap_or(&self.all);
        let mut command = Command::new(taskset);
        command.args(["--cpu-list", &list(cpus, ",")]).arg(program);
        Ok(command)
    }

    pub(crate) fn asked(&self) -> &Cpus {
        &self.cpus
    }

    /// Returns the processors of `role`; `None` when it runs anywhere.
    pub(crate) fn of(&self, role: Role) -> Option<&[usize]> {
        self.cpus.by_role.get(&role).map(Vec::as_slice)
    }
}

/// Binds a thread of ours (this one without a number) to processors.
pub(crate) fn bind(thread: Option<Pid>, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(thread, &set).context("binding a thread to processors")
}

fn allowed() -> Result<Vec<usize>> {
    let all = sched_getaffinity(None).context("asking for our processors")?;
    let set = |cpu: &usize| all.is_set(*cpu);
    Ok((0..CpuSet::MAX_CPU).filter(set).collect())
}

fn list(cpus: &[usize], separator: &str) -> String {
    let words: Vec<String> = cpus.iter().map(usize::to_string).collect();
    words.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_and_shown() {
        let cpus: Cpus = "server=0,load=1+2".parse().unwrap();
        assert_eq!(cpus.to_string(), "load=1+2,server=0");
        for text in ["server", "client=0", "server=x", "server=999999", ""] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_program_is_started_where_its_role_runs() {
        let bound = Bound {
            cpus: "server=0+1,load=1".parse().unwrap(),
            all: vec![0, 1, 2],
        };
        let words = |role| command::line(&bound.command(role, "prog".as_ref()).unwrap());
        assert!(words(Role::Server).ends_with("--cpu-list 0,1 prog"));
        assert!(words(Role::Agent).ends_with("--cpu-list 0,1,2 prog"));
        assert_eq!(bound.of(Role::Load), Some(&[1][..]));
        assert_eq!(bound.of(Role::Proxy), None);
    }
}
