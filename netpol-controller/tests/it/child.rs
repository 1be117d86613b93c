//! A controller as a program of its own: started, asked, ended.
//!
//! Shared with `tests/peers`. Knows no API server; its configuration says where one is.
#![allow(
    dead_code,
    reason = "two test targets share this file and each uses its own part of it"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use serde_json::Value;
use testkit::http::{self, Connection, Response, Target};
use testkit::metrics::Metrics;
use testkit::process::{ChildGuard, Signal};
use testkit::wait::{self, Stopwatch};

/// A wait that lasts this long has failed; on an idle machine few take a tenth of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// A running controller; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) guard: ChildGuard,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Child {
    /// Starts the controller `name` with `config`, which asks for port 0 on both addresses. Its
    /// files are in `dir`.
    pub(crate) fn start(dir: &Path, name: &str, config: &str) -> Self {
        let path = dir.join(format!("{name}.yaml"));
        std::fs::write(&path, config).unwrap();
        let log = path.with_extension("log");
        // Of a controller of that name that ran before.
        let _ = std::fs::remove_file(&log);
        let mut command = command();
        command
            .args(["--log-format", "json", "--config"])
            .arg(&path);
        command.env("HOSTNAME", name);
        let mut guard = ChildGuard::spawn(name, &command, &log).unwrap();
        let mut serving = |what: &str| {
            let line = guard
                .wait_log(&format!("\"serving {what}\""), LIMIT)
                .unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            line["address"].as_str().unwrap().parse().unwrap()
        };
        let (probes, admin) = (serving("probes"), serving("admin"));
        Self {
            guard,
            probes,
            admin,
        }
    }

    /// Asks `address` for `path`.
    pub(crate) fn ask(address: SocketAddr, method: &str, path: &str) -> Response {
        let mut connection = Connection::open(&Target::plain(address)).unwrap();
        connection.request(method, path, None).unwrap()
    }

    pub(crate) fn admin_json(&self, path: &str) -> Value {
        let answer = Self::ask(self.admin, "GET", path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json().unwrap()
    }

    pub(crate) fn is_ready(&self) -> bool {
        http::get(&Target::plain(self.probes), "/readyz").is_ok_and(|answer| answer.status == 200)
    }

    pub(crate) fn wait_ready(&self) {
        let ready = wait::until("the controller to be ready", LIMIT, || self.is_ready());
        assert!(ready.is_ok(), "{ready:?}\n{}", self.guard.log_tail(20));
    }

    /// Returns the sum of the samples with these labels, 0 without any.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = Self::ask(self.probes, "GET", "/metrics").text();
        Metrics::parse(&text)
            .unwrap()
            .value(name, labels)
            .unwrap_or(0.0)
    }

    /// Returns how many policies were written, by whatever verb.
    pub(crate) fn writes(&self) -> f64 {
        self.value("rhizome_netpol_writes_total", &[])
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.value("rhizome_netpol_leader", &[]) > 0.0
    }

    pub(crate) fn wait_leading(&self, limit: Duration) {
        let leading = wait::until("the controller to lead", limit, || self.is_leading());
        assert!(leading.is_ok(), "{leading:?}\n{}", self.guard.log_tail(20));
    }

    /// Asks it to end, and returns how it did and how long that took.
    pub(crate) fn terminate(&mut self) -> (ExitStatus, Duration) {
        let clock = Stopwatch::start();
        self.guard.signal(Signal::TERM).unwrap();
        let status = self.guard.wait_exit(LIMIT).unwrap();
        (status, clock.elapsed())
    }
}

/// Runs the program to its end in `dir`.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = command();
    command.current_dir(dir).args(args);
    testkit::command::output(&mut command).unwrap()
}

/// The program, with nothing of the machine's own cluster in its environment.
fn command() -> Command {
    let mut command = Command::new(PathBuf::from(env!("CARGO_BIN_EXE_netpol-controller")));
    for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}
