//! UDP sockets that receive in batches, and the metadata of each batch.
//!
//! ```text
//!     recvmmsg, UDP_GRO ─▶ buffers ─▶ runs of datagrams of one sender and size
//! ```
//!
//! Sockets of one listener share its address by `SO_REUSEPORT`: the kernel spreads clients over
//! them by their address, so all datagrams of one client reach the same worker. Knows nothing of
//! what datagrams mean. Sending is `outbox`'s.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::task::{Context, Poll, ready};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGroSegment;
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes of one receive buffer: what the kernel joins at most.
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
    /// They are fragmented: right for a forwarder, which does not choose the sizes, as the
    /// kernel's WireGuard has it.
    Fragment,
    /// They are lost, and ICMP of routers is ignored (`IP_PMTUDISC_PROBE`): right for
    /// a search for the size by probes. What the device itself cannot take is counted.
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
    pub(crate) socket: AsyncFd<UdpSocket>,
    state: UdpSocketState,
    /// Whether addresses of IPv4 are written as mapped ones.
    pub(crate) ipv6: bool,
    /// Whether the kernel may report an earlier datagram's error when the next one is sent.
    pub(crate) connected: bool,
    pub(crate) options: Options,
}

impl Datagrams {
    /// Takes over a bound or connected socket. Must be called within the runtime that polls it.
    ///
    /// # Errors
    /// An error of its options.
    pub fn new(socket: UdpSocket, options: Options) -> io::Result<Self> {
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
        socket.set_nonblocking(true)?;
        // Nothing waits for writability, and each datagram that leaves its buffer would wake the
        // thread for it.
        #[expect(
            deprecated,
            reason = "sound for a socket that is owned; its replacement is unsafe code"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self {
            socket,
            state,
            ipv6,
            connected,
            options,
        })
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

    /// Returns another descriptor of the socket, for another process.
    ///
    /// # Errors
    /// The kernel's: there are too many descriptors.
    pub fn share(&self) -> io::Result<UdpSocket> {
        self.socket.get_ref().try_clone()
    }

    /// Waits until there may be something to receive. Cancel-safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        // The readiness stays until a call of `receive` finds nothing.
        self.socket.readable().await.map(drop)
    }

    /// Is ready when there may be something to receive; call [`Datagrams::receive`] until it
    /// answers 0 before asking again.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(ready!(self.socket.poll_read_ready(cx)).map(drop))
    }

    /// Receives a batch without waiting; the number of buffers filled, 0 when there is nothing.
    pub fn receive(&self, inbox: &mut Inbox) -> usize {
        let mut buffers = inbox.buffers.chunks_mut(BUFFER).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| buffers.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let received = self.socket.try_io(Interest::READABLE, |socket| {
            self.state
                .recv(UdpSockRef::from(socket), &mut slices, &mut inbox.meta)
        });
        // Errors that the kernel reports here are of datagrams sent earlier; they are reported once.
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
    /// Their sender.
    pub sender: SocketAddr,
    /// The address of ours that they were sent to.
    pub local: Option<IpAddr>,
    bytes: &'a mut [u8],
    stride: usize,
}

impl Inbox {
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
    /// Returns an empty one.
    fn default() -> Self {
        Self {
            buffers: vec![0; BUFFER * BUFFERS],
            meta: [RecvMeta::default(); BUFFERS],
        }
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use super::*;

    #[tokio::test]
    async fn sockets_are_watched_for_reading_only() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let options = Options {
            mtu_discovery: MtuDiscovery::Fragment,
            offloads: Offloads::default(),
        };
        let datagrams = Datagrams::new(socket, options).unwrap();
        let own = datagrams.socket.as_raw_fd().to_string();
        let all = fs::read_dir("/proc/self/fdinfo").unwrap();
        let texts = all.map(|one| fs::read_to_string(one.unwrap().path()).unwrap_or_default());
        let asked: Vec<u32> = texts
            .flat_map(|text| text.lines().filter_map(events(&own)).collect::<Vec<_>>())
            .collect();
        // The runtime has two descriptors of what it waits with.
        assert!(!asked.is_empty());
        for asked in asked {
            let of = |flag: i32| asked & flag.cast_unsigned();
            assert_ne!(of(libc::EPOLLIN), 0, "{asked:x}");
            assert_eq!(of(libc::EPOLLOUT), 0, "{asked:x}");
        }
    }

    /// Reads what an epoll descriptor asks for of the file `own`, as in `tfd: 9 events: 80002019 …`.
    fn events(own: &str) -> impl Fn(&str) -> Option<u32> + '_ {
        move |line| {
            let mut words = line.strip_prefix("tfd:")?.split_whitespace();
            (words.next()? == own).then_some(())?;
            u32::from_str_radix(words.nth(1)?, 16).ok()
        }
    }
}
