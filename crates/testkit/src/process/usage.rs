//! What a process uses, read from `/proc` (`proc(5)`).

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident set, KiB (`VmRSS`; exact enough to a few pages per thread).
    pub rss_kib: u64,
    /// Largest resident set so far, KiB (`VmHWM`).
    pub peak_rss_kib: u64,
    /// Resident memory that no file backs, KiB (`RssAnon`).
    pub anonymous_kib: u64,
    /// Open file descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
    /// Processor time in user and kernel mode, in steps of 10 ms.
    pub cpu_time: Duration,
}

/// Reads what process `pid` uses now.
pub fn usage(pid: u32) -> Result<Usage> {
    let dir = format!("/proc/{pid}");
    let read = |name: &str| {
        fs::read_to_string(format!("{dir}/{name}")).with_context(|| format!("reading {dir}/{name}"))
    };
    let status = read("status")?;
    let stat = read("stat")?;
    let descriptors = fs::read_dir(format!("{dir}/fd"))
        .with_context(|| format!("reading {dir}/fd"))?
        .count();
    Ok(Usage {
        rss_kib: field(&status, "VmRSS")?,
        peak_rss_kib: field(&status, "VmHWM")?,
        anonymous_kib: field(&status, "RssAnon")?,
        descriptors,
        threads: field(&status, "Threads")?,
        cpu_time: cpu_time(&stat)?,
    })
}

fn field(status: &str, name: &str) -> Result<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("no {name} in a process's status"))
}

/// Adds fields 14 and 15; the second field is a name in parentheses that may hold blanks.
fn cpu_time(stat: &str) -> Result<Duration> {
    let (_, rest) = stat
        .rsplit_once(')')
        .context("a process's stat without a name")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|word| {
            word.parse::<u64>()
                .context("a process's stat without ticks")
        })
        .sum::<Result<u64>>()?;
    // USER_HZ is 100 on every Linux architecture Rust runs on.
    Ok(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_behind_a_name_with_blanks() {
        let stat = "7 (a b) c) S 1 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0";
        assert_eq!(cpu_time(stat).unwrap(), Duration::from_secs(2));
    }

    #[test]
    fn our_own_usage_is_sane() {
        let used = usage(std::process::id()).unwrap();
        assert!(
            used.rss_kib > 100 && used.peak_rss_kib >= used.anonymous_kib,
            "{used:?}"
        );
        assert!(used.descriptors > 2 && used.threads > 0, "{used:?}");
    }
}
