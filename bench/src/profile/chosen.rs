//! Flags that say what to measure: profiles of ours, or of the user's.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{Listener, Profile};
use crate::programs::{Given, named};

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
    /// Uses this program for a profile, by the profile's or the program's name.
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    pub(crate) program: Vec<Given>,
}

impl Chosen {
    /// Returns those that have one of `listeners`.
    pub(crate) fn profiles(&self, listeners: &[Listener]) -> Result<Vec<Profile>> {
        let mut all = self.all()?;
        let has = |profile: &Profile| profile.listeners.iter().any(|own| listeners.contains(own));
        all.retain(has);
        if self.only.is_empty() {
            all.retain(|profile| profile.standard);
        }
        Ok(all)
    }

    pub(crate) fn all(&self) -> Result<Vec<Profile>> {
        let mut known = Profile::embedded()?;
        for path in &self.profile {
            let profile = Profile::load(path)?;
            ensure!(
                known.iter().all(|other| other.name != profile.name),
                "{}: there is a profile called {} already",
                path.display(),
                profile.name
            );
            known.push(profile);
        }
        if self.only.is_empty() {
            return Ok(known);
        }
        let chosen = self.only.iter().map(|name| {
            let found = known.iter().find(|profile| profile.name == *name);
            found.cloned().with_context(|| {
                let names: Vec<&str> = known.iter().map(|one| one.name.as_str()).collect();
                let names = names.join(", ");
                format!("no profile is called {name:?}; there are {names}")
            })
        });
        chosen.collect()
    }
}
