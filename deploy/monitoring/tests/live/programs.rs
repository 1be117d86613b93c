//! Programs of ours as processes: found, built if need be, started, asked.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use testkit::http::{self, Target};
use testkit::netns::Place;
use testkit::ports;
use testkit::process::ChildGuard;
use testkit::tunnel_world::Programs;

/// The longest any single effect is waited for; machines that build meanwhile are slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Finds a binary of the workspace beside this test.
pub(crate) fn binary(package: &str, name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    testkit::command::sibling(own.parent().unwrap(), package, name).unwrap()
}

/// Returns the programs of a tunnel.
pub(crate) fn tunnel() -> Programs {
    Programs {
        gateway: binary("sni-proxy", "sni-proxy"),
        server: binary("vpn-server", "vpn-server"),
        client: binary("vpn-client", "vpn-client"),
    }
}

/// A running program that is configured by a file and logs JSON. Dropping it stops it.
pub(crate) struct Program {
    child: ChildGuard,
    pub(crate) probes: SocketAddr,
}

impl Program {
    /// Starts the binary `name` with `config`, and waits until it says where it answers probes.
    pub(crate) fn start(dir: &Path, name: &str, file: &str, config: &Value) -> Self {
        Self::start_in(Place::Here, dir, name, file, config)
    }

    /// As [`Program::start`], in `place`.
    pub(crate) fn start_in(
        place: Place<'_>,
        dir: &Path,
        name: &str,
        file: &str,
        config: &Value,
    ) -> Self {
        let path = dir.join(format!("{file}.yaml"));
        fs::write(&path, format!("{config:#}")).unwrap();
        let mut command = place.command(binary(name, name));
        command
            .args(["--log-format", "json", "--config"])
            .arg(&path);
        let log = path.with_extension("log");
        let mut child = ChildGuard::spawn(file, &command, &log).unwrap();
        let line = child.wait_log("\"serving probes\"", LIMIT).unwrap();
        let probes = address(&serde_json::from_str(&line).unwrap());
        Self { child, probes }
    }

    pub(crate) fn wait_ready(&mut self) {
        let target = Target::plain(self.probes);
        let ready = || http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200);
        self.child.wait_ready(LIMIT, ready).unwrap();
    }

    /// Returns where the listener `name` is bound.
    pub(crate) fn listener(&mut self, name: &str) -> SocketAddr {
        self.child.wait_log("\"listener\"", LIMIT).unwrap();
        let log = self.child.log();
        let bound = { log.lines() }
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["listener"] == name && line["address"].is_string());
        address(&bound.unwrap_or_else(|| panic!("no listener {name}:\n{log}")))
    }
}

fn address(line: &Value) -> SocketAddr {
    line["address"].as_str().unwrap().parse().unwrap()
}

/// Returns a free port of `127.0.0.1`.
pub(crate) fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], ports::free(1).unwrap()[0]))
}
