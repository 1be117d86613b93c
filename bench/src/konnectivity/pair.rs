//! A server and an agent of our own, started on loopback with upstream's flags.
//!
//! ```text
//! load ──▶ UNIX socket or 127.0.0.1:frontend ── server ── 127.0.0.1:agents ◀── agent ──▶ destination
//!
//! frontend authority ──▶ frontend.crt (server, for API servers)   ours
//! agents' authority  ──▶ cluster.crt  (server, for agents)        agent.crt
//! ```
//!
//! Only flags that upstream has are used, so that upstream's programs can be started the same way.
//! The programs end, and their directory goes, with the value.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use testkit::certs::{self, Authority};
use testkit::http;
use testkit::konnectivity::AgentTarget;
use testkit::netns::Place;
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;

use super::frontend::{Frontend, Transport};
use super::scenario::{Side, Target};
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
    /// Where agents connect, and as whom.
    pub(crate) agents: AgentTarget,
    agent: ChildGuard,
    server: ChildGuard,
    _dir: TempDir,
}

impl Pair {
    /// Starts both, waits until a dial can succeed, and returns them as a target.
    pub(crate) fn start(programs: &Programs, transport: Transport) -> Result<Target> {
        let dir = TempDir::new("bench-knp")?;
        let plan = Plan::new(&dir, transport)?;
        let (config, agents) = credentials(&dir, transport.is_grpc(), plan.agents)?;
        let health = http::Target::plain(plan.server_health).timeout(Duration::from_secs(5));
        let command = plan.server(programs)?;
        let mut server = ChildGuard::spawn("the server", &command, &dir.join("server.log"))?;
        server.wait_ready(START_LIMIT, || Place::Here.is_ok(&health, "/healthz"))?;
        let command = plan.agent(programs)?;
        let mut agent = ChildGuard::spawn("the agent", &command, &dir.join("agent.log"))?;
        agent
            .wait_ready(START_LIMIT, || Place::Here.is_ok(&health, "/readyz"))
            .with_context(|| format!("the server says:\n{}", server.log_tail(LINES)))?;
        let side = |child: &ChildGuard, health| Side {
            pid: Some(child.pid()),
            health: Some(health),
        };
        Ok(Target {
            transport,
            frontend: plan.client(config)?,
            server: side(&server, plan.server_health),
            agent: side(&agent, plan.agent_health),
            pair: Some(Self {
                agents,
                agent,
                server,
                _dir: dir,
            }),
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

/// Writes what both programs show and trust, and returns the TLS settings of a frontend's client, and
/// an agent's.
fn credentials(
    dir: &TempDir,
    grpc: bool,
    port: SocketAddr,
) -> Result<(Arc<ClientConfig>, AgentTarget)> {
    let (path, names) = (dir.path(), ["localhost", "127.0.0.1"]);
    let agents = Authority::new("bench-agents")?;
    agents.write(&dir.join("agents-ca.crt"))?;
    agents.server(&names)?.write(path, "cluster")?;
    let agent = agents.client("konnectivity-agent", &[], &[])?;
    agent.write(path, "agent")?;
    let agents = AgentTarget::new(port, agents.pem(), Some(&agent));
    let frontends = Authority::new("bench-frontends")?;
    frontends.write(&dir.join("frontend-ca.crt"))?;
    frontends.server(&names)?.write(path, "frontend")?;
    let us = frontends.client("kube-apiserver", &[], &[])?;
    let alpn = if grpc { "h2" } else { "http/1.1" };
    let config = certs::mutual_client_config(frontends.pem(), Some(&us), &[alpn])?;
    let mut config = Arc::unwrap_or_clone(config);
    // As kube-apiserver resumes none.
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), agents))
}

struct Plan<'a> {
    dir: &'a TempDir,
    transport: Transport,
    frontend: SocketAddr,
    agents: SocketAddr,
    server_health: SocketAddr,
    server_admin: SocketAddr,
    agent_health: SocketAddr,
    agent_admin: SocketAddr,
}

impl<'a> Plan<'a> {
    fn new(dir: &'a TempDir, transport: Transport) -> Result<Self> {
        let free = || Place::Here.free_address();
        Ok(Self {
            dir,
            transport,
            frontend: free()?,
            agents: free()?,
            server_health: free()?,
            server_admin: free()?,
            agent_health: free()?,
            agent_admin: free()?,
        })
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("frontend.sock")
    }

    fn file(&self, flag: &str, name: &str) -> String {
        self::flag(flag, self.dir.join(name).display())
    }

    fn server(&self, programs: &Programs) -> Result<Command> {
        let mode = if self.transport.is_grpc() {
            "grpc"
        } else {
            "http-connect"
        };
        let mut flags = vec![
            flag("mode", mode),
            self.file("cluster-cert", "cluster.crt"),
            self.file("cluster-key", "cluster.key"),
            self.file("cluster-ca-cert", "agents-ca.crt"),
            flag("agent-bind-address", LOOPBACK),
            flag("agent-port", self.agents.port()),
            flag("health-bind-address", LOOPBACK),
            flag("health-port", self.server_health.port()),
            flag("admin-port", self.server_admin.port()),
        ];
        if self.transport.is_uds() {
            flags.push(flag("uds-name", self.socket().display()));
            flags.push(flag("server-port", 0));
        } else {
            flags.push(flag("server-bind-address", LOOPBACK));
            flags.push(flag("server-port", self.frontend.port()));
            flags.push(self.file("server-ca-cert", "frontend-ca.crt"));
            flags.push(self.file("server-cert", "frontend.crt"));
            flags.push(self.file("server-key", "frontend.key"));
        }
        let mut command = programs.cpus.command(Role::Server, &programs.server)?;
        command.args(flags).arg("-v=0").args(&programs.server_args);
        Ok(command)
    }

    fn agent(&self, programs: &Programs) -> Result<Command> {
        let flags = [
            self.file("ca-cert", "agents-ca.crt"),
            self.file("agent-cert", "agent.crt"),
            self.file("agent-key", "agent.key"),
            flag("proxy-server-host", LOOPBACK),
            flag("proxy-server-port", self.agents.port()),
            flag("health-server-host", LOOPBACK),
            flag("health-server-port", self.agent_health.port()),
            flag("admin-server-port", self.agent_admin.port()),
        ];
        let mut command = programs.cpus.command(Role::Agent, &programs.agent)?;
        command.args(flags).arg("-v=0").args(&programs.agent_args);
        Ok(command)
    }

    fn client(&self, config: Arc<ClientConfig>) -> Result<Frontend> {
        let grpc = self.transport.is_grpc();
        if self.transport.is_uds() {
            let path = self.socket();
            return Ok(Frontend::Uds { grpc, path });
        }
        Ok(Frontend::Tls {
            grpc,
            addr: self.frontend,
            name: ServerName::try_from("localhost").context("a server's name")?,
            config,
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

    #[test]
    fn socket_excludes_port_and_certificates() {
        let dir = TempDir::new("bench-plan").unwrap();
        let programs = Programs {
            agent: "an-agent".into(),
            agent_args: vec!["--agent-id=a".to_owned()],
            cpus: Cpus::default().bind_load().unwrap(),
            server: "a-server".into(),
            server_args: vec!["--server-id=s".to_owned()],
        };
        let plan = |transport| Plan::new(&dir, transport).unwrap();
        let by_socket = plan(Transport::GrpcUds);
        let server = line(&by_socket.server(&programs).unwrap());
        assert!(server.starts_with("a-server --mode=grpc "), "{server}");
        assert!(server.contains(" --uds-name=") && server.contains(" --server-port=0 "));
        assert!(!server.contains("--server-c"), "{server}");
        assert!(server.ends_with(" -v=0 --server-id=s"), "{server}");
        let agent = line(&by_socket.agent(&programs).unwrap());
        assert!(agent.starts_with("an-agent --ca-cert="), "{agent}");
        assert!(agent.ends_with(" -v=0 --agent-id=a"), "{agent}");
        let by_port = plan(Transport::HttpMtls);
        let server = line(&by_port.server(&programs).unwrap());
        assert!(server.contains("--mode=http-connect ") && !server.contains("uds"));
        for flag in ["server-ca-cert", "server-cert", "server-key"] {
            assert!(server.contains(&format!(" --{flag}=")), "{server}");
        }
    }
}
