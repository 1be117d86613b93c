//! A server and an agent of our own, started on loopback with upstream's flags.
//!
//! ```text
//! load ──▶ UNIX socket or 127.0.0.1:frontend ── server ── 127.0.0.1:agents ◀── agent ──▶ destination
//! ```
//!
//! Only flags that upstream has are used, so that upstream's programs can be started the same way.
//! The programs end, and their directory goes, with the value.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use testkit::ports;
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;

use super::credentials::{Credentials, client_config};
use super::frontend::{Frontend, Transport};
use super::side::{Side, status};
use crate::cpus::{Bound, Role};

#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) agent_args: Vec<String>,
    pub(crate) cpus: Bound,
    pub(crate) server: PathBuf,
    pub(crate) server_args: Vec<String>,
}

pub(crate) struct Pair {
    agent: ChildGuard,
    server: ChildGuard,
    pub(crate) frontend: Frontend,
    pub(crate) sides: (Side, Side),
    _dir: TempDir,
}

impl Pair {
    pub(crate) fn start(programs: &Programs, transport: Transport) -> Result<Self> {
        let dir = TempDir::new("bench-knp")?;
        let credentials = Credentials::make(&dir)?;
        let plan = Plan::new(&dir, transport)?;
        let command = plan.server(programs, &credentials)?;
        let mut server = ChildGuard::spawn("the server", &command, &dir.join("server.log"))?;
        server.wait_ready(START_LIMIT, || {
            status(plan.server_health, "/healthz") == Some(200)
        })?;
        let command = plan.agent(programs, &credentials)?;
        let mut agent = ChildGuard::spawn("the agent", &command, &dir.join("agent.log"))?;
        let arrived = || status(plan.server_health, "/readyz") == Some(200);
        agent
            .wait_ready(START_LIMIT, arrived)
            .with_context(|| format!("the server says:\n{}", server.log_tail(20)))?;
        Ok(Self {
            frontend: plan.client(&credentials)?,
            sides: (
                Side::new(Some(server.pid()), Some(plan.server_health)),
                Side::new(Some(agent.pid()), Some(plan.agent_health)),
            ),
            agent,
            server,
            _dir: dir,
        })
    }

    pub(crate) fn freeze_agent(&mut self) -> Result<()> {
        self.agent.signal(Signal::STOP)
    }

    pub(crate) fn thaw_agent(&mut self) -> Result<()> {
        self.agent.signal(Signal::CONT)
    }

    pub(crate) fn logs(&self) -> String {
        let (server, agent) = (self.server.log_tail(LINES), self.agent.log_tail(LINES));
        format!("the server says:\n{server}\nthe agent says:\n{agent}")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A frozen process does not end when asked to.
        let _ = self.thaw_agent();
        // Upstream's agent takes the first request to end as one to drain.
        let _ = self.agent.kill();
    }
}

struct Plan {
    transport: Transport,
    socket: PathBuf,
    frontend: u16,
    agents: u16,
    server_health: SocketAddr,
    server_admin: u16,
    agent_health: SocketAddr,
    agent_admin: u16,
}

impl Plan {
    fn new(dir: &TempDir, transport: Transport) -> Result<Self> {
        let mut ports = ports::free(6)?.into_iter();
        let mut port = || ports.next().context("too few ports");
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self {
            transport,
            socket: dir.join("frontend.sock"),
            frontend: port()?,
            agents: port()?,
            server_health: at(port()?),
            server_admin: port()?,
            agent_health: at(port()?),
            agent_admin: port()?,
        })
    }

    fn server(&self, programs: &Programs, credentials: &Credentials) -> Result<Command> {
        let mode = if self.transport.is_grpc() {
            "grpc"
        } else {
            "http-connect"
        };
        let mut flags = vec![
            flag("mode", mode),
            flag("cluster-cert", credentials.cluster.cert.display()),
            flag("cluster-key", credentials.cluster.key.display()),
            flag("cluster-ca-cert", credentials.agents_ca.display()),
            flag("agent-bind-address", LOOPBACK),
            flag("agent-port", self.agents),
            flag("health-bind-address", LOOPBACK),
            flag("health-port", self.server_health.port()),
            flag("admin-port", self.server_admin),
        ];
        if self.transport.is_uds() {
            flags.push(flag("uds-name", self.socket.display()));
            flags.push(flag("server-port", 0));
        } else {
            flags.push(flag("server-bind-address", LOOPBACK));
            flags.push(flag("server-port", self.frontend));
            flags.push(flag("server-ca-cert", credentials.frontend_ca.display()));
            flags.push(flag("server-cert", credentials.frontend.cert.display()));
            flags.push(flag("server-key", credentials.frontend.key.display()));
        }
        let mut command = programs.cpus.command(Role::Server, &programs.server)?;
        command.args(flags).arg("-v=0").args(&programs.server_args);
        Ok(command)
    }

    fn agent(&self, programs: &Programs, credentials: &Credentials) -> Result<Command> {
        let flags = [
            flag("ca-cert", credentials.agents_ca.display()),
            flag("agent-cert", credentials.agent.cert.display()),
            flag("agent-key", credentials.agent.key.display()),
            flag("proxy-server-host", LOOPBACK),
            flag("proxy-server-port", self.agents),
            flag("health-server-host", LOOPBACK),
            flag("health-server-port", self.agent_health.port()),
            flag("admin-server-port", self.agent_admin),
        ];
        let mut command = programs.cpus.command(Role::Agent, &programs.agent)?;
        command.args(flags).arg("-v=0").args(&programs.agent_args);
        Ok(command)
    }

    fn client(&self, credentials: &Credentials) -> Result<Frontend> {
        let grpc = self.transport.is_grpc();
        if self.transport.is_uds() {
            let path = self.socket.clone();
            return Ok(Frontend::Uds { grpc, path });
        }
        let (ca, identity) = (&credentials.frontend_ca, &credentials.apiserver);
        Ok(Frontend::Tls {
            grpc,
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, self.frontend)),
            name: ServerName::try_from("localhost").context("a server's name")?,
            config: client_config(ca, identity, grpc)?,
        })
    }
}

fn flag(name: &str, value: impl Display) -> String {
    format!("--{name}={value}")
}

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const START_LIMIT: Duration = Duration::from_secs(20);
const LINES: usize = 20;

#[cfg(test)]
mod tests {
    use testkit::command::line;

    use super::*;
    use crate::cpus::Cpus;

    fn commands(transport: Transport) -> (String, String) {
        let dir = TempDir::new("bench-plan").unwrap();
        let programs = Programs {
            agent: "an-agent".into(),
            agent_args: vec!["--agent-id=a".to_owned()],
            cpus: Cpus::default().bind_load().unwrap(),
            server: "a-server".into(),
            server_args: vec!["--server-id=s".to_owned()],
        };
        let credentials = Credentials::make(&dir).unwrap();
        let plan = Plan::new(&dir, transport).unwrap();
        let server = plan.server(&programs, &credentials).unwrap();
        let agent = plan.agent(&programs, &credentials).unwrap();
        (line(&server), line(&agent))
    }

    #[test]
    fn a_socket_excludes_the_port_and_its_certificates() {
        let (server, agent) = commands(Transport::GrpcUds);
        assert!(server.starts_with("a-server --mode=grpc "), "{server}");
        assert!(server.contains(" --uds-name=") && server.contains(" --server-port=0 "));
        assert!(!server.contains("--server-c"), "{server}");
        assert!(server.ends_with(" -v=0 --server-id=s"), "{server}");
        assert!(agent.starts_with("an-agent --ca-cert="), "{agent}");
        assert!(agent.ends_with(" -v=0 --agent-id=a"), "{agent}");
    }

    #[test]
    fn a_port_comes_with_certificates() {
        let (server, _) = commands(Transport::HttpMtls);
        assert!(server.contains("--mode=http-connect ") && !server.contains("uds"));
        for flag in ["server-ca-cert", "server-cert", "server-key"] {
            assert!(server.contains(&format!(" --{flag}=")), "{server}");
        }
    }
}
