//! `konnectivity-server` as a program of its own.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use testkit::konnectivity::{AgentTarget, FakeFrontend, GrpcFrontend, HttpFrontend};
use testkit::ports;
use testkit::process::{ChildGuard, Signal};
use testkit::wait;

use super::{LIMIT, Pki, Probe};

/// What the frontends speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Grpc,
    Http,
}

/// How a server is started: on a Unix socket, with ports of its own, unless told otherwise.
#[derive(Debug)]
pub(crate) struct ServerFlags {
    pub(crate) pki: Arc<Pki>,
    pub(crate) name: String,
    mode: Mode,
    ports: [u16; 4],
    frontend: Frontend,
    verify_agents: bool,
    descriptors: Option<usize>,
    more: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frontend {
    Registry,
    Tcp,
    Uds,
}

impl ServerFlags {
    pub(crate) fn new(mode: Mode) -> Self {
        Self::of(&Arc::new(Pki::new()), "server", mode)
    }

    /// Another server of the same authority; `name` must differ.
    pub(crate) fn of(pki: &Arc<Pki>, name: &str, mode: Mode) -> Self {
        let ports = ports::free(4).unwrap();
        Self {
            pki: Arc::clone(pki),
            name: name.to_owned(),
            mode,
            ports: ports.try_into().unwrap(),
            frontend: Frontend::Uds,
            verify_agents: true,
            descriptors: None,
            more: Vec::new(),
        }
    }

    pub(crate) fn flag(mut self, flag: impl Into<String>) -> Self {
        self.more.push(flag.into());
        self
    }

    /// Frontends come by mTLS instead of a Unix socket.
    pub(crate) fn tcp(mut self) -> Self {
        self.frontend = Frontend::Tcp;
        self
    }

    /// It may have so many descriptors, which bound its connections.
    pub(crate) fn descriptors(mut self, limit: usize) -> Self {
        self.descriptors = Some(limit);
        self
    }

    /// Agents need no certificates.
    pub(crate) fn any_agent(mut self) -> Self {
        self.verify_agents = false;
        self
    }

    /// Serves the tenants of a directory.
    pub(crate) fn registry(mut self, dir: &std::path::Path) -> Self {
        self.frontend = Frontend::Registry;
        self.verify_agents = false;
        self.flag(format!("--registry={}", dir.display()))
    }

    pub(crate) fn start(self) -> Server {
        let log = self.pki.dir.join(format!("{}.log", self.name));
        let guard = ChildGuard::spawn(&self.name, &self.command(), &log).unwrap();
        let mut server = Server {
            probe: Probe(local(self.ports[2])),
            flags: self,
            guard,
        };
        server.wait_listening();
        server
    }

    pub(crate) fn command(&self) -> Command {
        let [frontends, agents, health, admin] = self.ports;
        let pki = &self.pki;
        let mut command = Command::new(env!("CARGO_BIN_EXE_konnectivity-server"));
        if let Some(limit) = self.descriptors {
            let program = std::mem::replace(&mut command, Command::new("prlimit"));
            command.arg(format!("--nofile={limit}"));
            command.arg(program.get_program());
        }
        let mut arg = |name: &str, value: String| {
            command.arg(format!("--{name}={value}"));
        };
        let path = |path: &PathBuf| path.display().to_string();
        let word = match self.mode {
            Mode::Grpc => "grpc",
            Mode::Http => "http-connect",
        };
        arg("mode", word.to_owned());
        if self.frontend == Frontend::Uds {
            arg("uds-name", path(&self.uds()));
            arg("server-port", "0".to_owned());
        } else {
            arg("server-bind-address", "127.0.0.1".to_owned());
            arg("server-port", frontends.to_string());
            arg("server-cert", path(&pki.server_files.cert));
            arg("server-key", path(&pki.server_files.key));
        }
        if self.frontend == Frontend::Tcp {
            arg("server-ca-cert", path(&pki.ca));
        }
        if self.verify_agents {
            arg("cluster-ca-cert", path(&pki.ca));
        }
        arg("cluster-cert", path(&pki.server_files.cert));
        arg("cluster-key", path(&pki.server_files.key));
        for (name, port) in [("agent", agents), ("health", health)] {
            arg(&format!("{name}-bind-address"), "127.0.0.1".to_owned());
            arg(&format!("{name}-port"), port.to_string());
        }
        arg("admin-port", admin.to_string());
        command.args(&self.more);
        command
    }

    /// Returns the path of the frontends' socket.
    pub(crate) fn uds(&self) -> PathBuf {
        self.pki.dir.join(format!("{}.sock", self.name))
    }
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) guard: ChildGuard,
    pub(crate) flags: ServerFlags,
    probe: Probe,
}

impl Server {
    pub(crate) fn start(mode: Mode) -> Self {
        ServerFlags::new(mode).start()
    }

    /// Returns where agents connect to.
    pub(crate) fn agents(&self) -> SocketAddr {
        local(self.flags.ports[1])
    }

    /// Returns where frontends connect to, if not by a Unix socket.
    pub(crate) fn frontends(&self) -> SocketAddr {
        local(self.flags.ports[0])
    }

    pub(crate) fn pki(&self) -> &Arc<Pki> {
        &self.flags.pki
    }

    pub(crate) fn target(&self) -> AgentTarget {
        self.pki().target(self.agents())
    }

    pub(crate) fn http(&self) -> HttpFrontend {
        HttpFrontend::uds(&self.flags.uds())
    }

    pub(crate) fn grpc(&self) -> GrpcFrontend {
        GrpcFrontend::uds(&self.flags.uds()).unwrap()
    }

    pub(crate) fn frontend(&self) -> FakeFrontend {
        match self.flags.mode {
            Mode::Grpc => FakeFrontend::Grpc(self.grpc()),
            Mode::Http => FakeFrontend::Http(self.http()),
        }
    }

    /// Waits until agents of so many ids can be chosen.
    pub(crate) fn wait_agents(&self, count: u32) {
        let name = format!("{}ready_backends", super::SERVER);
        let labels = [("proxy_strategy", "default")];
        self.wait_value(&name, &labels, f64::from(count));
    }

    pub(crate) fn established(&self) -> f64 {
        let name = format!("{}established_connections", super::SERVER);
        self.value(&name, &[])
    }

    pub(crate) fn wait_established(&self, count: u32) {
        let name = format!("{}established_connections", super::SERVER);
        self.wait_value(&name, &[], f64::from(count));
    }

    /// Waits until so many tunnels count toward the limit: one does until its agent has closed it.
    pub(crate) fn wait_tunnels(&self, count: u64) {
        let admin = Probe(local(self.flags.ports[3]));
        let reached = || admin.get("/snapshot").json().unwrap()["clusters"][0]["tunnels"] == count;
        wait::until(&format!("{count} tunnels"), LIMIT, reached).unwrap();
    }

    pub(crate) fn failures(&self, reason: &str) -> f64 {
        let name = format!("{}dial_failure_count", super::SERVER);
        self.value(&name, &[("reason", reason)])
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.guard.signal(signal).unwrap();
    }

    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        self.guard.wait_exit(LIMIT).unwrap()
    }

    /// Kills the server and starts it again with the same flags.
    pub(crate) fn restart(&mut self) {
        self.guard.kill().unwrap();
        let log = self.guard.log_path().to_owned();
        self.guard = ChildGuard::spawn("restarted", &self.flags.command(), &log).unwrap();
        self.wait_listening();
    }

    fn wait_listening(&mut self) {
        let health = self.probe.0;
        self.guard.wait_listening(health, LIMIT).unwrap();
        let agents = self.agents();
        self.guard.wait_listening(agents, LIMIT).unwrap();
        match self.flags.frontend {
            Frontend::Registry | Frontend::Tcp => {
                let frontends = self.frontends();
                self.guard.wait_listening(frontends, LIMIT).unwrap();
            }
            Frontend::Uds => {
                let uds = self.flags.uds();
                let connects = || std::os::unix::net::UnixStream::connect(&uds).is_ok();
                self.guard.wait_ready(LIMIT, connects).unwrap();
            }
        }
    }
}

impl Deref for Server {
    type Target = Probe;

    fn deref(&self) -> &Probe {
        &self.probe
    }
}

pub(super) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
