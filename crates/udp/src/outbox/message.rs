//! One call that sends: to whom, from which address, cut into datagrams of which size.
//!
//! Ancillary data is written by hand, because no crate here writes it without unsafe code of ours.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use socket2::{MsgHdr, SockAddr, SockRef};

use crate::socket::{Datagrams, MtuDiscovery};

/// What all datagrams of a run have in common.
#[derive(Debug)]
pub(super) struct Message<'a> {
    through: &'a Datagrams,
    to: Option<SockAddr>,
    control: Control,
}

impl<'a> Message<'a> {
    pub(super) fn new(
        through: &'a Datagrams,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
    ) -> Self {
        let ipv6 = through.ipv6;
        let may_fragment = through.options.mtu_discovery == MtuDiscovery::Fragment;
        let mut control = Control {
            bytes: [0; 96],
            len: 0,
        };
        if ipv6 && may_fragment && to.is_none_or(|to| to.is_ipv6()) {
            control.may_fragment();
        }
        if let Some(from) = from {
            control.source(ipv6, from);
        }
        Self {
            through,
            to: to.map(|to| SockAddr::from(written(ipv6, to))),
            control,
        }
    }

    /// Sends one datagram.
    pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.call(&self.control, datagram)
    }

    /// Sends datagrams of `size` bytes, the last of which may be shorter.
    pub(super) fn send_joined(&self, run: &[u8], size: usize) -> io::Result<()> {
        let mut control = self.control;
        control.segments(size);
        self.call(&control, run)
    }

    fn call(&self, control: &Control, bytes: &[u8]) -> io::Result<()> {
        let buffers = [IoSlice::new(bytes)];
        let mut message = MsgHdr::new().with_buffers(&buffers);
        if let Some(to) = &self.to {
            message = message.with_addr(to);
        }
        let bytes = control.as_bytes();
        if !bytes.is_empty() {
            message = message.with_control(bytes);
        }
        // Not by way of the runtime: what does not fit is dropped now and not sent later.
        let socket = SockRef::from(self.through.socket.get_ref());
        match socket.sendmsg(&message, 0) {
            // A connected socket reports here what became of an earlier datagram, once, and does not
            // send this one.
            Err(error) if self.through.connected && error.kind() != io::ErrorKind::WouldBlock => {
                socket.sendmsg(&message, 0).map(drop)
            }
            sent => sent.map(drop),
        }
    }
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
#[derive(Clone, Copy, Debug)]
struct Control {
    /// Three items at most: of 24, 40 and 24 bytes.
    bytes: [u8; 96],
    len: usize,
}

impl Control {
    /// That IPv6 may fragment it at its source.
    fn may_fragment(&mut self) {
        let no = 0_i32.to_ne_bytes();
        self.add(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, &no);
    }

    /// Which address of ours it comes from.
    fn source(&mut self, ipv6: bool, from: IpAddr) {
        match from {
            // struct in_pktinfo: interface, source, and an address that is not looked at.
            IpAddr::V4(ip) if !ipv6 => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                self.add(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(_) if !ipv6 => {} // no address of such a socket
            // struct in6_pktinfo: source, interface.
            IpAddr::V4(_) | IpAddr::V6(_) => {
                let bytes = match from {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                let mut info = [0; 20];
                info[..16].copy_from_slice(&bytes);
                self.add(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// That the message is several datagrams of `size` bytes.
    fn segments(&mut self, size: usize) {
        // A run is at most 64 KiB.
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        self.add(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    }

    fn add(&mut self, level: i32, kind: i32, data: &[u8]) {
        const WORD: usize = size_of::<usize>();
        let len = WORD + 8 + data.len();
        let mut at = self.len;
        let parts: [&[u8]; 4] = [
            &len.to_ne_bytes(),
            &level.to_ne_bytes(),
            &kind.to_ne_bytes(),
            data,
        ];
        for part in parts {
            if let Some(place) = self.bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
            at += part.len();
        }
        self.len = at.next_multiple_of(WORD);
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
