//! What the kernel says of a process (`proc(5)`): what it uses, and where it listens, which is read
//! instead of seen by a connection that the other side would see as well.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use procfs::net::TcpState;
use procfs::process::Process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident set, KiB (`VmRSS`; exact enough to a few pages per thread).
    pub rss_kib: u64,
    /// Largest resident set so far, KiB (`VmHWM`).
    pub peak_rss_kib: u64,
    /// Resident memory that no file backs, KiB (`RssAnon`).
    pub anonymous_kib: u64,
    pub descriptors: usize,
    pub threads: u64,
    /// Processor time in user and kernel mode, in steps of 10 ms.
    pub cpu_time: Duration,
}

pub fn usage(pid: u32) -> Result<Usage> {
    let process = process(pid)?;
    let (status, stat) = (process.status()?, process.stat()?);
    let memory = |kib: Option<u64>| kib.context("a process without memory");
    Ok(Usage {
        rss_kib: memory(status.vmrss)?,
        peak_rss_kib: memory(status.vmhwm)?,
        anonymous_kib: memory(status.rssanon)?,
        descriptors: process.fd_count()?,
        threads: status.threads,
        // USER_HZ is 100 on every Linux architecture Rust runs on.
        cpu_time: Duration::from_millis((stat.utime + stat.stime) * 10),
    })
}

/// Returns whether a socket listens on `addr` (or on its port at any address) in the network
/// namespace of process `pid`.
pub fn listens(pid: u32, addr: SocketAddr) -> bool {
    let Ok(process) = process(pid) else {
        return false;
    };
    let tables = [process.tcp(), process.tcp6()].into_iter().flatten();
    tables.flatten().any(|socket| {
        let (state, local) = (socket.state, socket.local_address);
        let covers = local.ip().is_unspecified() || local.ip() == addr.ip();
        state == TcpState::Listen && local.port() == addr.port() && covers
    })
}

pub(super) fn is_stopped(pid: u32) -> bool {
    let threads = process(pid).and_then(|process| Ok(process.tasks()?));
    threads.is_ok_and(|mut threads| {
        threads.all(|thread| {
            let stat = thread.and_then(|thread| thread.stat());
            stat.is_ok_and(|stat| stat.state == 'T')
        })
    })
}

pub fn process(pid: u32) -> Result<Process> {
    Process::new(i32::try_from(pid)?).with_context(|| format!("reading /proc/{pid}"))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener};

    use super::*;

    #[test]
    fn our_own_usage_is_sane() {
        let used = usage(std::process::id()).unwrap();
        let is_sane = used.rss_kib > 100 && used.peak_rss_kib >= used.anonymous_kib;
        assert!(is_sane, "{used:?}");
        assert!(used.descriptors > 2 && used.threads > 0, "{used:?}");
    }

    #[test]
    fn own_sockets_are_found() {
        let us = std::process::id();
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
            let addr = listener.local_addr().unwrap();
            assert!(listens(us, addr), "{addr}");
            let elsewhere = SocketAddr::new("192.0.2.1".parse().unwrap(), addr.port());
            assert!(!listens(us, elsewhere));
            drop(listener);
            assert!(!listens(us, addr), "{addr}");
        }
    }
}
