//! A server with an agent behind it, of either kind, and a frontend before it.

use std::net::SocketAddr;

use testkit::konnectivity::{AgentMetadata, FakeAgent, FakeFrontend, Refusal, Tunnel};
use testkit::wait;

use super::{Agent, AgentFlags, LIMIT, Mode, Server, ServerFlags};

/// Whose agent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Upstream's, as the test kit copies it.
    Go,
    /// Ours.
    Rust,
}

/// An agent of either kind.
#[derive(Debug)]
pub(crate) enum Backend {
    Go(FakeAgent),
    Rust(Box<Agent>),
}

impl Backend {
    /// Starts an agent; it is connected, but perhaps not yet chosen by the server.
    pub(crate) fn start(kind: Kind, server: &Server, id: &str) -> Self {
        Self::identified(kind, server, id, "")
    }

    /// Starts an agent with identifiers.
    pub(crate) fn identified(kind: Kind, server: &Server, id: &str, identifiers: &str) -> Self {
        match kind {
            Kind::Go => {
                let metadata = AgentMetadata::new(id).replaced("agentidentifiers", identifiers);
                Self::Go(FakeAgent::start(&server.target(), &metadata).unwrap())
            }
            Kind::Rust => {
                let flags = AgentFlags::new(server.pki(), id, server.agents());
                let flags = flags.flag(format!("--agent-identifiers={identifiers}"));
                Self::Rust(Box::new(Agent::connected(flags)))
            }
        }
    }

    /// Waits until it holds so many connections to destinations.
    pub(crate) fn wait_tunnels(&self, count: u32) {
        match self {
            Self::Go(agent) => {
                let count = count as usize;
                let what = format!("{count} tunnels at the agent");
                // Closes of slow tunnels come one by one, 0.6 s apart.
                wait::until(&what, 3 * LIMIT, || agent.tunnels() == count).unwrap();
            }
            Self::Rust(agent) => agent.wait_tunnels(count),
        }
    }

    /// Stops all it does, or goes on with it.
    pub(crate) fn freeze(&mut self, frozen: bool) {
        match self {
            Self::Go(agent) => agent.freeze(frozen),
            Self::Rust(agent) => agent.signal(if frozen {
                testkit::process::Signal::STOP
            } else {
                testkit::process::Signal::CONT
            }),
        }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Go(agent) => agent.cut(),
            Self::Rust(agent) => drop(agent.guard.kill().unwrap()),
        }
    }
}

/// A server, an agent that can be chosen, and a frontend.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) mode: Mode,
    // Before the server, so that it ends first.
    pub(crate) agent: Backend,
    pub(crate) frontend: FakeFrontend,
    pub(crate) server: Server,
}

impl Rig {
    pub(crate) fn start(mode: Mode, kind: Kind) -> Self {
        Self::of(ServerFlags::new(mode), mode, kind)
    }

    pub(crate) fn of(flags: ServerFlags, mode: Mode, kind: Kind) -> Self {
        let server = flags.start();
        let agent = Backend::start(kind, &server, "agent");
        server.wait_agents(1);
        Self {
            mode,
            agent,
            frontend: server.frontend(),
            server,
        }
    }

    pub(crate) fn tunnel(&self, addr: SocketAddr) -> Tunnel {
        tunnel(&self.frontend, addr)
    }

    /// Waits until nothing is left of any tunnel on either side.
    pub(crate) fn wait_idle(&self) {
        self.server.wait_established(0);
        self.agent.wait_tunnels(0);
    }
}

/// Dials through a frontend.
pub(crate) fn dial(frontend: &FakeFrontend, target: &str) -> Result<Tunnel, Refusal> {
    frontend.connect(target).unwrap()
}

/// Dials what must answer.
pub(crate) fn tunnel(frontend: &FakeFrontend, addr: SocketAddr) -> Tunnel {
    dial(frontend, &addr.to_string()).unwrap()
}

/// Dials what must be refused.
pub(crate) fn refusal(frontend: &FakeFrontend, target: &str) -> Refusal {
    match dial(frontend, target) {
        Ok(_) => panic!("{target} was connected to"),
        Err(refusal) => refusal,
    }
}
