//! UDP sockets that receive in batches, and what a receiver is told of each batch.
//!
//! ```text
//!     recvmmsg, UDP_GRO ─▶ buffers ─▶ runs of datagrams of one sender and size
//! ```
//!
//! Sockets of one listener share its address by `SO_REUSEPORT`: the kernel spreads clients over
//! them by their address, so all datagrams of one client reach the same worker. Knows nothing of
//! what datagrams mean. Sending is `outbox`'s.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, ready};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGroSegment;
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Octets of one receive buffer: what the kernel joins at most.
const BUFFER: usize = 64 * 1024;

/// Receive buffers, and so messages of one call.
const BUFFERS: usize = 16;

/// How a socket is used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What becomes of datagrams that are larger than a path takes.
    pub mtu_discovery: MtuDiscovery,
    /// What is left to the kernel.
    pub offloads: Offloads,
}

/// What becomes of datagrams that are larger than a path takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuDiscovery {
    /// They are fragmented: right for whoever forwards and does not choose the sizes, as the
    /// kernel's WireGuard has it.
    Fragment,
    /// They are lost, and what routers say of it is not believed (`IP_PMTUDISC_PROBE`): right for
    /// whoever searches for the size by trying. What the device itself cannot take is counted.
    Probe,
}

/// What is left to the kernel, where it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Cutting runs into datagrams when sending (`UDP_SEGMENT`).
    pub gso: bool,
    /// Joining datagrams into runs when receiving (`UDP_GRO`).
    pub gro: bool,
}

impl Default for Offloads {
    fn default() -> Self {
        Self {
            gso: true,
            gro: true,
        }
    }
}

/// A socket in use by its thread.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
    ipv6: bool,
    connected: bool,
    options: Options,
}

impl Datagrams {
    /// Takes over a bound or connected socket. Must be called within the runtime that polls it.
    ///
    /// # Errors
    /// What the kernel says of its options.
    pub fn new(socket: std::net::UdpSocket, options: Options) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let ipv6 = socket.local_addr()?.is_ipv6();
        let connected = socket.peer_addr().is_ok();
        let (v4, v6) = match options.mtu_discovery {
            MtuDiscovery::Fragment => (
                sockopt::Ipv4PathMtuDiscovery::WANT,
                sockopt::Ipv6PathMtuDiscovery::WANT,
            ),
            MtuDiscovery::Probe => (
                sockopt::Ipv4PathMtuDiscovery::PROBE,
                sockopt::Ipv6PathMtuDiscovery::PROBE,
            ),
        };
        sockopt::set_ip_mtu_discover(&socket, v4)?;
        if ipv6 {
            sockopt::set_ipv6_mtu_discover(&socket, v6)?;
        }
        if !options.offloads.gro && state.gro_segments() > 1 {
            // The state has turned it on.
            setsockopt(&socket, UdpGroSegment, &false)?;
        }
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            state,
            ipv6,
            connected,
            options,
        })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Tells whether the socket is IPv6, whose addresses of IPv4 are written as mapped ones.
    pub(crate) fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Tells whether the kernel may report an earlier datagram's error when the next one is sent.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Tells whether IPv6 datagrams may be fragmented at their source.
    pub(crate) fn fragments(&self) -> bool {
        self.options.mtu_discovery == MtuDiscovery::Fragment
    }

    /// Returns how many datagrams the kernel takes in one call; 1 where it cannot split them.
    #[must_use]
    pub fn max_segments(&self) -> usize {
        if self.options.offloads.gso {
            self.state.max_gso_segments()
        } else {
            1
        }
    }

    /// Returns the address that the socket is bound to.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr().map(plain)
    }

    /// Waits until there may be something to receive. Cancel-safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Is ready when there may be something to receive; call [`Datagrams::receive`] until it
    /// answers 0 before asking again.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(ready!(self.socket.poll_recv_ready(cx)))
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

/// Where batches are received, shared by the sockets of one thread: 1 MiB, which takes memory as
/// far as it was used.
#[derive(Debug)]
pub struct Inbox {
    buffers: Vec<u8>,
    meta: [RecvMeta; BUFFERS],
}

/// Datagrams of one sender, all of one size but for the last, which may be shorter.
#[derive(Debug)]
pub struct Run<'a> {
    /// Who sent them.
    pub sender: SocketAddr,
    /// The address of ours that they were sent to.
    pub local: Option<IpAddr>,
    bytes: &'a mut [u8],
    stride: usize,
}

impl Inbox {
    /// Returns an empty one.
    #[must_use]
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
            local: meta.dst_ip.map(|ip| ip.to_canonical()),
            bytes: buffer.get_mut(..meta.len).unwrap_or_default(),
            stride: meta.stride.max(1),
        })
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
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
