//! `konnectivity-server` and `konnectivity-agent` as processes, with certificates of one authority.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::certs::{Authority, IdentityFiles};
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::ports;
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;
use testkit::wait;

/// The longest any single effect is waited for; machines that build meanwhile are slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The URIs in certificates, by which a registry tells who is who.
pub(crate) const AGENT: &str = "spiffe://example.com/cluster/a/agent";
pub(crate) const FRONTEND: &str = "spiffe://example.com/cluster/a/kube-apiserver";

/// The Service in front of the server, by whose name API servers ask.
pub(crate) const SERVICE: &str = "konnectivity-server";

/// One of the two programs.
pub(crate) struct Program {
    name: &'static str,
    command: Command,
    log: PathBuf,
    child: ChildGuard,
    health: SocketAddr,
}

impl Program {
    fn start(name: &'static str, binary: &str, dir: &Path, arguments: &[String]) -> Self {
        let health = free();
        let mut command = Command::new(binary);
        command.args(arguments);
        match name {
            "server" => {
                command.arg("--health-bind-address=127.0.0.1");
                command.arg(format!("--health-port={}", health.port()));
                command.arg("--admin-port=0");
            }
            _ => {
                command.arg("--health-server-host=127.0.0.1");
                command.arg(format!("--health-server-port={}", health.port()));
                command.arg("--admin-server-port=0");
            }
        }
        let log = dir.join(format!("{name}.log"));
        let child = ChildGuard::spawn(name, &command, &log).unwrap();
        let mut program = Self {
            name,
            command,
            log,
            child,
            health,
        };
        program.child.wait_listening(health, LIMIT).unwrap();
        program
    }

    /// Waits until `/readyz` says yes: the agent's, when it has a server; the server's, when it has
    /// an agent.
    pub(crate) fn wait_ready(&mut self) {
        let target = Target::plain(self.health);
        let ready = || http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200);
        self.child.wait_ready(LIMIT, ready).unwrap();
    }

    /// Kills it and starts it anew with the same arguments.
    pub(crate) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.start_again();
    }

    /// Has it end by itself, which it must do well, and starts it anew.
    pub(crate) fn restart_gently(&mut self) {
        self.child.signal(Signal::TERM).unwrap();
        let status = self.child.wait_exit(LIMIT).unwrap();
        assert!(status.success(), "{status}:\n{}", self.child.log_tail(20));
        self.start_again();
    }

    fn start_again(&mut self) {
        self.child = ChildGuard::spawn(self.name, &self.command, &self.log).unwrap();
        self.child.wait_listening(self.health, LIMIT).unwrap();
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = http::get(&Target::plain(self.health), "/metrics").unwrap();
        let metrics = Metrics::parse(&text.text()).unwrap();
        metrics.value(name, &[]).unwrap_or_default()
    }

    pub(crate) fn log_tail(&self) -> String {
        self.child.log_tail(20)
    }
}

/// The certificates of all programs.
#[derive(Clone)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) agent: IdentityFiles,
    pub(crate) frontend: IdentityFiles,
    pub(crate) server: IdentityFiles,
}

impl Certificates {
    /// Writes them to `dir`; the server's is good for `127.0.0.1`, [`SERVICE`] and `names`.
    pub(crate) fn write(dir: &TempDir, names: &[&str]) -> Self {
        let authority = Authority::new("konnectivity").unwrap();
        let names = [&["127.0.0.1", SERVICE], names].concat();
        let write =
            |identity: testkit::certs::Identity, name| identity.write(dir.path(), name).unwrap();
        Self {
            agent: write(authority.client("agent", &[], &[AGENT]).unwrap(), "agent"),
            frontend: write(authority.client("kas", &[], &[FRONTEND]).unwrap(), "kas"),
            server: write(authority.server(&names).unwrap(), "server"),
            authority: authority.write(&dir.join("konnectivity-ca.crt")).unwrap(),
        }
    }
}

/// Both programs. Dropping it stops them.
pub(crate) struct Pair {
    pub(crate) agent: Program,
    pub(crate) server: Program,
}

impl Pair {
    /// Starts a server with `frontends`, what its flags say of API servers, and an agent that
    /// connects to it; returns when both are ready.
    pub(crate) fn start(dir: &TempDir, certificates: &Certificates, frontends: &[String]) -> Self {
        let agents = free();
        let mut arguments = frontends.to_vec();
        arguments.push(show("cluster-ca-cert", &certificates.authority));
        let mut server = server(dir, certificates, agents, &arguments);
        let mut agent = agent(dir, certificates, "127.0.0.1", agents.port());
        agent.wait_ready();
        server.wait_ready();
        Self { agent, server }
    }

    /// Waits until neither has a tunnel left.
    pub(crate) fn wait_idle(&self) {
        let counts = || {
            let server = "konnectivity_network_proxy_server_established_connections";
            let agent = "konnectivity_network_proxy_agent_open_endpoint_connections";
            (self.server.metric(server), self.agent.metric(agent))
        };
        wait::until("every tunnel to end", LIMIT, || counts() == (0.0, 0.0)).unwrap_or_else(
            |error| {
                let (server, agent) = (self.server.log_tail(), self.agent.log_tail());
                panic!("{error}: {:?}\n{server}\n{agent}", counts())
            },
        );
        let pending = "konnectivity_network_proxy_server_pending_backend_dials";
        assert_eq!(self.server.metric(pending), 0.0);
    }

    /// Waits until the server has `count` tunnels.
    pub(crate) fn wait_tunnels(&self, count: f64) {
        let name = "konnectivity_network_proxy_server_established_connections";
        wait::until("the tunnels", LIMIT, || self.server.metric(name) == count).unwrap();
    }
}

/// Starts a server whose agents come in at `agents`.
pub(crate) fn server(
    dir: &TempDir,
    certificates: &Certificates,
    agents: SocketAddr,
    arguments: &[String],
) -> Program {
    let mut all = vec![
        show("cluster-cert", &certificates.server.cert),
        show("cluster-key", &certificates.server.key),
        format!("--agent-bind-address={}", agents.ip()),
        format!("--agent-port={}", agents.port()),
    ];
    all.extend_from_slice(arguments);
    let binary = env!("CARGO_BIN_EXE_konnectivity-server");
    Program::start("server", binary, dir.path(), &all)
}

/// Starts an agent for the server at `host` and `port`.
pub(crate) fn agent(dir: &TempDir, certificates: &Certificates, host: &str, port: u16) -> Program {
    let all = [
        show("ca-cert", &certificates.authority),
        show("agent-cert", &certificates.agent.cert),
        show("agent-key", &certificates.agent.key),
        format!("--proxy-server-host={host}"),
        format!("--proxy-server-port={port}"),
    ];
    let binary = env!("CARGO_BIN_EXE_konnectivity-agent");
    Program::start("agent", binary, dir.path(), &all)
}

/// Returns a flag whose value is a path.
pub(crate) fn show(flag: &str, path: &Path) -> String {
    format!("--{flag}={}", path.display())
}

/// Returns a free port of `127.0.0.1`.
pub(crate) fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], ports::free(1).unwrap()[0]))
}
