//! A seed, a shoot and the bad lines between, with our tunnel on them.
//!
//! ```text
//!   shoot                     internet                   seed
//!   pod ──┬── client-0 ══ impair::Link ══┐             ┌── server-0 :9443 ◀─┐
//!         └── client-1 ══ impair::Link ══┴── gateway ──┴── server-1 :9443 ◀─┴─ API server (the test)
//! ```
//!
//! Each box is a namespace. [`World::lay`] makes them, keys, certificates and configurations, and
//! starts nothing; a test starts, kills and freezes the programs one by one, impairs the lines, and
//! dials as an API server does. What was made goes with the value, also when a test panics.
//!
//! It knows the programs by their configuration and their ports alone.

mod files;
mod held;
mod network;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command;
use crate::http::{self, Connection, Proxy, Response, Target, Upgraded};
use crate::impair::Link;
use crate::metrics::Metrics;
use crate::netns::{Namespace, Place};
use crate::peers::faketime;
use crate::process::ChildGuard;
use crate::tempdir::TempDir;
use crate::upstream::{Behavior, Upstream};

pub use files::{Credentials, Keys, merge, write};
pub use held::{Held, PAUSE, Report};
pub use network::{Addresses, GATEWAY, GATEWAY_V6, NODE, Network, POD, POD_V6, SERVICE, SeedRange};

#[derive(Clone, Debug)]
pub struct Programs {
    pub gateway: PathBuf,
    pub server: PathBuf,
    pub client: PathBuf,
}

#[derive(Clone, Debug)]
pub struct Params {
    /// Tunnel servers, and so tunnels of each client.
    pub servers: usize,
    pub clients: usize,
    pub seed_range: SeedRange,
    /// Whether pods have IPv6 addresses that can be reached through the tunnel.
    pub ipv6: bool,
    /// `auto`, `tcp` or `udp`.
    pub transport: &'static str,
    /// TCP options of the gateway, toward clients and toward servers.
    pub tcp: [Value; 2],
    /// What of the servers' configuration is otherwise: an object, merged into ours.
    pub server: Value,
    /// What of the clients' configuration is otherwise.
    pub client: Value,
    /// The seed of the lines' random sequences.
    pub random_seed: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            servers: 1,
            clients: 1,
            seed_range: SeedRange::Own,
            ipv6: false,
            transport: "auto",
            tcp: [(); 2].map(|()| json!({ "notsentLowat": "64KiB" })),
            server: json!({}),
            client: json!({}),
            random_seed: 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Gateway,
    /// A tunnel server, from 0.
    Server(usize),
    /// A tunnel client, from 0.
    Client(usize),
}

/// The world. Fields are dropped in this order: programs end before what they run in.
#[derive(Debug)]
pub struct World {
    gateway: Option<ChildGuard>,
    clients: Vec<Option<ChildGuard>>,
    servers: Vec<Option<ChildGuard>>,
    programs: Programs,
    params: Params,
    pub credentials: Credentials,
    /// Who has which keys, as the configurations say.
    pub keys: Keys,
    pub network: Network,
    /// Keys, configurations and logs.
    pub dir: TempDir,
}

impl World {
    /// Makes namespaces, lines, keys, certificates and configurations. No program is left running.
    pub fn lay(programs: Programs, params: Params) -> Result<Self> {
        let dir = TempDir::new("tunnel-world")?;
        let network = Network::lay(&params)?;
        let keys = Keys::make(&programs.server, dir.path(), &params)?;
        let credentials = Credentials::make(dir.path(), &network.addresses)?;
        let world = Self {
            gateway: None,
            clients: (0..params.clients).map(|_| None).collect(),
            servers: (0..params.servers).map(|_| None).collect(),
            programs,
            params,
            credentials,
            keys,
            network,
            dir,
        };
        world.write_files()?;
        Ok(world)
    }

    /// Writes every configuration anew, from [`World::keys`] as they are now. Each file is replaced
    /// in one step; running programs see what they watch.
    pub fn write_files(&self) -> Result<()> {
        write(&self.dir, &self.params, &self.network.addresses, &self.keys)
    }

    /// Starts all programs and waits until every server and client is ready, which they are once
    /// something came back through the tunnel.
    pub fn start(&mut self) -> Result<()> {
        for part in self.parts() {
            self.start_part(part)?;
        }
        for part in self.parts() {
            self.wait_ready(part)?;
        }
        Ok(())
    }

    /// Returns every program there can be.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::Gateway];
        parts.extend((0..self.params.servers).map(Part::Server));
        parts.extend((0..self.params.clients).map(Part::Client));
        parts
    }

    /// Starts one program, and does not wait for it. One that runs is stopped first.
    pub fn start_part(&mut self, part: Part) -> Result<()> {
        self.start_command(part, &self.command(part))
    }

    /// Starts one program, as [`Self::start_part`] does, that sees a time of day which is `behind`.
    pub fn start_part_behind(&mut self, part: Part, behind: Duration) -> Result<()> {
        let mut command = self.command(part);
        faketime::set_behind(&mut command, behind)?;
        self.start_command(part, &command)
    }

    fn start_command(&mut self, part: Part, command: &Command) -> Result<()> {
        *self.slot(part)? = None;
        if self.params.ipv6
            && let Part::Client(_) = part
        {
            command::run(self.command(part).arg("setup"))?;
        }
        let log = self.dir.join(format!("{}.log", files::name(part)));
        let child = ChildGuard::spawn(&files::name(part), command, &log)?;
        *self.slot(part)? = Some(child);
        Ok(())
    }

    pub fn wait_ready(&mut self, part: Part) -> Result<()> {
        let target = probe_target(part);
        // Taken out meanwhile: the question borrows the world.
        let mut child = self.slot(part)?.take();
        let namespace = self.namespace(part);
        let ready = || Place::In(namespace).is_ok(&target, "/readyz");
        let started = child.as_mut().context("it was not started");
        let waited = started.and_then(|child| child.wait_ready(LIMIT, ready));
        *self.slot(part)? = child;
        waited.with_context(|| format!("waiting for {}", files::name(part)))
    }

    /// Returns a running program's process: to kill, freeze or measure it.
    pub fn child(&mut self, part: Part) -> Result<&mut ChildGuard> {
        self.slot(part)?
            .as_mut()
            .with_context(|| format!("{} was not started", files::name(part)))
    }

    pub fn probe(&self, part: Part, path: &str) -> Result<Response> {
        let target = probe_target(part);
        self.namespace(part).run(|| http::get(&target, path))?
    }

    /// Returns a metric of a program, summed over every series with `labels`; `None` while there is
    /// no such series or no answer.
    pub fn metric(&self, part: Part, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.probe(part, "/metrics").ok()?.text();
        Metrics::parse(&text).ok()?.value(name, labels)
    }

    /// Returns what dials `authority` (`host:port` in the shoot) through a server's proxy, with the
    /// API server's certificate.
    pub fn target(&self, server: usize, authority: &str) -> Target {
        let addr = SocketAddr::new(self.network.addresses.server(server), PROXY_PORT);
        Target::plain(addr).timeout(LIMIT).proxy(Proxy::ConnectTls {
            authority: authority.to_owned(),
            server_name: PROXY_NAME.to_owned(),
            authority_pem: self.credentials.authority.pem().to_owned(),
            identity: self.credentials.api_server.clone(),
        })
    }

    /// Dials `authority` through a server's proxy, from where API servers are.
    ///
    /// Fails when a step fails; an answer other than 200 carries [`http::RefusedByProxy`].
    pub fn dial(&self, server: usize, authority: &str) -> Result<Upgraded> {
        let target = self.target(server, authority);
        let opened = self.network.api_server.run(|| Connection::open(&target))?;
        Ok(opened?.raw())
    }

    pub fn echo(&self, addr: &str) -> Result<Upstream> {
        let addr = addr.parse().with_context(|| format!("reading {addr}"))?;
        let listener = Place::In(&self.network.pod).bind(addr)?;
        Upstream::serve(listener, Behavior::Echo)
    }

    /// Returns the line of a client, whose first end is the client's.
    ///
    /// # Panics
    /// When there is no such client.
    pub fn link(&self, client: usize) -> &Link {
        &self.network.links[client]
    }

    /// Returns where a program runs.
    ///
    /// # Panics
    /// When the world has no such program.
    pub fn namespace(&self, part: Part) -> &Namespace {
        match part {
            Part::Gateway => &self.network.gateway,
            Part::Server(index) => &self.network.servers[index],
            Part::Client(index) => &self.network.clients[index],
        }
    }

    pub fn command(&self, part: Part) -> Command {
        let program: &Path = match part {
            Part::Gateway => &self.programs.gateway,
            Part::Server(_) => &self.programs.server,
            Part::Client(_) => &self.programs.client,
        };
        let mut command = self.namespace(part).command(program);
        let config = self.dir.join(format!("{}.yaml", files::name(part)));
        command
            .args(["--log-format", "json", "--config"])
            .arg(config);
        command
    }

    fn slot(&mut self, part: Part) -> Result<&mut Option<ChildGuard>> {
        let slot = match part {
            Part::Gateway => Some(&mut self.gateway),
            Part::Server(index) => self.servers.get_mut(index),
            Part::Client(index) => self.clients.get_mut(index),
        };
        slot.with_context(|| format!("no {part:?} in this world"))
    }
}

fn probe_target(part: Part) -> Target {
    let port = match part {
        Part::Gateway => 15021,
        Part::Server(_) => 15000,
        Part::Client(_) => 8080,
    };
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    Target::plain(addr).timeout(Duration::from_secs(5))
}

/// A hang is a failure; nothing here takes a tenth of this.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Where a server takes CONNECT requests of API servers.
pub const PROXY_PORT: u16 = 9443;

/// The Service in front of the servers' proxies, by whose name API servers ask.
pub const PROXY_NAME: &str = "vpn-seed-server";
