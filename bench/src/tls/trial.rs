//! Whether a profile works: it starts, routes, and takes one more name.
//!
//! ```text
//! start ─▶ a byte there and back by the first name ─▶ one more name ─▶ a byte by either
//! ```

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::wait;

use super::opening::Opening;
use crate::backend::Backend;
use crate::cpus::{Bound, Cpus};
use crate::https;
use crate::profile::{Listener, Profile, Route, Setting, Target};
use crate::programs::{Given, value_name};

/// Tries `profile` by each of its listeners and writes what came of it, a line each; tells whether
/// all went well.
pub(crate) fn run(profile: &Profile, given: &[Given], out: &mut impl Write) -> Result<bool> {
    let cpus = Cpus::default().bind_load()?;
    let mut good = true;
    for listener in &profile.listeners {
        let outcome = one(profile, *listener, given, &cpus);
        let (name, listener) = (&profile.name, value_name(*listener));
        let text = match outcome {
            Ok(text) => text,
            Err(error) => {
                good = false;
                format!("failed: {error:#}")
            }
        };
        writeln!(out, "{name:15} {listener:8} {text}").context("writing")?;
    }
    Ok(good)
}

fn one(profile: &Profile, listener: Listener, given: &[Given], cpus: &Bound) -> Result<String> {
    if listener == Listener::Https {
        return https::trial(profile, given, cpus);
    }
    let backend = Backend::start((Ipv4Addr::LOCALHOST, 0).into())?;
    let first = Route::numbered(0, backend.address());
    let setting = Setting {
        given,
        ..Setting::here(cpus, listener, vec![first.clone()])
    };
    let mut target = Target::start(profile, &setting)?;
    let listener = (!profile.is_direct()).then_some(listener);
    works(&mut target, listener, &first, &backend).map_err(|error| target.explain(error))
}

fn works(
    target: &mut Target,
    listener: Option<Listener>,
    first: &Route,
    backend: &Backend,
) -> Result<String> {
    let address = target.address();
    let answers = |route: &Route| {
        let what = format!("an answer by {}", route.name);
        let opening = Opening::new(listener, route, false);
        wait::until_ok(&what, LIMIT, || opening.echoing(address).map(drop))
    };
    answers(first)?;
    let millis = target.started().elapsed().as_millis();
    let mut text = format!("routes {millis} ms after its start");
    if target.changes() {
        let second = Route::numbered(1, backend.address());
        let change = target.prepare(second.clone())?;
        target.tell(&change)?;
        answers(&second)?;
        for route in target.routes() {
            // A process on its way out may still accept: not every first try need succeed.
            answers(route).context("once there is a second name")?;
        }
        text.push_str(", and takes one more name");
    }
    if let Some(tree) = target.tree() {
        let (processes, kib) = (tree.len(), tree.resident_kib()?);
        text.push_str(&format!("; {processes} processes, {} MiB", kib >> 10));
    }
    Ok(text)
}

/// Longer than any profile takes to reload a table of two names.
const LIMIT: Duration = Duration::from_secs(15);
