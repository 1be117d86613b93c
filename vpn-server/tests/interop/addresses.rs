//! Who has which address, inside of the tunnel and outside.
//!
//! ```text
//!   pod ── router shoot home, away ══ seed          inside: client ── server
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The addresses of one family.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Of the shoot toward the seed: at first, and when it has moved.
    pub(crate) home: IpAddr,
    pub(crate) away: IpAddr,
    pub(crate) seed: IpAddr,
    /// Of the shoot for those in it.
    pub(crate) loopback: IpAddr,
    /// Of the shoot toward the pod, and of the pod.
    pub(crate) router: IpAddr,
    pub(crate) pod: IpAddr,
    /// Where all pods are.
    pub(crate) pods: &'static str,
    /// Of the tunnel's ends.
    pub(crate) server: IpAddr,
    pub(crate) client: IpAddr,
    /// The length of the prefix of every network but `pods`.
    pub(crate) prefix: u8,
    /// The length of an address.
    pub(crate) host: u8,
    /// Whether to answer pings, below `/proc/sys/net`.
    pub(crate) ignore_pings: &'static str,
    /// Whether to be a router, in the same place.
    pub(crate) forwarding: &'static str,
}

impl Addresses {
    /// Returns an address with the length of its network's prefix.
    pub(crate) fn cidr(&self, address: IpAddr) -> String {
        format!("{address}/{}", self.prefix)
    }

    /// Returns an address as a network of its own.
    pub(crate) fn single(&self, address: IpAddr) -> String {
        format!("{address}/{}", self.host)
    }

    /// Returns where the server is.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.seed, PORT)
    }

    /// Returns where the pod echoes.
    pub(crate) fn echo(&self) -> SocketAddr {
        SocketAddr::new(self.pod, 7000)
    }
}

/// The port of servers.
pub(crate) const PORT: u16 = 51_820;

/// IPv4 everywhere.
pub(crate) const V4: Addresses = Addresses {
    home: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
    away: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3)),
    seed: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
    loopback: IpAddr::V4(Ipv4Addr::LOCALHOST),
    router: IpAddr::V4(Ipv4Addr::new(100, 96, 0, 1)),
    pod: IpAddr::V4(Ipv4Addr::new(100, 96, 0, 10)),
    pods: "100.96.0.0/11",
    server: IpAddr::V4(Ipv4Addr::new(192, 168, 123, 1)),
    client: IpAddr::V4(Ipv4Addr::new(192, 168, 123, 64)),
    prefix: 24,
    host: 32,
    ignore_pings: "ipv4/icmp_echo_ignore_all",
    forwarding: "ipv4/ip_forward",
};

/// IPv6 everywhere.
pub(crate) const V6: Addresses = Addresses {
    home: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1)),
    away: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 3)),
    seed: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)),
    loopback: IpAddr::V6(Ipv6Addr::LOCALHOST),
    router: IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1)),
    pod: IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10)),
    pods: "fd00:96::/64",
    server: IpAddr::V6(Ipv6Addr::new(0xfd8f, 0x6d53, 0xb97a, 1, 0, 0, 0, 1)),
    client: IpAddr::V6(Ipv6Addr::new(0xfd8f, 0x6d53, 0xb97a, 1, 0, 0, 0xb, 0)),
    prefix: 96,
    host: 128,
    ignore_pings: "ipv6/icmp/echo_ignore_all",
    forwarding: "ipv6/conf/all/forwarding",
};
