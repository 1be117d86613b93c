//! The steps, in the order a person reads them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use testkit::http::{self, Target};
use testkit::netns::Place;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use super::gateway::{self, Extra};
use super::konnectivity::Konnectivity;
use super::network::Network;
use super::node::{self, Mode};
use super::shoot::Shoot;
use super::tunnel::Tunnel;
use super::watcher::Watcher;
use crate::console::Console;
use crate::workspace::Programs;

mod balance;
mod drain;
mod egress;
mod handover;
mod reload;
mod tunnel;

/// Everything that runs. Fields are dropped in this order: clients before servers before cables.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) programs: Programs,
    pub(super) nodes: [ChildGuard; 2],
    pub(super) konnectivity: Option<Konnectivity>,
    pub(super) tunnel: Option<Tunnel>,
    pub(super) gateway: ChildGuard,
    pub(super) shoots: [Shoot; 2],
    pub(super) network: Network,
    pub(super) dir: TempDir,
}

/// Walks every path and returns what is running at the end.
pub(super) fn all(console: &mut Console, programs: Programs, dir: TempDir) -> Result<Stage> {
    let mut stage = build(console, programs, dir)?;
    by_server_name(console, &stage)?;
    by_node_proxy(console, &stage, Mode::Proxy)?;
    reload::show(console, &stage)?;
    switch_to_connect(console, &mut stage)?;
    by_node_proxy(console, &stage, Mode::Connect)?;
    handover::show(console, &mut stage)?;
    balance::show(console, &stage)?;
    drain::show(console, &mut stage)?;
    egress::show(console, &mut stage)?;
    tunnel::show(console, &mut stage)?;
    footprint(console, &stage)?;
    Ok(stage)
}

fn build(console: &mut Console, programs: Programs, dir: TempDir) -> Result<Stage> {
    console.heading("Setting the stage");
    let network = console.step("network namespaces: a seed, two shoots, a user", || {
        let network = Network::lay()?;
        let detail = "the shoots' pods have the same address, 100.96.0.10".to_owned();
        Ok((network, detail))
    })?;
    let shoots = console.step("an API server for each shoot, inside the seed", || {
        let seed = &network.seed;
        let shoots = ['a', 'b'].map(|letter| Shoot::with_stand_in(letter, seed));
        let [a, b] = shoots;
        let detail = "stand-ins at 10.8.0.11:443 and 10.8.0.12:443".to_owned();
        Ok(([a?, b?], detail))
    })?;
    let gateway = console.step("the gateway: sni-proxy", || {
        let [a, b] = &shoots;
        gateway::write_routes(&dir, &shoots, &[a, b], &[])?;
        let gateway = gateway::start(&programs, &network.seed, &dir)?;
        let detail = "ready at 192.0.2.1, ports 443, 8443, 8132 and 51820/udp".to_owned();
        Ok((gateway, detail))
    })?;
    let nodes = console.step("a proxy on each shoot's node: apiserver-proxy", || {
        let start = |index: usize| {
            let (shoot, node) = (&shoots[index], &network.shoots[index].node);
            node::start(&programs, node, &dir, shoot, Mode::Proxy)
        };
        let nodes = [start(0)?, start(1)?];
        Ok((nodes, "ready at 10.1.2.3 and 10.1.2.4".to_owned()))
    })?;
    Ok(Stage {
        programs,
        dir,
        nodes,
        konnectivity: None,
        tunnel: None,
        gateway,
        shoots,
        network,
    })
}

fn by_server_name(console: &mut Console, stage: &Stage) -> Result<()> {
    console.heading("A user reaches each API server by TLS server name, through one address");
    for shoot in &stage.shoots {
        let name = format!("user → {} → shoot {}", shoot.host, shoot.letter);
        console.check(&name, || stage.ask_by_name(shoot))?;
    }
    console.check("user → api.unknown.example.com is closed at once", || {
        let target = stage.shoots[0].target(gateway::TLS);
        let target = target.server_name("api.unknown.example.com");
        match stage.network.user.run(|| http::get(&target, "/version"))? {
            Ok(answer) => bail!("a server answered: {}", answer.text()),
            Err(error) if timed_out(&error) => Err(error.context("it is left hanging")),
            Err(_) => Ok("no route, no answer".to_owned()),
        }
    })
}

fn by_node_proxy(console: &mut Console, stage: &Stage, mode: Mode) -> Result<()> {
    console.heading(match mode {
        Mode::Connect => {
            "The same by HTTP CONNECT: the header tells, so both shoots may use one address"
        }
        Mode::Proxy => "A pod reaches its own API server at the Service's address, by PROXY header",
    });
    for (index, shoot) in stage.shoots.iter().enumerate() {
        let address = mode.address(shoot);
        let name = format!("pod in shoot {0} → {address}:443 → shoot {0}", shoot.letter);
        console.check(&name, || {
            let target = shoot.target(SocketAddr::new(address, 443));
            let pod = &stage.network.shoots[index].pod;
            pod.run(|| shoot.ask(&target))?
        })?;
    }
    Ok(())
}

fn switch_to_connect(console: &mut Console, stage: &mut Stage) -> Result<()> {
    let heading = "The nodes change from PROXY header to HTTP CONNECT";
    console.heading(heading);
    for index in 0..stage.nodes.len() {
        let shoot = &stage.shoots[index];
        let node = &stage.network.shoots[index].node;
        let running = &mut stage.nodes[index];
        let name = format!("apiserver-proxy of shoot {} is restarted", shoot.letter);
        console.check(&name, || {
            running.signal(testkit::process::Signal::TERM)?;
            let status = running.wait_exit(STOP_LIMIT)?;
            if !status.success() {
                bail!("it ended with {status}:\n{}", running.log_tail(10));
            }
            *running = node::start(&stage.programs, node, &stage.dir, shoot, Mode::Connect)?;
            Ok("ready at 10.1.2.3".to_owned())
        })?;
    }
    Ok(())
}

fn footprint(console: &mut Console, stage: &Stage) -> Result<()> {
    console.heading("What that takes");
    let [one, other] = &stage.nodes;
    let konnectivity = stage.konnectivity.iter();
    let konnectivity = konnectivity.flat_map(|pair| [&pair.server, &pair.agent]);
    let tunnel = stage.tunnel.iter();
    let tunnel = tunnel.flat_map(|tunnel| [&tunnel.server, &tunnel.client]);
    let proxies = [&stage.gateway, one, other];
    let others = konnectivity.chain(tunnel);
    for child in proxies.into_iter().chain(others) {
        console.check(child.name(), || {
            let used = child.usage()?;
            let mib = used.rss_kib as f64 / 1024.0;
            let (descriptors, threads) = (used.descriptors, used.threads);
            Ok(format!(
                "{mib:.1} MiB resident; descriptors: {descriptors}, threads: {threads}"
            ))
        })?;
    }
    Ok(())
}

/// Tells whether a socket's time limit was the reason.
fn timed_out(error: &anyhow::Error) -> bool {
    let kind = http::error_kind(error);
    matches!(kind, Some(ErrorKind::TimedOut | ErrorKind::WouldBlock))
}

impl Stage {
    fn start_gateway(&mut self) -> Result<()> {
        self.gateway = gateway::start(&self.programs, &self.network.seed, &self.dir)?;
        Ok(())
    }

    /// Writes the routes to shoots, those `named` by name as well, and `more`, and waits until they
    /// are in effect; returns their generation.
    fn change_routes(&self, named: &[&Shoot], more: &[Extra]) -> Result<f64> {
        let seed = &self.network.seed;
        let before = gateway::metric(seed, GENERATION)?;
        gateway::write_routes(&self.dir, &self.shoots, named, more)?;
        gateway::wait_metric(seed, GENERATION, |now| now > before)
    }

    fn by_name(&self, shoot: &Shoot) -> Target {
        shoot.target(gateway::TLS).server_name(&shoot.host)
    }

    fn ask_by_name(&self, shoot: &Shoot) -> Result<String> {
        let target = self.by_name(shoot);
        self.network.user.run(|| shoot.ask(&target))?
    }

    fn watch_by_name(&self, shoot: &Shoot) -> Result<Watcher> {
        shoot.watch(Place::In(&self.network.user), &self.by_name(shoot))
    }

    fn watch_from_pod(&self, index: usize, mode: Mode) -> Result<Watcher> {
        let shoot = &self.shoots[index];
        let target = shoot.target(SocketAddr::new(mode.address(shoot), 443));
        shoot.watch(Place::In(&self.network.shoots[index].pod), &target)
    }
}

const GENERATION: &str = "rhizome_snapshot_generation";
const STOP_LIMIT: Duration = Duration::from_secs(10);
