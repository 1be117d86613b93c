//! One of our binaries as a process: started, found by the addresses its log names, asked, read.
//!
//! Shared with test targets of other programs. Knows no routes and no peers.
#![allow(
    dead_code,
    reason = "test targets share this file and each uses its own part of it"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::process::ChildGuard;
use testkit::wait;

/// The longest any single effect is waited for; machines that build meanwhile are slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A running binary of ours, logging JSON, its access log in a file of its own.
pub(crate) struct Ours {
    child: ChildGuard,
    access_log: PathBuf,
    probes: SocketAddr,
    pipes_at_start: usize,
    /// How much of the access log [`Ours::next_record`] has looked at.
    seen: AtomicUsize,
}

impl Ours {
    /// Starts `binary` with `config` and waits until its probes say that it is ready.
    pub(crate) fn start(name: &str, binary: &Path, dir: &Path, config: &Value) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{name}-{number}.yaml"));
        fs::write(&path, format!("{config:#}")).unwrap();
        let access_log = path.with_extension("access");
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"access=$1; shift; exec "$@" > "$access""#, "sh"])
            .arg(&access_log)
            .arg(binary)
            .args(["--log-format", "json", "--config"])
            .arg(&path);
        let mut child = ChildGuard::spawn(name, &command, &path.with_extension("log")).unwrap();
        let line = child.wait_log("\"serving probes\"", LIMIT).unwrap();
        let probes = address(&serde_json::from_str(&line).unwrap());
        let target = Target::plain(probes);
        let ready = || http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200);
        child.wait_ready(LIMIT, ready).unwrap();
        Self {
            // None of its own yet: the pool makes pipes when bytes flow.
            pipes_at_start: pipes(child.pid()),
            child,
            access_log,
            probes,
            seen: AtomicUsize::new(0),
        }
    }

    /// Returns where the listener `name` is bound.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let log = self.child.log();
        let bound = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["listener"] == name && line["address"].is_string());
        address(&bound.unwrap_or_else(|| panic!("no listener {name}:\n{log}")))
    }

    pub(crate) fn child(&mut self) -> &mut ChildGuard {
        &mut self.child
    }

    /// Returns a metric summed over every series with `labels`, 0 where there is none.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = http::get(&Target::plain(self.probes), "/metrics").unwrap();
        let metrics = Metrics::parse(&text.text()).unwrap();
        metrics.value(name, labels).unwrap_or_default()
    }

    /// Returns how many connections ended for `reason`.
    pub(crate) fn closed(&self, reason: &str) -> f64 {
        self.metric("rhizome_connections_closed_total", &[("reason", reason)])
    }

    /// Returns how many connections are open.
    pub(crate) fn active(&self) -> f64 {
        self.metric("rhizome_listener_connections_active", &[])
    }

    /// Returns the access log so far; a line still being written does not count.
    pub(crate) fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.access_log).unwrap();
        let lines = text.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Waits for the record that `wanted` accepts.
    pub(crate) fn wait_record(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_for(what, || self.records().into_iter().find(&wanted))
    }

    fn wait_for<T>(&self, what: &str, find: impl FnMut() -> Option<T>) -> T {
        wait::until_some(what, LIMIT, find).unwrap_or_else(|error| {
            let records = fs::read_to_string(&self.access_log).unwrap();
            panic!("{error}; the access log:\n{records}")
        })
    }

    /// Waits for a record that has `address` as its `key`, among those that are newer than the last one it
    /// returned: a client's port may have been another connection's to another address before.
    pub(crate) fn next_record(&self, key: &str, address: SocketAddr) -> Value {
        let what = format!("a record with {key} {address}");
        let address = address.to_string();
        let seen = self.seen.load(Ordering::Relaxed);
        let is_it = |(_, record): &(usize, Value)| record[key] == address.as_str();
        let (place, record) = self.wait_for(&what, || {
            self.records()
                .into_iter()
                .enumerate()
                .skip(seen)
                .find(is_it)
        });
        self.seen.store(place + 1, Ordering::Relaxed);
        record
    }

    /// Waits until neither a connection nor its sockets are left.
    pub(crate) fn assert_no_connection_left(&self) {
        wait::until("every connection to end", LIMIT, || self.active() == 0.0).unwrap();
        wait::until("every socket to be closed", LIMIT, || {
            self.connected_sockets() == 0
        })
        .unwrap();
    }

    /// Waits until no connection is left, nor a pipe that one needed: those of a burst go with the
    /// second look of the pool's trimming, every 10 s.
    pub(crate) fn assert_nothing_left(&self) {
        self.assert_no_connection_left();
        wait::until("the pipes of a burst to be closed", LIMIT, || {
            pipes(self.child.pid()) == self.pipes_at_start
        })
        .unwrap();
    }

    /// Counts the process's TCP sockets that do not listen, without those of its probes.
    fn connected_sockets(&self) -> usize {
        let pid = self.child.pid();
        let sockets: BTreeSet<String> = descriptors(pid)
            .filter_map(|target| {
                Some(
                    target
                        .strip_prefix("socket:[")?
                        .trim_end_matches(']')
                        .into(),
                )
            })
            .collect();
        let probes = format!(":{:04X}", self.probes.port());
        let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
        let lines = table.lines().skip(1).map(|line| line.split_whitespace());
        // `proc(5)`: local address, state (0A is LISTEN) and inode are columns 2, 4 and 10.
        lines
            .map(Iterator::collect::<Vec<_>>)
            .filter(|words| words[3] != "0A" && !words[1].ends_with(&probes))
            .filter(|words| sockets.contains(words[9]))
            .count()
    }
}

/// Returns what the descriptors of process `pid` stand for, such as `pipe:[NUMBER]`.
fn descriptors(pid: u32) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    // One that is closed meanwhile stands for nothing.
    let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.map(|target| target.display().to_string())
}

fn pipes(pid: u32) -> usize {
    descriptors(pid)
        .filter(|target| target.starts_with("pipe:"))
        .count()
}

fn address(line: &Value) -> SocketAddr {
    line["address"].as_str().unwrap().parse().unwrap()
}
