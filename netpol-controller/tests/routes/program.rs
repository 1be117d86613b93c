//! One of our programs, beside a test or in its namespace.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::netns::Place;
use testkit::process::ChildGuard;

use crate::ask::Ports;

/// The longest any single effect is waited for; machines that build meanwhile are slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A running program that logs JSON. Dropping it stops it.
pub(crate) struct Program {
    pub(crate) child: ChildGuard,
    /// Its configuration file.
    pub(crate) config: PathBuf,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Program {
    /// Starts `binary` with `config` and waits until it says where it serves.
    pub(crate) fn start(
        place: Place<'_>,
        dir: &Path,
        name: &str,
        binary: &Path,
        config: &Value,
    ) -> Self {
        // A log of its own for each: one that was started before says other addresses.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{name}-{number}.yaml"));
        fs::write(&path, format!("{config:#}")).unwrap();
        let mut command = place.command(binary);
        command
            .args(["--log-format", "json", "--config"])
            .arg(&path);
        let mut child = ChildGuard::spawn(name, &command, &path.with_extension("log")).unwrap();
        let mut served = |what: &str| {
            let line = child
                .wait_log(&format!("\"serving {what}\""), LIMIT)
                .unwrap();
            address(&serde_json::from_str(&line).unwrap())
        };
        let (probes, admin) = (served("probes"), served("admin"));
        Self {
            child,
            config: path,
            probes,
            admin,
        }
    }

    /// Returns the address in the first line of the log that `wanted` accepts.
    fn logged(&mut self, needle: &str, wanted: impl Fn(&Value) -> bool) -> SocketAddr {
        self.child.wait_log(needle, LIMIT).unwrap();
        let log = self.child.log();
        let mut lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        address(&lines.find(|line| wanted(line)).unwrap())
    }

    /// Returns where the listeners of a gateway are bound.
    pub(crate) fn ports(&mut self) -> Ports {
        let mut bound = |name: &str| self.logged("\"listener\"", |line| line["listener"] == name);
        Ports {
            tls: bound("tls"),
            node: bound("node"),
            vpn: bound("vpn"),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        http::get(&Target::plain(self.probes), "/readyz").is_ok_and(|answer| answer.status == 200)
    }

    pub(crate) fn wait_ready(&mut self) {
        let target = Target::plain(self.probes);
        let ready = || http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200);
        self.child.wait_ready(LIMIT, ready).unwrap();
    }

    /// Returns what it shows to operators.
    pub(crate) fn snapshot(&self) -> Value {
        let answer = http::get(&Target::plain(self.admin), "/snapshot").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().unwrap()
    }

    /// Returns all that it shows to operators, and its log.
    pub(crate) fn shown(&self) -> String {
        let pages = ["/config", "/snapshot", "/connections", "/metrics"];
        let pages = pages.map(|page| http::get(&Target::plain(self.admin), page).unwrap().text());
        pages.concat() + &self.child.log()
    }

    /// Returns a metric summed over every series with `labels`, 0 where there is none.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = http::get(&Target::plain(self.probes), "/metrics").unwrap();
        let metrics = Metrics::parse(&text.text()).unwrap();
        metrics.value(name, labels).unwrap_or_default()
    }
}

fn address(line: &Value) -> SocketAddr {
    line["address"].as_str().unwrap().parse().unwrap()
}
