//! The API server that all is measured with, how it is filled, and how a controller is run on it.
//!
//! ```text
//! objects ──▶ kube-apiserver, etcd ◀── netpol-controller ── /metrics, /readyz
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::http::{self, Connection, Target};
use testkit::metrics::Metrics;
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::wait;

/// Connections that fill the API server at the same time.
const FILLERS: usize = 8;

pub(crate) struct Cluster<'a> {
    /// The network that everything is in; so must be the thread that uses this.
    pub(crate) place: Place<'a>,
    pub(crate) dir: PathBuf,
    server: KubeApiServer,
    kubeconfig: PathBuf,
}

pub(crate) struct Running {
    pub(crate) child: ChildGuard,
    probes: SocketAddr,
}

impl<'a> Cluster<'a> {
    pub(crate) fn start(dir: &TempDir, place: Place<'a>) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let params = KubeParams::new(address, &[]);
        let server = KubeApiServer::start(place, &dir.join("kube"), &params)?;
        let kubeconfig = dir.join("kubeconfig");
        server.write_kubeconfig(&kubeconfig, server.addr(), None)?;
        Ok(Self {
            place,
            dir: dir.path().to_owned(),
            server,
            kubeconfig,
        })
    }

    pub(crate) fn connection(&self) -> Result<Connection> {
        Connection::open(&self.server.target())
    }

    /// Creates objects, each by the path of its collection, several at a time.
    pub(crate) fn fill(&self, objects: &[(String, Value)]) -> Result<()> {
        let share = objects.len().div_ceil(FILLERS).max(1);
        std::thread::scope(|scope| {
            let fillers: Vec<_> = objects
                .chunks(share)
                .map(|share| scope.spawn(move || self.create(share)))
                .collect();
            for filler in fillers {
                match filler.join() {
                    Ok(result) => result?,
                    Err(_) => bail!("a filler panicked"),
                }
            }
            Ok(())
        })
    }

    fn create(&self, objects: &[(String, Value)]) -> Result<()> {
        let mut connection = self.connection()?;
        for (path, object) in objects {
            let body = object.to_string();
            let answer = connection.request("POST", path, Some(&body))?;
            let (status, text) = (answer.status, answer.text());
            ensure!(status == 201, "creating at {path}: {status} {text}");
        }
        Ok(())
    }

    pub(crate) fn processor_time(&mut self) -> Result<Duration> {
        Ok(self.server.child().usage()?.cpu_time)
    }

    pub(crate) fn free_address(&self) -> Result<SocketAddr> {
        self.place.free_address()
    }

    pub(crate) fn controller(&self, program: &Path, controllers: &str) -> Result<Running> {
        let probes = self.free_address()?;
        let config = self.dir.join("controller.yaml");
        let text = format!(
            "kubeconfig: {}\nleaderElection: {{ enabled: false }}\n\
             probes: {{ address: \"{probes}\" }}\nadmin: {{ address: \"\" }}\n\
             controllers:\n{controllers}",
            self.kubeconfig.display()
        );
        std::fs::write(&config, text).context("writing the controller's configuration")?;
        let mut command: Command = self.place.command(program);
        command.arg("--config").arg(&config).env("RUST_LOG", "info");
        let log = self.dir.join("controller.log");
        let child = ChildGuard::spawn("netpol-controller", &command, &log)?;
        Ok(Running { child, probes })
    }
}

impl Running {
    pub(crate) fn wait_ready(&self) -> Result<()> {
        let target = Target::plain(self.probes);
        let limit = Duration::from_secs(120);
        let ready = || Place::Here.is_ok(&target, "/readyz");
        wait::until("the controller to be ready", limit, ready)
    }

    fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&http::get(&Target::plain(self.probes), "/metrics")?.text())
    }

    /// Returns the sum of a family's samples that have these labels; 0 without any.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let metrics = self.metrics()?;
        Ok(metrics.matching(name, labels).map(|one| one.value).sum())
    }
}

pub(crate) fn soon(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let clock = wait::Stopwatch::start();
    while !condition()? {
        let late = clock.elapsed() >= Duration::from_secs(10);
        ensure!(!late, "waited 10 s in vain for {what}");
        wait::pause(Duration::from_millis(1));
    }
    Ok(())
}
