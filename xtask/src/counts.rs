//! `cargo xtask counts`: instructions of what is done per connection, packet and change of routes.
//!
//! ```text
//!     rhizome-counts ──callgrind──▶ instructions of each workload ─┐
//!     bench/counts.json: instructions when it was last agreed on ──┴─▶ the same, dearer, cheaper
//! ```
//!
//! Counts do not depend on the machine's speed or on what else it does, so a test can hold them: a
//! workload that got dearer fails, and so does one that got cheaper, because its ceiling would let
//! the gain be lost again unseen. `--update` writes down what was counted. Tells nothing of caches,
//! system calls and time: `cargo bench -p rhizome-micro` and `rhizome-bench` do.

mod callgrind;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use testkit::peers::packages;
use testkit::tempdir::TempDir;

use self::callgrind::Count;
use crate::console::Console;
use crate::workspace;

/// Instructions of one piece of each workload, as they were agreed on.
type Ceilings = BTreeMap<String, f64>;

/// What is done with the counts.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Options {
    /// Write down what is counted, instead of comparing with it; counts twice and demands the same.
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let console = Console::new();
    console.heading("Instructions of the hot paths");
    let here = std::env::consts::ARCH;
    if here != ARCHITECTURE {
        let why = format!("what is agreed on is for {ARCHITECTURE}, this is {here}");
        console.say(&format!("  not counted: {why}"));
        return Ok(ExitCode::SUCCESS);
    }
    packages::install(packages::COUNTS, &|text| console.say(&format!("  {text}")))?;
    let programs = workspace::build_in("counts", "rhizome-micro")?;
    let program = programs.get("rhizome-counts")?;
    let dir = TempDir::new("counts")?;
    let counts = callgrind::count(program, &dir)?;
    let file = workspace::root().join(FILE);
    if options.update {
        let again = callgrind::count(program, &dir)?;
        let differing = differing(&counts, &again);
        ensure!(differing.is_empty(), "two runs differ: {differing:?}");
        let text = serde_json::to_string_pretty(&agreed(&counts))? + "\n";
        fs::write(&file, text).with_context(|| format!("writing {FILE}"))?;
        console.say(&format!("  {FILE} holds {} workloads", counts.len()));
        return Ok(ExitCode::SUCCESS);
    }
    let ceilings = fs::read(&file).map_err(anyhow::Error::from);
    let ceilings = ceilings.and_then(|text| Ok(serde_json::from_slice(&text)?));
    let ceilings = ceilings.with_context(|| format!("reading {FILE}"))?;
    Ok(compare(&console, &counts, &ceilings))
}

fn compare(console: &Console, counts: &[Count], ceilings: &Ceilings) -> ExitCode {
    let mut good = true;
    for count in counts {
        let breach = breach(count, ceilings);
        good &= breach.is_none();
        let mark = if breach.is_none() { "✓" } else { "✗" };
        let (name, each, breach) = (&count.name, count.each(), breach.unwrap_or_default());
        let line = format!("  {mark} {name:46} {each:>9.1} instructions{breach}");
        console.say(&line);
    }
    for name in gone(counts, ceilings) {
        good = false;
        console.say(&format!("  ✗ {name:46} is in {FILE}, and is no workload"));
    }
    if good {
        ExitCode::SUCCESS
    } else {
        console.say(&format!(
            "  Dearer: find out why. Cheaper, new or gone: `cargo xtask counts --update` and commit {FILE}."
        ));
        ExitCode::FAILURE
    }
}

fn agreed(counts: &[Count]) -> Ceilings {
    let each = |count: &Count| (count.name.clone(), (count.each() * 10.0).round() / 10.0);
    counts.iter().map(each).collect()
}

/// Returns how a count breaks its ceiling; `None` where it is near enough.
fn breach(count: &Count, ceilings: &Ceilings) -> Option<String> {
    let Some(agreed) = ceilings.get(&count.name) else {
        return Some(", has no ceiling".to_owned());
    };
    let percent = (count.each() / agreed - 1.0) * 100.0;
    if percent > DEARER_PERCENT {
        let allowed = DEARER_PERCENT;
        return Some(format!(", {percent:.1} % dearer, {allowed} % are allowed"));
    }
    let cheaper = -percent;
    (cheaper > CHEAPER_PERCENT).then(|| format!(", {cheaper:.1} % cheaper than its ceiling says"))
}

/// Returns the names of which nothing was counted.
fn gone<'a>(counts: &[Count], ceilings: &'a Ceilings) -> Vec<&'a str> {
    let names = ceilings.keys().map(String::as_str);
    let counted = |name: &&str| counts.iter().any(|count| count.name == *name);
    names.filter(|name| !counted(name)).collect()
}

/// Returns what two runs do not agree on. Hashes have secrets, by which a look-up takes a step more or
/// less: a 200th is far less than what ceilings allow.
fn differing<'a>(one: &'a [Count], other: &'a [Count]) -> Vec<(&'a Count, &'a Count)> {
    let differ = |(one, other): &(&Count, &Count)| {
        let apart = one.instructions.abs_diff(other.instructions);
        one.name != other.name || one.times != other.times || apart > one.instructions / 200
    };
    one.iter().zip(other).filter(differ).collect()
}

const FILE: &str = "bench/counts.json";
const ARCHITECTURE: &str = "x86_64";
/// What another release of the C library or of the linker may change.
const DEARER_PERCENT: f64 = 2.0;
/// From here on a gain is worth a commit.
const CHEAPER_PERCENT: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, instructions: u64) -> Count {
        Count {
            name: name.to_owned(),
            times: 10,
            instructions,
        }
    }

    #[test]
    fn a_count_is_held_from_both_sides() {
        let ceilings = agreed(&[count("a", 1000)]);
        for (name, instructions, expected) in [
            ("a", 1000, None),
            ("a", 1019, None),
            ("a", 961, None),
            ("a", 1030, Some(", 3.0 % dearer, 2 % are allowed")),
            ("a", 900, Some(", 10.0 % cheaper than its ceiling says")),
            ("b", 1, Some(", has no ceiling")),
        ] {
            let found = breach(&count(name, instructions), &ceilings);
            assert_eq!(found.as_deref(), expected, "{name}, {instructions}");
        }
    }

    #[test]
    fn missing_workload_is_named() {
        let ceilings = agreed(&[count("a", 1234), count("b", 10)]);
        assert_eq!(ceilings["a"], 123.4);
        assert_eq!(gone(&[count("a", 10)], &ceilings), ["b"]);
    }
}
