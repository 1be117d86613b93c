//! A gateway with a server behind it, on threads of the test.

use std::future::poll_fn;
use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use telemetry::Registry;
use testkit::netns::Place;
use testkit::wait;
use tokio::runtime::Runtime;
use tunnel::device::{Abilities, Device, Port};
use tunnel::keys::{PrivateKey, PublicKey};
use tunnel::stream::StreamParams;
use tunnel::{Identity, Params, PeerSpec, Role, RouteId, Sockets, Tunnel, filter};

use crate::shoot::{LIMIT, SEED, Shoot};

/// How the gateway answers a CONNECT.
const OK: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Between two looks at the listener.
const POLL: Duration = Duration::from_millis(10);
/// The inner address of the server.
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 123, 1);
const PLAIN: Abilities = Abilities {
    vnet: false,
    join_tcp: false,
    join_udp: false,
};

/// A running gateway and server.
#[derive(Debug)]
pub(crate) struct Seed {
    tunnel: Tunnel,
    runtime: Runtime,
    /// What the control plane's side of the server's device is.
    near: Port,
    closing: Arc<AtomicBool>,
    gateway: Option<JoinHandle<()>>,
}

impl Seed {
    /// Starts both where the shoot looks for them; the server knows `clients` by their keys.
    pub(crate) fn start(shoot: &Shoot, clients: Vec<PublicKey>) -> Self {
        Self::start_at(shoot, SEED, SERVER, &shoot.server, clients)
    }

    /// As [`Seed::start`], at another address of the seed, with an inner address and a key of the
    /// server's own.
    pub(crate) fn start_at(
        shoot: &Shoot,
        address: &str,
        inner: Ipv4Addr,
        key: &PrivateKey,
        clients: Vec<PublicKey>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (device, near) = Device::pair(PLAIN).unwrap();
        let near = runtime.block_on(async { Port::new(near).unwrap() });
        let place = Place::In(&shoot.seed);
        let udp = place.run(|| UdpSocket::bind((address, 51_820)).unwrap());
        let sockets = Sockets {
            device,
            udp: Some(udp.unwrap()),
            wrapped: None,
            trusted_gateways: Vec::new(),
        };
        let identity = Identity {
            keys: vec![key.clone()],
            peers: vec![PeerSpec {
                name: "vpn-shoot".to_owned(),
                public_keys: clients,
                preshared_key: None,
                addresses: vec!["192.168.123.64".parse().unwrap()],
                route: None,
            }],
        };
        let started = Tunnel::start(params(inner), identity, sockets, &Registry::new());
        let (tunnel, _) = started.unwrap();
        let listener = place.bind(SocketAddr::new(address.parse().unwrap(), 8132));
        let closing = Arc::new(AtomicBool::new(false));
        let gateway = gateway(listener.unwrap(), tunnel.clone(), Arc::clone(&closing));
        Self {
            tunnel,
            runtime,
            near,
            closing,
            gateway: Some(gateway),
        }
    }

    /// Sends a datagram into the tunnel, from port 7000 of the server to a pod.
    pub(crate) fn send(&self, to: SocketAddr, text: &[u8]) {
        let IpAddr::V4(pod) = to.ip() else {
            panic!("pods here have IPv4")
        };
        let packet = packet(SERVER, pod, to.port(), text);
        self.near.write(&[IoSlice::new(&packet)]).unwrap();
    }

    /// Asks a pod for a connection, from port 7001 of the server.
    pub(crate) fn connect(&self, to: SocketAddr) {
        let IpAddr::V4(pod) = to.ip() else {
            panic!("pods here have IPv4")
        };
        let packet = syn(SERVER, pod, to.port());
        self.near.write(&[IoSlice::new(&packet)]).unwrap();
    }

    /// Waits for a packet out of the tunnel and returns it.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let near = &mut self.near;
        let packet = async {
            let mut buffer = vec![0; tunnel::device::READ_BUFFER];
            loop {
                poll_fn(|cx| near.poll_readable(cx)).await.unwrap();
                if let Some(packet) = near.read(&mut buffer).unwrap() {
                    return packet.bytes.to_vec();
                }
            }
        };
        let limit = async { tokio::time::timeout(LIMIT, packet).await };
        self.runtime
            .block_on(limit)
            .expect("a packet comes out of the tunnel")
    }

    /// Returns whether the client has said that it drains.
    pub(crate) fn client_drains(&self) -> bool {
        self.tunnel.status().peers.iter().any(|peer| peer.draining)
    }

    /// Returns whether a client has reported that it cannot forward.
    pub(crate) fn client_is_unsettled(&self) -> bool {
        self.tunnel.status().peers.iter().any(|peer| peer.unsettled)
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        self.runtime.block_on(self.tunnel.stop());
        self.closing.store(true, Ordering::SeqCst);
        if let Some(gateway) = self.gateway.take() {
            let _ = gateway.join();
        }
    }
}

fn params(inner: Ipv4Addr) -> Params {
    Params {
        role: Role::Server {
            route: RouteId::new(17),
            networks: vec!["100.96.0.0/11".parse().unwrap()],
            filter: filter::Params::default(),
        },
        name: "vpn-seed-server".to_owned(),
        addresses: vec![inner.into()],
        mtu: 1420,
        stream: StreamParams::default(),
        offloads: udp::Offloads::default(),
    }
}

/// Takes connections until it is told to close.
fn gateway(listener: TcpListener, tunnel: Tunnel, closing: Arc<AtomicBool>) -> JoinHandle<()> {
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        while !closing.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, from)) => {
                    let Some(stream) = consent(stream) else {
                        continue;
                    };
                    tunnel.accept(stream, from);
                }
                Err(_) => wait::pause(POLL),
            }
        }
    })
}

/// Reads a CONNECT and answers it.
fn consent(mut stream: TcpStream) -> Option<TcpStream> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    stream.write_all(OK).ok()?;
    stream.set_read_timeout(None).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// A packet with the datagram of UDP, which needs no checksum (RFC 768).
fn packet(from: Ipv4Addr, to: Ipv4Addr, port: u16, text: &[u8]) -> Vec<u8> {
    let len = u16::try_from(text.len() + 8).unwrap();
    let mut datagram = [7000_u16, port, len, 0].map(u16::to_be_bytes).concat();
    datagram.extend(text);
    ipv4(17, from, to, &datagram)
}

/// A packet with the first segment of a TCP connection (RFC 9293 §3.1).
fn syn(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let words = [7001_u16, port, 0, 1, 0, 0, 0x5002, 0xffff, 0, 0];
    let mut segment = words.map(u16::to_be_bytes).concat();
    let pseudo = [&from.octets()[..], &to.octets(), &[0, 6, 0, 20], &segment].concat();
    segment[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    ipv4(6, from, to, &segment)
}

/// An IPv4 packet (RFC 791 §3.1).
fn ipv4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, content: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(u16::try_from(content.len() + 20).unwrap().to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(content);
    packet
}

/// The checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let sum: u32 = words
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}
