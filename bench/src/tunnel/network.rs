//! Three namespaces in a row, routed, and a fourth: where tunnels are laid.
//!
//! ```text
//!   client 198.51.100.2 ── 198.51.100.1 gateway 10.0.0.2 ── 10.0.0.11 server
//!          (the shoot)  cable, or a bad line       cables     (the seed)
//!                                               10.0.1.2 ── 10.0.0.12 second server
//! ```
//!
//! The congestion control of their TCP is set for each tunnel, so that no peer is measured with what
//! the machine happens to have.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use testkit::impair::Link;
use testkit::netns::{Namespace, cable};

/// The namespaces. The line goes before its ends.
#[derive(Debug)]
pub(crate) struct Network {
    /// The line between client and gateway, if it is a bad one.
    pub(crate) link: Option<Link>,
    pub(crate) client: Namespace,
    pub(crate) gateway: Namespace,
    pub(crate) server: Namespace,
    /// Where the shoot's second tunnel ends.
    pub(crate) second: Namespace,
}

impl Network {
    /// Makes them, with a cable between client and gateway, or with a line that can be impaired.
    pub(crate) fn lay(impairable: bool) -> Result<Self> {
        let (client, gateway) = (Namespace::new("client")?, Namespace::new("gateway")?);
        let (server, second) = (Namespace::new("server")?, Namespace::new("server-1")?);
        let (near, far) = (client.end("inet"), gateway.end("wan"));
        let link = if impairable {
            Some(Link::lay(near, far, 1500, SEED).context("laying a line")?)
        } else {
            cable(near, far)?;
            None
        };
        cable(gateway.end("seed"), server.end("eth0"))?;
        cable(gateway.end("seed-1"), second.end("eth0"))?;
        client.add_address("inet", &format!("{CLIENT}/24"))?;
        gateway.add_address("wan", &format!("{GATEWAY}/24"))?;
        gateway.add_address("seed", &format!("{GATEWAY_INSIDE}/24"))?;
        server.add_address("eth0", &format!("{SERVER}/24"))?;
        let next = "10.0.1.11";
        gateway.add_address("seed-1", &format!("{GATEWAY_SECOND}/24"))?;
        second.add_address("eth0", &format!("{next}/24"))?;
        second.add_address("eth0", &format!("{SECOND}/32"))?;
        second.add_route("default", &GATEWAY_SECOND.to_string())?;
        gateway.add_route(&format!("{SECOND}/32"), next)?;
        client.add_address("lo", &format!("{POD}/32"))?;
        client.add_route("default", &GATEWAY.to_string())?;
        server.add_route("default", &GATEWAY_INSIDE.to_string())?;
        gateway.forward_ipv4()?;
        Ok(Self {
            link,
            client,
            gateway,
            server,
            second,
        })
    }

    /// Sets the congestion control of TCP sockets to come that do not choose one themselves.
    pub(crate) fn set_congestion(&self, name: &str) -> Result<()> {
        for namespace in [&self.client, &self.gateway, &self.server, &self.second] {
            namespace.set_sysctl("ipv4/tcp_congestion_control", name)?;
        }
        Ok(())
    }
}

pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// An address of the shoot's, behind the client; this and the seed's are the tests' world's.
pub(crate) const POD: Ipv4Addr = Ipv4Addr::new(100, 96, 0, 11);
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(crate) const GATEWAY_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
/// The gateway, as the second server sees it, and that server.
pub(crate) const GATEWAY_SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
pub(crate) const SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);
const SEED: u64 = 1;
