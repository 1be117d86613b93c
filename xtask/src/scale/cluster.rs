//! The API server that all is measured with, how it is filled, and how a controller is run on it.

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
use testkit::{ports, wait};

/// Connections that fill the API server at the same time.
const FILLERS: usize = 8;

/// A cluster without nodes.
pub(super) struct Cluster {
    pub(super) dir: PathBuf,
    pub(super) server: KubeApiServer,
    kubeconfig: PathBuf,
}

/// A running controller.
pub(super) struct Controller {
    pub(super) child: ChildGuard,
    pub(super) probes: SocketAddr,
}

impl Cluster {
    pub(super) fn start(dir: &TempDir) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let params = KubeParams::new(address, &[]);
        let server = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)?;
        let kubeconfig = dir.join("kubeconfig");
        server.write_kubeconfig(&kubeconfig, server.addr(), None)?;
        Ok(Self {
            dir: dir.path().to_owned(),
            server,
            kubeconfig,
        })
    }

    /// Returns a connection that requests follow each other on.
    pub(super) fn connection(&self) -> Result<Connection> {
        Connection::open(&self.server.target())
    }

    /// Creates objects, each by the path of its collection, several at a time.
    pub(super) fn fill(&self, objects: &[(String, Value)]) -> Result<()> {
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
            ensure!(
                answer.status == 201,
                "creating at {path}: {} {}",
                answer.status,
                answer.text()
            );
        }
        Ok(())
    }

    /// Returns the processor time of the API server so far.
    pub(super) fn processor_time(&mut self) -> Result<Duration> {
        Ok(self.server.child().usage()?.cpu_time)
    }

    /// Starts a controller with `controllers` as that part of its configuration.
    pub(super) fn controller(&self, program: &Path, controllers: &str) -> Result<Controller> {
        let port = ports::free(1)?.first().copied().context("a free port")?;
        let probes = SocketAddr::from(([127, 0, 0, 1], port));
        let config = self.dir.join("controller.yaml");
        let text = format!(
            "kubeconfig: {}\nleaderElection: {{ enabled: false }}\n\
             probes: {{ address: \"{probes}\" }}\nadmin: {{ address: \"\" }}\n\
             controllers:\n{controllers}",
            self.kubeconfig.display()
        );
        std::fs::write(&config, text).context("writing the controller's configuration")?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).env("RUST_LOG", "info");
        let log = self.dir.join("controller.log");
        let child = ChildGuard::spawn("netpol-controller", &command, &log)?;
        Ok(Controller { child, probes })
    }
}

impl Controller {
    /// Waits until everything is known.
    pub(super) fn wait_ready(&self) -> Result<()> {
        let target = Target::plain(self.probes);
        let ready = || http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200);
        wait::until(
            "the controller to be ready",
            Duration::from_secs(120),
            ready,
        )
    }

    pub(super) fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&http::get(&Target::plain(self.probes), "/metrics")?.text())
    }

    /// Returns the sum of a family's samples that have these labels; 0 without any.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let metrics = self.metrics()?;
        Ok(metrics.matching(name, labels).map(|one| one.value).sum())
    }
}

/// Returns the value that `percent` of all are at or below, of sorted ones.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or_default()
}

/// Tells the median, the 99th percentile and the longest of delays, and holds them to a limit.
pub(super) fn judge(mut delays: Vec<Duration>, limit: Duration) -> Result<String> {
    delays.sort();
    let ms = |delay: Duration| delay.as_secs_f64() * 1000.0;
    let (p50, p99) = (percentile(&delays, 50), percentile(&delays, 99));
    let most = delays.last().copied().unwrap_or_default();
    let told = format!(
        "p50 {:.1} ms, p99 {:.1} ms (limit {} ms), longest {:.1} ms, of {}",
        ms(p50),
        ms(p99),
        limit.as_millis(),
        ms(most),
        delays.len()
    );
    ensure!(p99 <= limit, "{told}");
    Ok(told)
}

/// Asks every millisecond until `condition` holds.
pub(super) fn soon(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let clock = wait::Stopwatch::start();
    while !condition()? {
        ensure!(
            clock.elapsed() < Duration::from_secs(10),
            "waited 10 s in vain for {what}"
        );
        wait::pause(Duration::from_millis(1));
    }
    Ok(())
}
