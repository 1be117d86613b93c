//! `konnectivity-agent` as a program of its own.

use std::net::SocketAddr;
use std::ops::Deref;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use testkit::ports;
use testkit::process::{ChildGuard, Signal};

use super::server::local;
use super::{AGENT, LIMIT, Pki, Probe};

/// How an agent is started.
#[derive(Debug)]
pub(crate) struct AgentFlags {
    pki: Arc<Pki>,
    id: String,
    server: SocketAddr,
    certificate: bool,
    more: Vec<String>,
}

impl AgentFlags {
    pub(crate) fn new(pki: &Arc<Pki>, id: &str, server: SocketAddr) -> Self {
        Self {
            pki: Arc::clone(pki),
            id: id.to_owned(),
            server,
            certificate: true,
            more: Vec::new(),
        }
    }

    pub(crate) fn flag(mut self, flag: impl Into<String>) -> Self {
        self.more.push(flag.into());
        self
    }

    /// It shows no certificate.
    pub(crate) fn anonymous(mut self) -> Self {
        self.certificate = false;
        self
    }

    /// Starts, and does not wait for a server.
    pub(crate) fn start(self) -> Agent {
        let [health, admin] = ports::free(2).unwrap()[..] else {
            panic!("two ports");
        };
        let pki = &self.pki;
        let mut command = Command::new(env!("CARGO_BIN_EXE_konnectivity-agent"));
        command.args([
            format!("--agent-id={}", self.id),
            format!("--ca-cert={}", pki.ca.display()),
            format!("--proxy-server-host={}", self.server.ip()),
            format!("--proxy-server-port={}", self.server.port()),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={health}"),
            format!("--admin-server-port={admin}"),
        ]);
        if self.certificate {
            let files = &pki.client_files;
            command.arg(format!("--agent-cert={}", files.cert.display()));
            command.arg(format!("--agent-key={}", files.key.display()));
        }
        command.args(&self.more);
        // Ids may occur twice; ports do not.
        let log = pki.dir.join(format!("agent-{health}.log"));
        let mut guard = ChildGuard::spawn(&self.id, &command, &log).unwrap();
        guard.wait_listening(local(health), LIMIT).unwrap();
        Agent {
            guard,
            probe: Probe(local(health)),
        }
    }
}

/// A running agent; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) guard: ChildGuard,
    probe: Probe,
}

impl Agent {
    /// Starts and waits until it is connected to a server.
    pub(crate) fn connected(flags: AgentFlags) -> Self {
        let agent = flags.start();
        agent.wait_ready(200);
        agent
    }

    /// Waits until it holds streams to so many servers.
    pub(crate) fn wait_servers(&self, count: u32) {
        let name = format!("{AGENT}open_server_connections");
        self.wait_value(&name, &[], f64::from(count));
    }

    /// Waits until it holds so many connections to destinations.
    pub(crate) fn wait_tunnels(&self, count: u32) {
        let name = format!("{AGENT}open_endpoint_connections");
        self.wait_value(&name, &[], f64::from(count));
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.guard.signal(signal).unwrap();
    }

    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        self.guard.wait_exit(LIMIT).unwrap()
    }
}

impl Deref for Agent {
    type Target = Probe;

    fn deref(&self) -> &Probe {
        &self.probe
    }
}
