//! Runs `rhizome-counts` under callgrind, such that two runs count the same.
//!
//! ```text
//! fixed getrandom, one kind of memcpy, no environment ──▶ callgrind ──▶ one file each time
//!                                                                       `measured` is left
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::command;
use testkit::tempdir::TempDir;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) name: String,
    pub(super) times: u64,
    pub(super) instructions: u64,
}

impl Count {
    pub(super) fn each(&self) -> f64 {
        self.instructions as f64 / self.times.max(1) as f64
    }
}

pub(super) fn count(program: &Path, dir: &TempDir) -> Result<Vec<Count>> {
    let random = fixed_random(dir)?;
    let out = dir.join("callgrind.out");
    let mut valgrind = Command::new(command::require("valgrind")?);
    valgrind
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(["--zero-before=*::measured", "--dump-after=*::measured"])
        .arg(program)
        .env_clear()
        .env("LD_PRELOAD", random)
        .env("GLIBC_TUNABLES", ONE_MEMCPY);
    let said = command::run(&mut valgrind)?;
    let workloads: Vec<(&str, u64)> = said.lines().filter_map(workload).collect();
    let mut counts = Vec::with_capacity(workloads.len());
    for (nth, (name, times)) in workloads.iter().enumerate() {
        let path = PathBuf::from(format!("{}.{}", out.display(), nth + 1));
        let text = fs::read_to_string(&path)
            .with_context(|| format!("callgrind wrote nothing for {name:?}"))?;
        counts.push(Count {
            name: (*name).to_owned(),
            times: *times,
            instructions: total(&text).with_context(|| format!("counting {name:?}"))?,
        });
    }
    ensure!(!counts.is_empty(), "{} has no workloads", program.display());
    Ok(counts)
}

fn workload(line: &str) -> Option<(&str, u64)> {
    let (name, times) = line.split_once('\t')?;
    Some((name, times.parse().ok()?))
}

fn total(text: &str) -> Result<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("totals: "))
        .and_then(|number| number.trim().parse().ok())
        .context("no total in what callgrind wrote")
}

/// Compiles a `getrandom` that always says the same. Hash tables of Rust's library ask it for their
/// keys, by a weak symbol so that measurements may do this; with random keys, entries collide
/// elsewhere in each run.
fn fixed_random(dir: &TempDir) -> Result<PathBuf> {
    let source = dir.write("fixed_random.c", FIXED_RANDOM)?;
    let library = dir.join("fixed_random.so");
    let mut compiler = Command::new(command::require("cc")?);
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    command::run(compiler.arg(&library).arg(source))?;
    Ok(library)
}

const FIXED_RANDOM: &str = "\
long getrandom(void *buffer, unsigned long length, unsigned flags) {
    (void)flags;
    for (unsigned long i = 0; i < length; i++) ((unsigned char *)buffer)[i] = (unsigned char)(i * 29 + 7);
    return (long)length;
}
";

/// The C library takes one of a dozen `memcpy`s by what the processor can; with these the one that
/// every processor can.
const ONE_MEMCPY: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-BMI2,-ERMS,-FSRM,-RTM,-SSSE3,-SSE4_1,-SSE4_2";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        let text = "version: 1\nevents: Ir\nsummary: 12\n\nfn=(1) a\n1 2\ntotals: 4711\n";
        assert_eq!(total(text).unwrap(), 4711);
        assert!(total("events: Ir\n").is_err());
    }

    #[test]
    fn a_line_names_a_workload_and_how_often() {
        let named = workload("server name of 1\t1000");
        assert_eq!(named, Some(("server name of 1", 1000)));
        assert_eq!(workload("something else"), None);
    }
}
