//! `rhizome-bench profiles`: what there is to measure, how each is started, and whether it works.

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::{Chosen, EMBEDDED, Profile};
use crate::programs::{Given, value_name};
use crate::tls::trial;

/// Lists what `tls` and `routes` can measure, shows how one of them is started, or tries them.
#[derive(Args, Debug)]
pub(crate) struct Profiles {
    /// The profile to show, as a file to begin one's own from.
    name: Option<String>,
    #[command(flatten)]
    chosen: Chosen,
    /// Starts each, connects through it, adds a name and connects by that: for each listener.
    #[arg(long = "try")]
    trial: bool,
}

/// Writes the list or one profile's file, or tries; fails when a program is missing, or something
/// did not work.
pub(crate) fn run(asked: &Profiles) -> Result<ExitCode> {
    let mut out = stdout().lock();
    if let Some(name) = &asked.name {
        let text = EMBEDDED.iter().find(|(known, _)| known == name);
        let (_, text) = text.with_context(|| format!("no profile is called {name:?}"))?;
        out.write_all(text.as_bytes()).context("writing")?;
        return Ok(ExitCode::SUCCESS);
    }
    let given = &asked.chosen.program;
    let mut good = true;
    for profile in asked.chosen.all()? {
        good &= if asked.trial {
            trial::run(&profile, given, &mut out)?
        } else {
            list(&profile, given, &mut out)?
        };
    }
    Ok(ExitCode::from(u8::from(!good)))
}

fn list(profile: &Profile, given: &[Given], out: &mut impl Write) -> Result<bool> {
    let listeners = profile.listeners.iter().map(|one| value_name(*one));
    let (state, good) = match profile.binary(given) {
        Ok(_) => (profile.version(given).unwrap_or_default(), true),
        Err(error) => (format!("missing: {error:#}"), false),
    };
    let (name, about) = (&profile.name, &profile.about);
    let listeners = listeners.collect::<Vec<_>>().join(",");
    writeln!(out, "{name:15} {listeners:18} {about}").context("writing")?;
    if !state.is_empty() {
        writeln!(out, "{:34} {state}", "").context("writing")?;
    }
    Ok(good)
}
