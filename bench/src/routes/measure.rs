//! Tables of one profile: what they cost to have, to change and to use.
//!
//! ```text
//! a program:            start ─▶ resident ─▶ hold 100 ─▶ one more name ─▶ resident ─▶ more names
//!                       ─▶ started some times more, if that is soon done
//! a program each size:  start ─▶ new connections, in turns ─▶ idle connections
//! ```
//!
//! Others for connections, because these leave memory behind that is not the table's; and those of
//! all sizes at once, in short turns, because what connections cost changes with the machine's mood
//! more than with the table.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::wait::{self, Stopwatch};

use super::{Lab, figure as of};
use crate::backend::Command;
use crate::held::Held;
use crate::probe::until_answered;
use crate::profile::{Listener, Profile, Route, Setting, Target, Tree};
use crate::report::Figure;
use crate::tls::conns::{self, Load};
use crate::tls::opening::{Opening, Words};
use crate::tls::window::Meter;
use crate::tls::{Way, idle};

pub(super) type Found = Vec<(Figure, f64)>;

/// Starts `profile` with so many names, and changes them. What was found before an error stays.
pub(super) fn table(lab: &Lab<'_>, profile: &Profile, names: u32, found: &mut Found) -> Result<()> {
    let (mut target, mut spent) = launched(lab, profile, names)?;
    found.push((of::START, millis(spent)));
    if let Some(tree) = target.tree() {
        found.push((of::START_CPU, tree.cpu_time()?.as_secs_f64()));
        wait::pause(REST);
        found.push((of::RESIDENT, mib(&tree)?));
    }
    changed(lab, &mut target, names, found).map_err(|error| target.explain(error))?;
    drop(target);
    while spent < lab.length / 4 {
        let clock = Stopwatch::start();
        let (_target, took) = launched(lab, profile, names)?;
        found.push((of::START, millis(took)));
        spent += clock.elapsed();
    }
    Ok(())
}

/// Starts `profile` with each number of names, and uses all of them, in turns. What is found of
/// one is passed on with its number of names.
pub(super) fn connections(
    lab: &Lab<'_>,
    profile: &Profile,
    sizes: &[u32],
    found: &mut impl FnMut(u32, Found),
) -> Result<()> {
    let start = |names: &u32| Ok(launched(lab, profile, *names)?.0);
    let targets = sizes.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut turns: Vec<(u32, &Target)> = sizes.iter().copied().zip(&targets).collect();
    for _ in 0..TURNS {
        let mut costs = Vec::with_capacity(turns.len());
        for (names, target) in &turns {
            let (one, cost) = new(lab, target).map_err(|error| target.explain(error))?;
            found(*names, one);
            costs.extend(cost.map(|cost| (*names, cost)));
        }
        for (names, percent) in more(sizes, &costs) {
            found(names, vec![(of::CPU_MORE, percent)]);
        }
        turns.reverse();
    }
    for (names, target) in turns {
        let one = idle(lab, target).map_err(|error| target.explain(error))?;
        found(names, one);
    }
    Ok(())
}

/// Starts `profile`; also returns how long it took until the last name answers.
fn launched(lab: &Lab<'_>, profile: &Profile, names: u32) -> Result<(Target, Duration)> {
    let routes = Route::table(names, lab.backend.address());
    let last = words(routes.last().context("a table without routes")?);
    let setting = Setting {
        place: lab.place,
        cpus: &lab.cpus,
        given: lab.given,
        listener: Listener::Sni,
        routes,
    };
    let target = Target::launch(profile, &setting)?;
    let took = until_answered(target.address(), &last, target.started(), START_LIMIT)
        .map_err(|error| target.explain(error))?;
    Ok((target, took))
}

fn changed(lab: &Lab<'_>, target: &mut Target, names: u32, found: &mut Found) -> Result<()> {
    let all = target.routes();
    let spread = (0..HELD).filter_map(|nth| all.get(nth * all.len() / HELD).map(words));
    let held = Held::start(target.address(), spread, PAUSE)?;
    let changed = changes(lab, target, names, &held, found);
    match held.seen() {
        Ok((_, lost)) => found.push((of::LOST, lost as f64)),
        Err(error) => return changed.and(Err(error)),
    }
    changed
}

/// Changes the table under connections that are held: some times with a rest between, then again and
/// again.
fn changes(
    lab: &Lab<'_>,
    target: &mut Target,
    names: u32,
    held: &Held,
    found: &mut Found,
) -> Result<()> {
    let cpu = |target: &Target| target.tree().map(|tree| tree.cpu_time()).transpose();
    let (mut watched, mut all) = (0, Duration::ZERO);
    while watched == 0 || (all < lab.length && watched < WATCHED) {
        held.watch()?;
        let before = cpu(target)?;
        let took = change(lab, target, names + watched)?;
        let after = cpu(target)?;
        wait::pause(REST);
        found.push((of::APPLY, millis(took)));
        found.push((of::STALL, millis(held.seen()?.0)));
        if let (Some(before), Some(after)) = (before, after) {
            found.push((of::APPLY_CPU, millis(after.saturating_sub(before))));
        }
        if watched == 0
            && let Some(tree) = target.tree()
        {
            found.push((of::PROCESSES, tree.len() as f64));
            found.push((of::RESIDENT_AFTER, mib(&tree)?));
        }
        watched += 1;
        all += took;
    }
    let (mut all, mut count) = (Duration::ZERO, 0);
    while all < lab.length && count < MAX_CHANGES {
        let took = change(lab, target, names + watched + count)?;
        found.push((of::APPLY, millis(took)));
        count += 1;
        all += took;
    }
    found.push((of::CHANGES, f64::from(count) / all.as_secs_f64()));
    Ok(())
}

/// Adds the name `nth`, and returns how long it took until it answers. A program may lose a signal
/// that comes while it still reloads, so it is told again after a while.
fn change(lab: &Lab<'_>, target: &mut Target, nth: u32) -> Result<Duration> {
    let route = Route::numbered(nth, lab.backend.address());
    let words = words(&route);
    let change = target.prepare(route)?;
    let clock = Stopwatch::start();
    loop {
        target.tell(&change)?;
        let limit = clock.elapsed() + TOLD_AGAIN;
        match until_answered(target.address(), &words, clock, limit) {
            Err(error) if limit > APPLY_LIMIT => {
                return Err(error.context(format!("waiting for the name {nth}")));
            }
            Err(_) => {}
            Ok(took) => return Ok(took),
        }
    }
}

/// Compares what a connection cost in one turn, by number of names, with the first of the `sizes`.
fn more(sizes: &[u32], costs: &[(u32, f64)]) -> Vec<(u32, f64)> {
    let of = |size: &u32| costs.iter().find(|(names, _)| names == size);
    let first = sizes.first().and_then(of).filter(|(_, cost)| *cost > 0.0);
    let others = sizes.iter().skip(1).filter_map(of);
    let more = |(names, cost): &(u32, f64)| Some((*names, (cost / first?.1 - 1.0) * 100.0));
    others.filter_map(more).collect()
}

/// Also returns what each cost, of a process that is known.
fn new(lab: &Lab<'_>, target: &Target) -> Result<(Found, Option<f64>)> {
    let all = target.routes();
    let spread = (0..NAMES).filter_map(|nth| all.get(nth * all.len() / NAMES));
    let spread: Vec<Words> = spread.map(words).collect();
    let load = Load {
        in_flight: IN_FLIGHT,
        warm_up: WARM_UP,
        length: lab.length / TURNS,
    };
    let (conns, spent) = conns::run(target.address(), spread, load, &Meter::of(target))?;
    ensure!(conns.failed == 0, "{} connections failed", conns.failed);
    let done = conns.done as f64;
    let mut found = vec![(of::CONNECTIONS, done / spent.wall.as_secs_f64())];
    let each = spent.proxy.map(|proxy| proxy.as_secs_f64() * 1e6 / done);
    found.extend(each.map(|each| (of::CPU_EACH, each)));
    Ok((found, each))
}

fn idle(lab: &Lab<'_>, target: &Target) -> Result<Found> {
    let meter = Meter::of(target);
    if target.tree().is_none() {
        return Ok(Found::new());
    }
    let all = target.routes();
    let opening = opening(all.first().context("a table without routes")?);
    let way = Way {
        address: target.address(),
        opening: &opening,
        backend: &lab.backend,
        meter: &meter,
    };
    Ok(vec![(of::IDLE, idle::each(way, lab.idle)?)])
}

fn opening(route: &Route) -> Opening {
    Opening::new(Some(Listener::Sni), route, false)
}

fn words(route: &Route) -> Words {
    opening(route).canned(Command::Echo, b"!")
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mib(tree: &Tree) -> Result<f64> {
    Ok(tree.resident_kib()? as f64 / 1024.0)
}

const HELD: usize = 100;
/// Between two pings, so that they take a small part of the processors only: each of the held is
/// pinged some thirty times a second.
const PAUSE: Duration = Duration::from_micros(100);
/// Names that new connections go by, in turn.
const NAMES: usize = 1000;
const IN_FLIGHT: usize = 32;
const MAX_CHANGES: u32 = 50;
/// Changes of which each tells how long the held connections stalled; fewer where they take long.
const WATCHED: u32 = 5;
const WARM_UP: Duration = Duration::from_millis(30);
/// Turns of new connections with each table: the machine's mood changes within a second.
const TURNS: u32 = 96;

/// For what is done behind the scenes once a name answers.
const REST: Duration = Duration::from_millis(300);
const START_LIMIT: Duration = Duration::from_secs(60);
const APPLY_LIMIT: Duration = Duration::from_secs(20);
/// Longer than any of the profiles takes with 10,000 names.
const TOLD_AGAIN: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_compared_with_first_size() {
        let sizes = [1, 1000, 10_000];
        let costs = [(10_000, 44.0), (1000, 41.0), (1, 40.0)];
        let more = |costs| -> Vec<(u32, f64)> {
            let rounded = |(names, percent): (u32, f64)| (names, (percent * 10.0).round() / 10.0);
            more(&sizes, costs).into_iter().map(rounded).collect()
        };
        assert_eq!(more(&costs), [(1000, 2.5), (10_000, 10.0)]);
        assert_eq!(more(&costs[..2]), []);
        assert_eq!(more(&[(1, 0.0), (1000, 1.0)]), []);
    }
}
