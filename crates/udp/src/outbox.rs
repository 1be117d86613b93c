//! Sends datagrams, those that follow each other to one receiver in one call.
//!
//! ```text
//!     push(to, parts) ─▶ a run: one receiver, one size ─▶ sendmsg with UDP_SEGMENT
//!                          another receiver or size, or full: the run is sent first
//! ```
//!
//! What the kernel does not take is counted and forgotten, since whoever sends datagrams sends
//! them again. A run that cannot be split (a device without the offload, a path narrower than the
//! datagrams) is sent one by one, and datagrams of that size are from then on.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use socket2::{MsgHdr, SockAddr, SockRef};

use crate::socket::Datagrams;

/// Octets of one run: what UDP over IPv6 carries, which is what the kernel checks.
const RUN: usize = 65_487;

/// What waits to be sent on one socket.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    to: Option<(SocketAddr, Option<IpAddr>)>,
    /// Octets of each datagram of the run, the last one excepted.
    size: usize,
    count: usize,
    /// The last one was shorter, so it is the last.
    complete: bool,
    /// Datagrams above this are sent one by one.
    largest_joined: usize,
    failed: u64,
}

impl Outbox {
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(RUN),
            to: None,
            size: 0,
            count: 0,
            complete: false,
            largest_joined: RUN,
            failed: 0,
        }
    }

    /// Adds a datagram, put together from `head` and `body`, from the address `from` of ours.
    pub fn push(
        &mut self,
        through: &Datagrams,
        to: SocketAddr,
        from: Option<IpAddr>,
        (head, body): (&[u8], &[u8]),
    ) {
        let len = head.len() + body.len();
        let joins = self.to == Some((to, from))
            && !self.complete
            && len <= self.size
            && self.size <= self.largest_joined
            && self.count < through.max_segments()
            && self.bytes.len() + len <= RUN;
        if !joins {
            self.flush(through);
            (self.to, self.size) = (Some((to, from)), len);
        }
        self.complete = len < self.size;
        self.count += 1;
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(body);
    }

    /// Sends what waits.
    pub fn flush(&mut self, through: &Datagrams) {
        let Some((to, from)) = self.to.take() else {
            return;
        };
        let control = Control::new(through.is_ipv6(), to, from);
        let to = SockAddr::from(written(through.is_ipv6(), to));
        let whole = if self.count > 1 {
            let segments = control.clone().segments(self.size);
            send(through, &to, &segments, &self.bytes)
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        let joined = match whole {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.failed += self.count as u64;
                true
            }
            Err(_) => false,
        };
        if !joined {
            let mut sent = 0;
            for datagram in self.bytes.chunks(self.size.max(1)) {
                match send(through, &to, &control, datagram) {
                    Ok(()) => sent += 1,
                    Err(_) => self.failed += 1,
                }
            }
            if self.count > 1 && sent > 0 {
                self.largest_joined = self.size.saturating_sub(1);
                tracing::info!(
                    octets = self.size,
                    "datagrams of this size are sent one by one"
                );
            }
        }
        self.bytes.clear();
        (self.count, self.complete) = (0, false);
    }

    /// Returns what was sent in vain since the last call.
    pub fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }
}

fn send(through: &Datagrams, to: &SockAddr, control: &Control, bytes: &[u8]) -> io::Result<()> {
    let buffers = [IoSlice::new(bytes)];
    let message = MsgHdr::new().with_addr(to).with_buffers(&buffers);
    let message = message.with_control(&control.0);
    // Not by way of the runtime: what does not fit is dropped now and not sent later.
    let sent = SockRef::from(through.socket()).sendmsg(&message, 0);
    sent.map(drop)
}

/// Returns an address as a socket of the family wants it.
fn written(ipv6: bool, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ipv6 => {
            SocketAddrV6::new(ip.to_ipv6_mapped(), address.port(), 0, 0).into()
        }
        IpAddr::V4(_) | IpAddr::V6(_) => address,
    }
}

/// Ancillary data of one message (cmsg(3)): length, level, type and data, aligned to a word.
#[derive(Clone, Debug)]
struct Control(Vec<u8>);

impl Control {
    /// Which address of ours it comes from, and that IPv6 may fragment it at its source.
    fn new(ipv6: bool, to: SocketAddr, from: Option<IpAddr>) -> Self {
        let mut control = Self(Vec::with_capacity(128));
        if ipv6 && to.is_ipv6() {
            control.add(
                libc::IPPROTO_IPV6,
                libc::IPV6_DONTFRAG,
                &0_i32.to_ne_bytes(),
            );
        }
        match from {
            // struct in_pktinfo: interface, source, and an address that is not looked at.
            Some(IpAddr::V4(ip)) if !ipv6 => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                control.add(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: source, interface.
            Some(ip) if ipv6 => {
                let octets = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                let mut info = [0; 20];
                info[..16].copy_from_slice(&octets);
                control.add(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            Some(_) | None => {}
        }
        control
    }

    /// That the message is several datagrams of `size` octets.
    fn segments(mut self, size: usize) -> Self {
        // A run is at most 64 KiB.
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        self.add(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        self
    }

    fn add(&mut self, level: i32, kind: i32, data: &[u8]) {
        const WORD: usize = size_of::<usize>();
        let len = WORD + 8 + data.len();
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&level.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(WORD), 0);
    }
}
