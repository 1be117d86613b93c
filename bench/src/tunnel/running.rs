//! One tunnel while it is measured.
//!
//! ```text
//!   Setup ──▶ prepare: far end and hop run ──▶ dial: near end starts, first ping ──▶ measured
//! ```
//!
//! Whatever was started ends with the value.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::netns::Namespace;
use testkit::peers::envoy::Envoy;
use testkit::peers::wireguard::Wireguard;
use testkit::process::{ChildGuard, usage};
use testkit::tempdir::TempDir;
use testkit::wait::Stopwatch;

use super::network::{self, Network};
use super::ours::{self, Programs};
use super::ping::Pinger;
use super::setup::{Kind, Setup};
use super::{openvpn, wireguard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
    Gateway,
}

#[derive(Debug)]
pub(super) enum Guard {
    Child(ChildGuard),
    Envoy(Envoy),
    Wireguard(Wireguard),
}

impl Guard {
    fn child(&mut self) -> &mut ChildGuard {
        match self {
            Self::Child(child) => child,
            Self::Envoy(envoy) => envoy.child(),
            Self::Wireguard(wireguard) => wireguard.child(),
        }
    }
}

/// Where load goes that goes through a tunnel, seen from the far end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner {
    pub(crate) address: Ipv4Addr,
    /// The device that sockets have to be bound to, if routes are for its sockets alone.
    pub(crate) device: Option<&'static str>,
}

impl Inner {
    /// An address that every socket has a route to.
    pub(crate) fn routed(address: Ipv4Addr) -> Self {
        Self {
            address,
            device: None,
        }
    }
}

type Near = Box<dyn FnOnce(&Network) -> Result<Guard>>;

pub(super) struct Parts {
    pub(super) running: Vec<(Role, Guard)>,
    pub(super) inner: Inner,
    pub(super) near: Option<Near>,
}

impl Parts {
    pub(super) fn new(
        running: Vec<(Role, Guard)>,
        inner: Inner,
        near: Command,
        log: PathBuf,
    ) -> Self {
        let start = move |_: &Network| {
            let child = ChildGuard::spawn("the client", &near, &log)?;
            Ok(Guard::Child(child))
        };
        Self {
            running,
            inner,
            near: Some(Box::new(start)),
        }
    }
}

/// A tunnel that is prepared or up. Processes end before their directory goes.
pub(crate) struct Tunnel {
    pub(crate) setup: Setup,
    parts: Parts,
    pub(crate) dir: TempDir,
}

impl Tunnel {
    pub(crate) fn prepare(setup: Setup, network: &Network, programs: &Programs) -> Result<Self> {
        Self::prepare_several(setup, network, programs, 1)
    }

    /// As [`Self::prepare`], with tunnels to that many servers where it is ours.
    pub(crate) fn prepare_several(
        setup: Setup,
        network: &Network,
        programs: &Programs,
        servers: usize,
    ) -> Result<Self> {
        network.set_congestion(setup.congestion())?;
        let dir = TempDir::new("bench-tunnel")?;
        let parts = match setup.kind() {
            Kind::None => Parts {
                running: Vec::new(),
                inner: Inner::routed(network::CLIENT),
                near: None,
            },
            Kind::Rhizome { transport, gateway } => {
                ours::prepare(programs, network, &dir, (transport, gateway), servers)?
            }
            Kind::Wireguard(program) => wireguard::prepare(program, network, &dir)?,
            Kind::Openvpn { tcp } => openvpn::prepare(network, &dir, tcp)?,
        };
        Ok(Self { setup, parts, dir })
    }

    /// Starts the near end, and returns how long it took from there until a ping came back.
    pub(crate) fn dial(&mut self, network: &Network) -> Result<Duration> {
        let clock = Stopwatch::start();
        let near = self.parts.near.take().map(|start| start(network));
        // In front, so that it ends first.
        let near = near.transpose()?.map(|guard| (Role::Client, guard));
        self.parts.running.splice(0..0, near);
        self.first_ping(&network.server, clock)
    }

    /// Waits until a ping from `end` came back.
    pub(crate) fn first_ping(&mut self, end: &Namespace, clock: Stopwatch) -> Result<Duration> {
        let pinger = Pinger::open(end, self.parts.inner)?;
        let took = pinger.first(clock, DIAL_LIMIT);
        took.map_err(|error| self.explain(error))
    }

    pub(crate) fn inner(&self) -> Inner {
        self.parts.inner
    }

    /// Returns the CPU time that the processes of `roles` have used so far, in seconds.
    pub(crate) fn cpu(&mut self, roles: &[Role]) -> Result<f64> {
        let of_role = |(role, _): &&mut (Role, Guard)| roles.contains(role);
        let all = self.parts.running.iter_mut().filter(of_role);
        all.map(|(_, guard)| {
            let child = guard.child();
            let used = usage(child.pid()).with_context(|| format!("measuring {}", child.name()))?;
            Ok(used.cpu_time.as_secs_f64())
        })
        .sum()
    }

    /// Returns the resident memory of `role`'s process, MiB; `None` when there is none.
    pub(crate) fn resident(&mut self, role: Role) -> Result<Option<f64>> {
        let found = self.parts.running.iter_mut().find(|(of, _)| *of == role);
        let usage = found.map(|(_, guard)| guard.child().usage()).transpose()?;
        Ok(usage.map(|usage| usage.rss_kib as f64 / 1024.0))
    }

    pub(crate) fn has_gateway(&self) -> bool {
        let mut roles = self.parts.running.iter().map(|(role, _)| *role);
        roles.any(|role| role == Role::Gateway)
    }

    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let tails = self.parts.running.iter_mut().map(|(role, guard)| {
            let tail = guard.child().log_tail(LINES);
            format!("{role:?} says:\n{tail}")
        });
        error.context(tails.collect::<Vec<_>>().join("\n"))
    }
}

/// After this a peer is taken not to connect at all.
const DIAL_LIMIT: Duration = Duration::from_secs(30);
const LINES: usize = 12;
