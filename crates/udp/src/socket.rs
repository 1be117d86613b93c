//! UDP sockets that receive in batches: one per worker and listener, one per worker toward servers.
//!
//! ```text
//!     recvmmsg, UDP_GRO ─▶ buffers ─▶ runs of datagrams of one sender and size
//! ```
//!
//! Sockets of one listener share its address by `SO_REUSEPORT`: the kernel spreads clients over
//! them by their address, so all datagrams of one client reach the same worker. Knows nothing of
//! what datagrams mean. Sending is `outbox`'s.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Octets of one receive buffer: what the kernel joins at most.
const BUFFER: usize = 64 * 1024;

/// Receive buffers, and so messages of one call.
const BUFFERS: usize = 16;

/// Octets that the kernel may queue for one socket.
#[derive(Clone, Copy, Debug)]
pub struct BufferSizes {
    pub receive: usize,
    pub send: usize,
}

/// Opens one socket for each worker on `address`; port 0 lets the kernel choose one for all.
///
/// `[::]` also takes IPv4; on a host without IPv6 it means `0.0.0.0`.
///
/// # Errors
/// What the kernel says.
pub fn bind(
    address: SocketAddr,
    workers: usize,
    sizes: BufferSizes,
) -> io::Result<Vec<std::net::UdpSocket>> {
    let mut address = address;
    let mut sockets: Vec<std::net::UdpSocket> = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = match open(address, sizes) {
            Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED && sockets.is_empty() => {
                address.set_ip(Ipv4Addr::UNSPECIFIED.into());
                open(address, sizes)?
            }
            opened => opened?,
        };
        address.set_port(socket.local_addr()?.port());
        sockets.push(socket);
    }
    Ok(sockets)
}

fn open(address: SocketAddr, sizes: BufferSizes) -> io::Result<std::net::UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_port(true)?;
    // The kernel grants less where its limits are lower (net.core.rmem_max, wmem_max).
    socket.set_recv_buffer_size(sizes.receive)?;
    socket.set_send_buffer_size(sizes.send)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

/// Returns how much the kernel granted to a socket for receiving.
///
/// # Errors
/// What the kernel says.
pub fn granted(socket: &std::net::UdpSocket) -> io::Result<usize> {
    // The kernel doubles what it was asked for, for its own book-keeping (socket(7)).
    SockRef::from(socket)
        .recv_buffer_size()
        .map(|size| size / 2)
}

/// A socket in use by its worker.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
    ipv6: bool,
}

impl Datagrams {
    /// Takes over a bound socket. Must be called within the worker's runtime.
    ///
    /// # Errors
    /// What the kernel says of its options.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let ipv6 = socket.local_addr()?.is_ipv6();
        // Whoever forwards does not choose the sizes: what is too large for a path is fragmented
        // rather than lost, as the kernel's WireGuard does it.
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::WANT)?;
        if ipv6 {
            sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::WANT)?;
        }
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            state,
            ipv6,
        })
    }

    /// Opens a socket toward servers: any address, a port of the kernel's choice.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn upstream(sizes: BufferSizes) -> io::Result<Self> {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let mut sockets = bind(any, 1, sizes)?;
        sockets
            .pop()
            .map_or_else(|| Err(io::ErrorKind::AddrNotAvailable.into()), Self::new)
    }

    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Tells whether the socket is IPv6, whose addresses of IPv4 are written as mapped ones.
    pub fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Returns how many datagrams the kernel takes in one call; 1 where it cannot split them.
    pub fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Waits until there may be something to receive. Cancel-safe.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives a batch without waiting; the number of buffers filled, 0 when there is nothing.
    pub fn receive(&self, inbox: &mut Inbox) -> usize {
        let mut buffers = inbox.buffers.chunks_mut(BUFFER).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| buffers.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let received = self.socket.try_io(Interest::READABLE, || {
            self.state
                .recv(UdpSockRef::from(&self.socket), &mut slices, &mut inbox.meta)
        });
        // Errors that the kernel reports here are of datagrams sent earlier; they are told once.
        received.unwrap_or(0)
    }
}

/// Where batches are received, shared by the sockets of one worker.
#[derive(Debug)]
pub struct Inbox {
    buffers: Vec<u8>,
    meta: [RecvMeta; BUFFERS],
}

/// Datagrams of one sender, all of one size but for the last, which may be shorter.
#[derive(Debug)]
pub struct Run<'a> {
    pub sender: SocketAddr,
    /// The address of ours that they were sent to.
    pub local: Option<IpAddr>,
    bytes: &'a mut [u8],
    stride: usize,
}

impl Inbox {
    pub fn new() -> Self {
        Self {
            buffers: vec![0; BUFFER * BUFFERS],
            meta: [RecvMeta::default(); BUFFERS],
        }
    }

    /// Returns what the first `filled` buffers hold.
    pub fn runs(&mut self, filled: usize) -> impl Iterator<Item = Run<'_>> {
        let buffers = self.buffers.chunks_mut(BUFFER).zip(&self.meta);
        buffers.take(filled).map(|(buffer, meta)| Run {
            sender: plain(meta.addr),
            local: meta.dst_ip,
            bytes: buffer.get_mut(..meta.len).unwrap_or_default(),
            stride: meta.stride.max(1),
        })
    }
}

impl Run<'_> {
    /// Returns the datagrams one by one; an empty one is one, too.
    pub fn datagrams(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let empty = self.bytes.is_empty().then_some(&mut [][..]);
        self.bytes.chunks_mut(self.stride).chain(empty)
    }
}

/// Returns the address as the rest of the program writes it: IPv4 as such, no zone or flow label.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
