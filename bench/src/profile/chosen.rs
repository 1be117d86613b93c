//! Flags that say what to measure: profiles of ours, of the user's, or something that runs.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::{Profile, written};
use crate::programs::Given;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Chosen {
    /// Profiles to measure, in this order; `rhizome-bench profiles` lists them. By default all but
    /// those that are marked as not standard.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// A profile of your own, measured as well (with `--only`, when it is named there).
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// Something that runs already, measured beside `direct` if nothing else is named; with its
    /// process id also what it uses.
    #[arg(long, value_name = "ADDRESS[,pid=N]")]
    at: Vec<Running>,
    /// Uses this program for a profile, by the profile's or the program's name.
    #[arg(long, value_name = "NAME=PATH")]
    program: Vec<String>,
}

/// Something that was not started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Its process.
    pub(crate) pid: Option<u32>,
}

impl std::str::FromStr for Running {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, rest) = text
            .split_once(',')
            .map_or((text, None), |(address, rest)| (address, Some(rest)));
        let pid = rest
            .map(|rest| {
                let word = rest.strip_prefix("pid=");
                word.and_then(|word| word.parse().ok())
                    .with_context(|| format!("{rest:?} is not pid=NUMBER"))
            })
            .transpose()?;
        let address = address
            .parse()
            .with_context(|| format!("{address:?} is no address with a port"))?;
        Ok(Self { address, pid })
    }
}

impl Chosen {
    /// Returns the profiles asked for: without names those that are standard, or, beside something
    /// that runs already, those without a program.
    ///
    /// # Errors
    /// When a name is unknown, two profiles have one name, or a file is no profile.
    pub(crate) fn profiles(&self) -> Result<Vec<Profile>> {
        let mut all = self.all()?;
        if self.only.is_empty() {
            let alone = self.at.is_empty();
            let beside = |profile: &Profile| profile.is_direct() || profile.running.is_some();
            all.retain(|profile| profile.standard && (alone || beside(profile)));
        }
        Ok(all)
    }

    /// Returns the profiles asked for: without names all there are.
    ///
    /// # Errors
    /// As [`Chosen::profiles`].
    pub(crate) fn all(&self) -> Result<Vec<Profile>> {
        let mut known = written::embedded()?;
        for path in &self.profile {
            let profile = written::load(path)?;
            ensure!(
                known.iter().all(|other| other.name != profile.name),
                "{}: there is a profile called {} already",
                path.display(),
                profile.name
            );
            known.push(profile);
        }
        let mut chosen = Vec::new();
        if self.only.is_empty() {
            chosen.extend(known);
        } else {
            for name in &self.only {
                let found = known.iter().find(|profile| profile.name == *name);
                let Some(found) = found else {
                    let names: Vec<&str> = known.iter().map(|one| one.name.as_str()).collect();
                    bail!(
                        "no profile is called {name:?}; there are {}",
                        names.join(", ")
                    );
                };
                chosen.push(found.clone());
            }
        }
        chosen.extend(self.at.iter().map(|running| Profile::of_running(*running)));
        Ok(chosen)
    }

    /// Returns the programs that were named.
    ///
    /// # Errors
    /// When one is not `NAME=PATH`.
    pub(crate) fn given(&self) -> Result<Given> {
        Given::parse(&self.program)
    }

    /// Tells whether something that runs already is measured: its routes are not ours.
    pub(crate) fn has_running(&self) -> bool {
        !self.at.is_empty()
    }
}
