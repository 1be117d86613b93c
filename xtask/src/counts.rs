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
mod ceilings;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use testkit::peers::packages;
use testkit::tempdir::TempDir;

use self::callgrind::Count;
use self::ceilings::{Ceilings, Verdict};
use crate::console::Console;
use crate::workspace;

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
    if std::env::consts::ARCH != ARCHITECTURE {
        console.say(&format!(
            "  not counted: what is agreed on is for {ARCHITECTURE}, this is {}",
            std::env::consts::ARCH
        ));
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
        Ceilings::of(&counts).write(&file)?;
        console.say(&format!("  {FILE} holds {} workloads", counts.len()));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(compare(&console, &counts, &Ceilings::read(&file)?))
}

fn compare(console: &Console, counts: &[Count], ceilings: &Ceilings) -> ExitCode {
    let mut good = true;
    for count in counts {
        let verdict = ceilings.judge(count);
        let mark = match verdict {
            Verdict::Same => "✓",
            Verdict::Cheaper(_) | Verdict::Dearer(_) | Verdict::New => {
                good = false;
                "✗"
            }
        };
        let (name, each) = (&count.name, count.each());
        console.say(&format!(
            "  {mark} {name:46} {each:>9.1} instructions{verdict}"
        ));
    }
    for name in ceilings.without(counts) {
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
