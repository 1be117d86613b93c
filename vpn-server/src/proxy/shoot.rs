//! What the proxy has of the shoot: its networks, its DNS servers, and sockets toward them. These
//! are bound to the tunnel's device, so that the device's routes hold for them and no others.
//!
//! ```text
//!   socket ── SO_BINDTODEVICE ──▶ the device's routing table ──▶ source: the device's own address
//! ```
//!
//! Sockets are not bound to an address: with the device the kernel takes the source that the route
//! names, and the same local port may then lead to several destinations.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use route::TcpOptions;
use serve::apply_tcp_options;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::config::Config;

/// The shoot as the proxy reaches it.
#[derive(Clone, Debug)]
pub struct Shoot {
    device: Option<Arc<str>>,
    networks: Arc<[IpNet]>,
    resolvers: Arc<[SocketAddr]>,
}

impl Shoot {
    /// Behind the tunnel device, as `config` says.
    #[must_use]
    pub fn behind_tunnel(config: &Config) -> Self {
        Self {
            device: Some(config.device.as_str().into()),
            networks: config.networks.all().into(),
            resolvers: config.proxy.resolvers.as_slice().into(),
        }
    }

    /// Where the host's own routes lead to it and there is no tunnel in between.
    #[must_use]
    pub fn around_host(networks: &[IpNet], resolvers: &[SocketAddr]) -> Self {
        Self {
            device: None,
            networks: networks.into(),
            resolvers: resolvers.into(),
        }
    }

    /// Returns whether an address is in the shoot.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }

    /// Returns whether the shoot has addresses of a family.
    pub(super) fn has(&self, ipv6: bool) -> bool {
        let mut networks = self.networks.iter();
        networks.any(|network| network.addr().is_ipv6() == ipv6)
    }

    /// Returns its DNS servers.
    pub(super) fn resolvers(&self) -> &[SocketAddr] {
        &self.resolvers
    }

    /// Connects to `address`. Cancel-safe: a dropped attempt closes its socket.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
        options: &TcpOptions,
    ) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        let raw = SockRef::from(&socket);
        self.bind_device(&raw)?;
        apply_tcp_options(raw, options)?;
        socket.connect(address).await
    }

    /// Opens a socket for datagrams at `local`.
    pub(super) fn datagrams(&self, local: SocketAddr) -> io::Result<UdpSocket> {
        let domain = Domain::for_address(local);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        self.bind_device(&socket)?;
        socket.bind(&SockAddr::from(local))?;
        UdpSocket::from_std(socket.into())
    }

    fn bind_device(&self, socket: &Socket) -> io::Result<()> {
        match &self.device {
            Some(device) => socket.bind_device(Some(device.as_bytes())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connect_fails_without_device() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = TcpOptions::default();
        let here = Shoot::around_host(&[], &[]);
        let absent = Shoot {
            device: Some("rhizome-absent".into()),
            ..here.clone()
        };
        assert!(absent.connect(address, &options).await.is_err());
        assert!(absent.datagrams("127.0.0.1:0".parse().unwrap()).is_err());
        assert!(here.connect(address, &options).await.is_ok());
    }
}
