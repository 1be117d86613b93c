//! A program's processes: it, its children and theirs, and what they use together.
//!
//! CPU time is each process's own clock, in nanoseconds, of all its threads, those that have
//! ended too. What a process used that ended between two readings is lost.

use std::iter::Sum;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use testkit::process::process;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pids: Vec<u32>,
}

impl Tree {
    pub(crate) fn of(root: u32) -> Self {
        let mut pids = vec![root];
        let mut next = 0;
        while let Some(pid) = pids.get(next).copied() {
            pids.extend(children(pid));
            next += 1;
        }
        Self { pids }
    }

    pub(crate) fn len(&self) -> usize {
        self.pids.len()
    }

    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        self.sum(cpu_time)
    }

    /// Returns the resident memory of all together, KiB; what two of them share counts twice.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        self.sum(resident_kib)
    }

    /// Adds up what is found of each; a child may have ended meanwhile.
    fn sum<T: Sum>(&self, one: fn(u32) -> Result<T>) -> Result<T> {
        let (root, below) = self.pids.split_first().context("no process")?;
        let below = below.iter().filter_map(|pid| one(*pid).ok());
        Ok(std::iter::once(one(*root)?).chain(below).sum())
    }
}

fn children(pid: u32) -> Vec<u32> {
    let threads = process(pid).and_then(|process| Ok(process.tasks()?));
    let threads = threads.into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| thread.children().ok());
    children.flatten().collect()
}

fn cpu_time(pid: u32) -> Result<Duration> {
    let what = || format!("reading the CPU time of process {pid}");
    let raw = i32::try_from(pid).with_context(what)?;
    let clock = clock_getcpuclockid(Pid::from_raw(raw)).with_context(what)?;
    Ok(Duration::from(clock_gettime(clock).with_context(what)?))
}

/// `smaps_rollup` counts pages; what `status` says may be off by some for each thread.
fn resident_kib(pid: u32) -> Result<u64> {
    let process = process(pid)?;
    let rollup = process.smaps_rollup().ok();
    let bytes = rollup.and_then(|rollup| {
        let map = rollup.memory_map_rollup.iter().next()?;
        map.extension.map.get("Rss").copied()
    });
    let kib = match bytes {
        Some(bytes) => Some(bytes / 1024),
        None => process.status()?.vmrss,
    };
    kib.with_context(|| format!("process {pid} has no memory"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use testkit::process::ChildGuard;
    use testkit::tempdir::TempDir;
    use testkit::wait;

    use super::*;

    #[test]
    fn children_belong_to_their_parent() {
        let dir = TempDir::new("bench-tree").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & sleep 60 & wait"]);
        let child = ChildGuard::spawn("a family", &command, &dir.join("log")).unwrap();
        let limit = Duration::from_secs(20);
        wait::until("two children", limit, || Tree::of(child.pid()).len() == 3).unwrap();
        let tree = Tree::of(child.pid());
        let one = resident_kib(child.pid()).unwrap();
        assert!(tree.resident_kib().unwrap() > one && one > 100);
        drop(child);
        // Their parent's end is not theirs.
        for pid in &tree.pids[1..] {
            let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap());
            let _ = rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL);
        }
    }

    #[test]
    fn own_cpu_time_passes() {
        let us = Tree::of(std::process::id());
        let before = us.cpu_time().unwrap();
        let limit = Duration::from_secs(60);
        wait::until("some CPU time", limit, || {
            (0..100_000).fold(0_u64, |sum, n| std::hint::black_box(sum ^ n));
            us.cpu_time().unwrap() > before
        })
        .unwrap();
        // Above every process id there can be (proc_sys_kernel(5), `pid_max`).
        assert!(Tree::of((1 << 22) + 1).cpu_time().is_err());
    }
}
