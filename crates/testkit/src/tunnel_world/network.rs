//! The namespaces of a world, and what lies between them.
//!
//! ```text
//!   100.96.0.0/11, 10.250.0.0/16      198.51.100.0/24        10.0.0.0/16, or the shoot's pod range
//!   pod .0.11 ─┬─ client-n .1.(10+n) ══ .(10+n)  gateway  203.0.113.1 ── .0.2 ─┬─ server-n .0.(11+n)
//!              └─ (a bridge)                                      (a bridge) ─┴─ API server .0.20
//! ```

use std::net::IpAddr;

use anyhow::{Context, Result};

use super::Params;
use crate::impair::Link;
use crate::netns::{Namespace, cable};

pub const POD: &str = "100.96.0.11";

/// The same pod's address of IPv6, in a world that has them.
pub const POD_V6: &str = "fd00:96::11";

/// A node of the shoot: the same namespace.
pub const NODE: &str = "10.250.0.11";

/// A service of the shoot: the same namespace.
pub const SERVICE: &str = "100.64.0.10";

/// The gateway, as the internet knows it.
pub const GATEWAY: &str = "203.0.113.1";

/// The gateway's address of IPv6.
pub const GATEWAY_V6: &str = "2001:db8:2::1";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeedRange {
    /// One that no shoot has.
    #[default]
    Own,
    /// The shoot's pod range: server 0 even has the very address of [`POD`].
    OfTheShoot,
}

#[derive(Clone, Debug)]
pub struct Addresses {
    range: SeedRange,
    servers: usize,
}

/// Every namespace of a world. Lines are dropped before their ends.
#[derive(Debug)]
pub struct Network {
    /// The line of each client; its first end is the client's.
    pub links: Vec<Link>,
    pub pod: Namespace,
    pub clients: Vec<Namespace>,
    pub gateway: Namespace,
    pub servers: Vec<Namespace>,
    pub api_server: Namespace,
    pub addresses: Addresses,
    _switches: [Namespace; 2],
}

impl Addresses {
    pub fn of(params: &Params) -> Self {
        Self {
            range: params.seed_range,
            servers: params.servers,
        }
    }

    pub fn server(&self, index: usize) -> IpAddr {
        self.host(11 + index)
    }

    pub fn servers(&self) -> impl Iterator<Item = IpAddr> {
        (0..self.servers).map(|index| self.server(index))
    }

    /// Returns the gateway's address, as servers see it.
    pub fn gateway(&self) -> IpAddr {
        self.host(2)
    }

    pub fn api_server(&self) -> IpAddr {
        self.host(20)
    }

    fn host(&self, number: usize) -> IpAddr {
        let last = u8::try_from(number).unwrap_or(u8::MAX);
        match self.range {
            SeedRange::Own => IpAddr::from([10, 0, 0, last]),
            SeedRange::OfTheShoot => IpAddr::from([100, 96, 0, last]),
        }
    }

    fn cidr(&self, address: IpAddr) -> String {
        match self.range {
            SeedRange::Own => format!("{address}/16"),
            SeedRange::OfTheShoot => format!("{address}/11"),
        }
    }
}

impl Network {
    pub(super) fn lay(params: &Params) -> Result<Self> {
        let addresses = Addresses::of(params);
        let several = |label: &str, count| -> Result<Vec<Namespace>> {
            let all = (0..count).map(|index| Namespace::new(&format!("{label}-{index}")));
            all.collect()
        };
        let mut network = Self {
            links: Vec::new(),
            pod: Namespace::new("pod")?,
            clients: several("client", params.clients)?,
            gateway: Namespace::new("gateway")?,
            servers: several("server", params.servers)?,
            api_server: Namespace::new("api-server")?,
            addresses,
            _switches: [switch("shoot")?, switch("seed")?],
        };
        network.lay_shoot(params.ipv6)?;
        network.lay_seed()?;
        network.lay_internet(params.random_seed)?;
        Ok(network)
    }

    fn lay_shoot(&self, ipv6: bool) -> Result<()> {
        let [shoot, _] = &self._switches;
        plug(shoot, &self.pod, "pod")?;
        let mut pod = vec![format!("{POD}/11"), format!("{NODE}/16")];
        pod.push(format!("{SERVICE}/32"));
        pod.extend(ipv6.then(|| format!("{POD_V6}/64")));
        for cidr in pod {
            self.pod.add_address("eth0", &cidr)?;
        }
        for (index, client) in self.clients.iter().enumerate() {
            plug(shoot, client, &format!("client{index}"))?;
            let number = 10 + index;
            let mut cidrs = vec![format!("100.96.1.{number}/11")];
            cidrs.push(format!("10.250.1.{number}/16"));
            cidrs.extend(ipv6.then(|| format!("fd00:96::1:{number}/64")));
            for cidr in cidrs {
                client.add_address("eth0", &cidr)?;
            }
            client.ip(&["route", "add", "100.64.0.0/13", "dev", "eth0"])?;
        }
        Ok(())
    }

    fn lay_seed(&self) -> Result<()> {
        let [_, seed] = &self._switches;
        let settle = |namespace: &Namespace, port: &str, address| {
            plug(seed, namespace, port)?;
            namespace.add_address("eth0", &self.addresses.cidr(address))
        };
        settle(&self.gateway, "gateway", self.addresses.gateway())?;
        settle(&self.api_server, "api", self.addresses.api_server())?;
        for (index, server) in self.servers.iter().enumerate() {
            let address = self.addresses.server(index);
            settle(server, &format!("server{index}"), address)?;
        }
        Ok(())
    }

    fn lay_internet(&mut self, random_seed: u64) -> Result<()> {
        for cidr in [format!("{GATEWAY}/32"), format!("{GATEWAY_V6}/128")] {
            self.gateway.add_address("lo", &cidr)?;
        }
        for (index, client) in self.clients.iter().enumerate() {
            let wan = format!("wan{index}");
            let (near, far) = (client.end("inet"), self.gateway.end(&wan));
            let seed = random_seed.wrapping_add(index as u64);
            let link = Link::lay(near, far, 1500, seed).context("laying a line")?;
            self.links.push(link);
            let number = 10 + index;
            for (address, length, gateway) in [
                (format!("198.51.100.{number}"), 32, GATEWAY),
                (format!("2001:db8:1::{number}"), 128, GATEWAY_V6),
            ] {
                let cidr = format!("{address}/{length}");
                client.add_address("inet", &cidr)?;
                client.ip(&["route", "add", gateway, "dev", "inet"])?;
                self.gateway.ip(&["route", "add", &cidr, "dev", &wan])?;
            }
        }
        Ok(())
    }
}

fn switch(label: &str) -> Result<Namespace> {
    let switch = Namespace::new(label)?;
    switch.add_bridge(BRIDGE)?;
    Ok(switch)
}

/// Joins a namespace's `eth0` to a bridge.
fn plug(switch: &Namespace, namespace: &Namespace, port: &str) -> Result<()> {
    cable(namespace.end("eth0"), switch.end(port))?;
    switch.join_bridge(BRIDGE, port)
}

const BRIDGE: &str = "br0";
