//! Fake clients and servers, and the datagrams that they exchange.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac, Digest};

use crate::support::{Gateway, LIMIT, Probe};

pub(crate) const DROPPED: &str = "rhizome_wireguard_dropped_total";

/// The configuration of one listener `wg`, and what a test adds.
pub(crate) fn config(more: &str) -> String {
    format!("listeners:\n- {{ name: wg, address: \"127.0.0.1:0\", protocol: wireguard }}\n{more}")
}

/// Routes with the numbers 1, 2 and so on, each to one server.
pub(crate) fn numbered(servers: &[&Server]) -> String {
    let mut text = String::from("clusters:\n");
    for (at, server) in servers.iter().enumerate() {
        let (name, addr) = (at + 1, server.addr());
        text += &format!("- {{ name: c{name}, endpoints: [{{ address: \"{addr}\" }}] }}\n");
    }
    text += "routes:\n";
    for at in 1..=servers.len() {
        text += &format!("- {{ wireguard: {{ routeId: {at} }}, cluster: c{at} }}\n");
    }
    text
}

/// Writes a key as configurations have it.
pub(crate) fn base64(key: &[u8; 32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = key
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1));
    let mut text = String::new();
    for _ in 0..43 {
        let digit = (0..6).fold(0, |sum, _| sum << 1 | usize::from(bits.next().unwrap_or(0)));
        text.push(char::from(DIGITS[digit]));
    }
    text + "="
}

/// A handshake initiation for the server of `key`, or for no server.
pub(crate) fn initiation(sender: u32, key: Option<&[u8; 32]>) -> Vec<u8> {
    let mut datagram = vec![0; 148];
    datagram[0] = 1;
    datagram[4..8].copy_from_slice(&sender.to_le_bytes());
    if let Some(key) = key {
        let label = Blake2s256::new()
            .chain_update(b"mac1----")
            .chain_update(key);
        let mut mac = <Blake2sMac<U16> as KeyInit>::new(&label.finalize());
        mac.update(&datagram[..116]);
        let mac1: [u8; 16] = mac.finalize_fixed().into();
        datagram[116..132].copy_from_slice(&mac1);
    }
    datagram
}

/// A handshake response.
pub(crate) fn response(sender: u32, receiver: u32) -> Vec<u8> {
    let mut datagram = vec![0; 92];
    datagram[0] = 2;
    datagram[4..8].copy_from_slice(&sender.to_le_bytes());
    datagram[8..12].copy_from_slice(&receiver.to_le_bytes());
    datagram
}

/// A datagram of transport data of `len` bytes that ends with `mark`.
pub(crate) fn data_of(receiver: u32, len: usize, mark: u8) -> Vec<u8> {
    let mut datagram = vec![mark; len];
    datagram[..4].copy_from_slice(&[4, 0, 0, 0]);
    datagram[4..8].copy_from_slice(&receiver.to_le_bytes());
    datagram
}

pub(crate) fn data(receiver: u32, mark: u8) -> Vec<u8> {
    data_of(receiver, 32, mark)
}

/// Writes a route id into a datagram.
pub(crate) fn with_route(mut datagram: Vec<u8>, route: u32) -> Vec<u8> {
    datagram[1..4].copy_from_slice(&route.to_be_bytes()[1..]);
    datagram
}

/// The index that the server of a route chooses.
pub(crate) fn index(route: u32) -> u32 {
    route << 12 | 0xabc
}

/// A client.
pub(crate) struct Peer {
    pub(crate) socket: UdpSocket,
    gateway: SocketAddr,
}

impl Peer {
    pub(crate) fn new(gateway: &Gateway) -> Self {
        let local = match gateway.addr("wg").ip() {
            IpAddr::V4(_) => "127.0.0.1",
            IpAddr::V6(_) => "::1",
        };
        Self::at(local, gateway.addr("wg"))
    }

    pub(crate) fn at(local: &str, gateway: SocketAddr) -> Self {
        let local: IpAddr = local.parse().unwrap();
        let socket = UdpSocket::bind((local, 0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket, gateway }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.gateway).unwrap();
    }

    /// Returns what the gateway sends.
    pub(crate) fn receive(&self) -> Vec<u8> {
        self.try_receive().unwrap()
    }

    /// Returns `None` when nothing comes within the socket's time-out.
    pub(crate) fn try_receive(&self) -> Option<Vec<u8>> {
        let mut buf = vec![0; 65_536];
        let (len, from) = self.socket.recv_from(&mut buf).ok()?;
        assert_eq!(from, self.gateway, "answers come from where questions went");
        buf.truncate(len);
        Some(buf)
    }

    /// Sends data to the server of a route by its index, and has one datagram answered.
    pub(crate) fn exchange(&self, server: &Server, route: u32, mark: u8) -> Seen {
        self.send(&data(index(route), mark));
        let seen = server.receive();
        assert_eq!(
            (seen.client, &seen.datagram),
            (self.addr(), &data(index(route), mark))
        );
        seen.answer(&data(7, mark));
        assert_eq!(self.receive(), data(7, mark));
        seen
    }
}

/// A server.
pub(crate) struct Server {
    socket: UdpSocket,
}

/// What a server was sent.
pub(crate) struct Seen {
    socket: UdpSocket,
    pub(crate) gateway: SocketAddr,
    pub(crate) client: SocketAddr,
    pub(crate) datagram: Vec<u8>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::at("127.0.0.1")
    }

    pub(crate) fn at(local: &str) -> Self {
        let local: IpAddr = local.parse().unwrap();
        let socket = UdpSocket::bind((local, 0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    pub(crate) fn receive(&self) -> Seen {
        self.try_receive().unwrap()
    }

    /// Returns `None` when nothing comes within the socket's time-out.
    pub(crate) fn try_receive(&self) -> Option<Seen> {
        let mut buf = vec![0; 65_536];
        let (len, gateway) = self.socket.recv_from(&mut buf).ok()?;
        assert_eq!(&buf[..4], b"RZW1");
        let address: [u8; 16] = buf[8..24].try_into().unwrap();
        let address = Ipv6Addr::from(address);
        let ip = match buf[4] {
            4 => IpAddr::V4(address.to_ipv4_mapped()?),
            6 => IpAddr::V6(address),
            other => panic!("family {other}"),
        };
        Some(Seen {
            socket: self.socket.try_clone().unwrap(),
            gateway,
            client: (ip, u16::from_be_bytes([buf[6], buf[7]])).into(),
            datagram: buf[24..len].to_vec(),
        })
    }
}

impl Seen {
    /// Sends something back to the client, by way of the gateway.
    pub(crate) fn answer(&self, datagram: &[u8]) {
        let wrapped = wrapped(self.client, datagram);
        self.socket.send_to(&wrapped, self.gateway).unwrap();
    }
}

pub(crate) fn wrapped(client: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let (family, address) = match client.ip() {
        IpAddr::V4(ip) => (4, ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => (6, ip),
    };
    let mut bytes = b"RZW1".to_vec();
    bytes.extend([family, 0]);
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(address.octets());
    bytes.extend(datagram);
    bytes
}

/// Waits until so many datagrams were dropped for a reason.
pub(crate) fn wait_dropped(gateway: &Probe, reason: &str, count: u32) {
    gateway.wait_value(DROPPED, &[("reason", reason)], f64::from(count));
}

/// Waits until there are so many flows, fresh or proven.
pub(crate) fn wait_flows(gateway: &Probe, count: u32) {
    gateway.wait_value("rhizome_wireguard_flows", &[], f64::from(count));
}
