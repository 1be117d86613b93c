//! A gateway as a program of its own: signals, exit codes, standard output, descriptor limits.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};

use serde_json::Value;
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;
use testkit::wait;

use super::gateway::whole;
use super::{LIMIT, Probe};

/// A program that may not serve yet; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Starting {
    dir: TempDir,
    guard: ChildGuard,
}

impl Starting {
    pub(crate) fn begin(config: &str) -> Self {
        Self::begin_in(directory(config, ""), "true", "stderr")
    }

    fn begin_in(dir: TempDir, before: &str, log: &str) -> Self {
        let mut shell = Command::new("sh");
        let script = format!("{before}; exec \"$0\" \"$@\" 2>{log}");
        shell.current_dir(dir.path()).args(["-c", &script]);
        shell.arg(env!("CARGO_BIN_EXE_sni-proxy"));
        shell.args(["--config", "sni-proxy.yaml", "--log-format", "json"]);
        let guard = ChildGuard::spawn("sni-proxy", &shell, &dir.join("stdout")).unwrap();
        Self { dir, guard }
    }

    /// Waits until `message` is logged, and returns the event.
    pub(crate) fn wait_logged(&mut self, message: &str) -> Value {
        let stderr = self.dir.join("stderr");
        let there = self
            .guard
            .wait_ready(LIMIT, || logged(&stderr, message).is_some());
        assert!(there.is_ok(), "{there:?}\n{}", text(&stderr));
        logged(&stderr, message).unwrap()
    }

    /// Waits until it serves.
    pub(crate) fn serving(mut self) -> Child {
        self.wait_logged("serving admin");
        let Self { dir, guard } = self;
        let stderr = dir.join("stderr");
        let probe = Probe {
            probes: address(&stderr, "serving probes"),
            admin: address(&stderr, "serving admin"),
        };
        Child { dir, guard, probe }
    }

    /// Tells it to stop, and waits for its end.
    pub(crate) fn stop(self) -> ExitStatus {
        self.guard.stop(LIMIT).unwrap()
    }
}

/// A running program; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) dir: TempDir,
    pub(crate) guard: ChildGuard,
    probe: Probe,
}

impl Child {
    pub(crate) fn start(config: &str, routes: &str) -> Self {
        Self::start_in(directory(config, routes), "true", "stderr")
    }

    /// Starts behind a command of the shell, such as one that sets a variable.
    pub(crate) fn start_behind(command: &str, config: &str, routes: &str) -> Self {
        Self::start_in(directory(config, routes), command, "stderr")
    }

    /// Bounds the descriptors of the running process, so that about `more` can be opened still;
    /// returns how many it may have.
    pub(crate) fn leave_descriptors(&self, more: usize) -> usize {
        let limit = self.guard.usage().unwrap().descriptors + more;
        self.guard.limit_descriptors(limit).unwrap();
        limit
    }

    /// Starts with everything logged to a pipe, which is read until the program is ready and never
    /// again. Returns the pipe too: when it is dropped, writing to it fails.
    pub(crate) fn start_unread(config: &str, routes: &str) -> (Self, File) {
        let dir = directory(config, routes);
        let path = dir.join("pipe");
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        // Open for both, so that neither side waits for the other.
        let pipe = File::options().read(true).write(true).open(&path).unwrap();
        let (reading, stderr) = (pipe.try_clone().unwrap(), dir.join("stderr"));
        std::thread::spawn(move || {
            let mut copy = File::create(stderr).unwrap();
            for line in BufReader::new(reading).lines() {
                let line = line.unwrap();
                writeln!(copy, "{line}").unwrap();
                if line.contains("serving admin") {
                    return;
                }
            }
        });
        let child = Self::start_in(dir, "export RUST_LOG=trace", "pipe");
        (child, pipe)
    }

    fn start_in(dir: TempDir, before: &str, log: &str) -> Self {
        Starting::begin_in(dir, before, log).serving()
    }

    /// Returns the address that the log names for `listener`.
    pub(crate) fn addr(&self, listener: &str) -> SocketAddr {
        let events = events(&self.dir.join("stderr"));
        let found = events
            .iter()
            .find(|event| event["listener"] == listener && event["address"].is_string());
        found.unwrap()["address"].as_str().unwrap().parse().unwrap()
    }

    /// Returns what was written to standard output, which is the access log.
    pub(crate) fn stdout(&self) -> String {
        self.guard.log()
    }

    /// Returns what was logged so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        events(&self.dir.join("stderr"))
    }

    pub(crate) fn stderr(&self) -> String {
        text(&self.dir.join("stderr"))
    }

    /// Waits for the access-log line of the connection from `peer`; the format must be JSON.
    pub(crate) fn access_line(&self, peer: SocketAddr) -> Value {
        self.access_line_with(peer, |_| true)
    }

    /// As [`Child::access_line`], of one listener: another one may have had the same peer before.
    pub(crate) fn access_line_at(&self, listener: &str, peer: SocketAddr) -> Value {
        self.access_line_with(peer, |line| line["listener"] == listener)
    }

    fn access_line_with(&self, peer: SocketAddr, is_it: impl Fn(&Value) -> bool) -> Value {
        let line = wait::until_some(&format!("the access-log line of {peer}"), LIMIT, || {
            let log = self.stdout();
            let lines = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines
                .into_iter()
                .find(|line: &Value| line["peer"] == peer.to_string() && is_it(line))
        });
        line.unwrap()
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.guard.signal(signal).unwrap();
    }

    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        let ended = self.guard.wait_exit(LIMIT);
        assert!(ended.is_ok(), "{ended:?}\n{}", self.stderr());
        ended.unwrap()
    }
}

impl Deref for Child {
    type Target = Probe;

    fn deref(&self) -> &Probe {
        &self.probe
    }
}

/// Runs the program to its end in `dir`.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sni-proxy"));
    command.current_dir(dir).args(args);
    testkit::command::output(&mut command).unwrap()
}

fn directory(config: &str, routes: &str) -> TempDir {
    let dir = TempDir::new("gateway-child").unwrap();
    dir.write("routes.yaml", routes).unwrap();
    dir.write("sni-proxy.yaml", whole(config)).unwrap();
    dir
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn events(stderr: &Path) -> Vec<Value> {
    let log = text(stderr);
    log.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn logged(stderr: &Path, message: &str) -> Option<Value> {
    events(stderr)
        .into_iter()
        .find(|event| event["message"] == message)
}

fn address(stderr: &Path, message: &str) -> SocketAddr {
    let event = logged(stderr, message).unwrap();
    event["address"].as_str().unwrap().parse().unwrap()
}
