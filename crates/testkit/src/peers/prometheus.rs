//! Prometheus: the server for one test, asked by its HTTP API, and `promtool`.
//!
//! ```text
//!   targets ◀─ scrape ─ Prometheus ◀─ query ─ the test
//! ```
//!
//! Both are of Debian's package `prometheus`. Configurations are the caller's.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command;
use crate::http::{self, Target};
use crate::netns::Place;
use crate::process::ChildGuard;

/// A running Prometheus. Dropping it stops it.
#[derive(Debug)]
pub struct Prometheus<'n> {
    child: ChildGuard,
    place: Place<'n>,
    addr: SocketAddr,
}

impl<'n> Prometheus<'n> {
    /// Starts it in `place` on a free port of `127.0.0.1`, with its files in `dir`, and waits until
    /// it is ready. Names of files in `config` are relative to `dir`.
    pub fn start(place: Place<'n>, dir: &Path, config: &str) -> Result<Self> {
        let program = command::require("prometheus")?;
        let path = dir.join("prometheus.yml");
        std::fs::write(&path, config).with_context(|| format!("writing {}", path.display()))?;
        let addr = place.free_address()?;
        let mut command = place.command(program);
        command.arg(format!("--config.file={}", path.display()));
        let data = dir.join("tsdb");
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg(format!("--web.listen-address={addr}"));
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(proxy);
        }
        let mut this = Self {
            child: ChildGuard::spawn("prometheus", &command, &dir.join("prometheus.log"))?,
            place,
            addr,
        };
        let target = this.target();
        let ready = || place.is_ok(&target, "/-/ready");
        this.child.wait_ready(Duration::from_secs(30), ready)?;
        Ok(this)
    }

    /// Evaluates an expression now; returns the samples of its result.
    pub fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let answer = self.get(&format!("/api/v1/query?query={}", encoded(expression)))?;
        list(&answer["data"]["result"])
            .with_context(|| format!("the result of {expression}: {answer}"))
    }

    /// Returns the label sets of all series that a selector matches.
    pub fn series(&self, selector: &str) -> Result<Vec<Value>> {
        let answer = self.get(&format!("/api/v1/series?match[]={}", encoded(selector)))?;
        list(&answer["data"]).with_context(|| format!("the series of {selector}: {answer}"))
    }

    /// Returns every rule, with its health and what it fired.
    pub fn rules(&self) -> Result<Vec<Value>> {
        let answer = self.get("/api/v1/rules")?;
        let groups = list(&answer["data"]["groups"]).context("groups of rules")?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array());
        Ok(rules.flatten().cloned().collect())
    }

    /// Returns the targets that are scraped, with their health.
    pub fn targets(&self) -> Result<Vec<Value>> {
        let answer = self.get("/api/v1/targets?state=active")?;
        list(&answer["data"]["activeTargets"]).context("targets")
    }

    pub fn log_tail(&self) -> String {
        self.child.log_tail(20)
    }

    fn get(&self, path: &str) -> Result<Value> {
        let target = self.target();
        let answer = self.place.run(|| http::get(&target, path))??;
        let (status, text) = (answer.status, answer.text());
        ensure!(status == 200, "{path}: {status}: {text}");
        answer.json()
    }

    fn target(&self) -> Target {
        Target::plain(self.addr).timeout(Duration::from_secs(10))
    }
}

pub fn promtool(dir: &Path, arguments: &[&str]) -> Result<String> {
    let mut promtool = Command::new(command::require("promtool")?);
    command::run(promtool.current_dir(dir).args(arguments))
}

fn list(value: &Value) -> Option<Vec<Value>> {
    value.as_array().cloned()
}

fn encoded(text: &str) -> String {
    let mut query = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            query.push(char::from(byte));
        } else {
            let _ = write!(query, "%{byte:02X}");
        }
    }
    query
}
