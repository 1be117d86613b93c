//! IP packets: what is where, and the work on them that a TUN device leaves to its user.
//!
//! ```text
//! TUN ──▶ segment (one super-packet → MTU packets, checksums finished) ──▶ mss ──▶ seal
//! open ──▶ mss ──▶ coalesce (MTU packets → super-packets, VnetHeader) ──▶ TUN
//!                    icmp: too big, echo           transport: TCP, UDP, ICMP views
//! ```
//!
//! [`Header::parse`] looks at a packet once and notes where its transport header begins; views and
//! changes start from there. Everything is bounds-checked and works in the caller's bytes; nothing
//! is allocated per packet. Packets are not reassembled, routed or filtered here.

pub mod checksum;
pub mod coalesce;
pub mod icmp;
pub mod mss;
pub mod segment;
pub mod transport;
pub mod vnet;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{array, u8_at, u16_at, u32_at};

/// Protocol numbers of the IANA registry, as far as they matter here.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// The version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// IPv4, RFC 791.
    V4,
    /// IPv6, RFC 8200.
    V6,
}

/// The headers in front of a packet's transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// IPv4 or IPv6.
    pub version: Version,
    /// Source address.
    pub src: IpAddr,
    /// Destination address; of a source-routed packet the next hop's.
    pub dst: IpAddr,
    /// The protocol behind IPv4 options or IPv6 extension headers.
    pub protocol: u8,
    /// Bytes in front of the transport header, or of a later fragment's data.
    pub transport: usize,
    /// Bytes of the packet; what lies behind is padding.
    pub total_len: usize,
    /// Present when the packet is a fragment; an IPv6 "atomic" fragment (RFC 6946) is none.
    pub fragment: Option<Fragment>,
    /// Whether it carries an IPv4 source route or an IPv6 routing header with hops to go.
    pub source_routed: bool,
}

/// Which part of a packet a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Common to the fragments of a packet; 16 bits in IPv4.
    pub id: u32,
    /// Bytes in front of this one's data, a multiple of eight.
    pub offset: u16,
    /// Whether more follow.
    pub more: bool,
    /// Bytes of the packet in front of its data, which IPv6 extension headers may begin.
    pub data_at: usize,
}

impl Header {
    /// Reads the headers of a packet. Bytes behind the packet's own length are allowed.
    ///
    /// # Errors
    ///
    /// - [`IpError::Version`]: neither IPv4 nor IPv6;
    /// - [`IpError::Length`]: shorter than the headers or the length in them says;
    /// - [`IpError::Extensions`]: more than eight IPv6 extension headers.
    pub fn parse(packet: &[u8]) -> Result<Self, IpError> {
        let header = Self::parse_quoted(packet)?;
        if header.total_len > packet.len() {
            return Err(IpError::Length);
        }
        Ok(header)
    }

    /// Reads the headers of a packet of which only the beginning is there, as in an ICMP error.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`]; [`IpError::Length`] only when the headers themselves are cut off.
    pub fn parse_quoted(packet: &[u8]) -> Result<Self, IpError> {
        match u8_at(packet, 0).ok_or(IpError::Length)? >> 4 {
            4 => parse_v4(packet),
            6 => parse_v6(packet),
            _ => Err(IpError::Version),
        }
    }

    /// Returns the transport header and what follows it, without padding; empty when it is not
    /// there.
    #[must_use]
    pub fn segment<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        let end = self.total_len.min(packet.len());
        packet.get(self.transport..end).unwrap_or_default()
    }

    /// Returns whether the transport header is in this packet: it is whole, or the first fragment.
    #[must_use]
    pub fn has_transport_header(&self) -> bool {
        self.fragment.is_none_or(|fragment| fragment.offset == 0)
    }
}

fn parse_v4(packet: &[u8]) -> Result<Header, IpError> {
    let fixed: [u8; V4_LEN] = array(packet, 0).ok_or(IpError::Length)?;
    let header_len = usize::from(fixed[0] & 0xf) * 4;
    let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if header_len < V4_LEN || total_len < header_len {
        return Err(IpError::Length);
    }
    let options = packet.get(V4_LEN..header_len).ok_or(IpError::Length)?;
    let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
    let fragment = Fragment {
        id: u32::from(u16::from_be_bytes([fixed[4], fixed[5]])),
        offset: (flags & 0x1fff) << 3,
        more: flags & 0x2000 != 0,
        data_at: header_len,
    };
    Ok(Header {
        version: Version::V4,
        src: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
        dst: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
        protocol: fixed[9],
        transport: header_len,
        total_len,
        fragment: (fragment.offset != 0 || fragment.more).then_some(fragment),
        source_routed: has_source_route(options),
    })
}

/// Looks for loose and strict source routes (RFC 791 §3.1, options 131 and 137). Options that
/// cannot be read count as one.
fn has_source_route(mut options: &[u8]) -> bool {
    loop {
        match options {
            [] | [0, ..] => return false,
            [131 | 137, ..] => return true,
            [1, rest @ ..] => options = rest,
            [_, len, ..] => match options.get(usize::from(*len).max(1)..) {
                Some(rest) if *len >= 2 => options = rest,
                _ => return true,
            },
            [_] => return true,
        }
    }
}

fn parse_v6(packet: &[u8]) -> Result<Header, IpError> {
    let fixed: [u8; V6_LEN] = array(packet, 0).ok_or(IpError::Length)?;
    let address = |at| array::<16>(packet, at).map(Ipv6Addr::from);
    let (src, dst) = address(8).zip(address(24)).ok_or(IpError::Length)?;
    let payload_len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    let mut header = Header {
        version: Version::V6,
        src: src.into(),
        dst: dst.into(),
        protocol: fixed[6],
        transport: V6_LEN,
        total_len: V6_LEN + payload_len,
        fragment: None,
        source_routed: false,
    };
    for _ in 0..=MAX_EXTENSIONS {
        if !header.skip_extension(packet)? {
            return if header.transport > header.total_len {
                Err(IpError::Length)
            } else {
                Ok(header)
            };
        }
    }
    Err(IpError::Extensions)
}

impl Header {
    /// Steps over one IPv6 extension header (RFC 8200 §4); returns whether there was one.
    fn skip_extension(&mut self, packet: &[u8]) -> Result<bool, IpError> {
        if !self.has_transport_header() {
            return Ok(false); // what follows is the middle of something
        }
        let at = self.transport;
        let read = |offset| u8_at(packet, at + offset).ok_or(IpError::Length);
        let len = match self.protocol {
            HOP_BY_HOP | DESTINATION => usize::from(read(1)?) * 8 + 8,
            ROUTING => {
                self.source_routed |= read(3)? != 0;
                usize::from(read(1)?) * 8 + 8
            }
            FRAGMENT => {
                let flags = u16_at(packet, at + 2).ok_or(IpError::Length)?;
                let fragment = Fragment {
                    id: u32_at(packet, at + 4).ok_or(IpError::Length)?,
                    offset: flags & !7,
                    more: flags & 1 != 0,
                    data_at: at + 8,
                };
                self.fragment = (fragment.offset != 0 || fragment.more).then_some(fragment);
                8
            }
            AUTHENTICATION => usize::from(read(1)?) * 4 + 8,
            _ => return Ok(false),
        };
        self.protocol = read(0)?;
        self.transport += len;
        Ok(true)
    }
}

/// Bytes of an IPv4 header without options.
pub(crate) const V4_LEN: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub(crate) const V6_LEN: usize = 40;

/// RFC 8200 §4.1 lists six, one of which may come twice.
const MAX_EXTENSIONS: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// Why bytes are no IP packet that can be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpError {
    /// More IPv6 extension headers than are ever sent.
    #[error("too many extension headers")]
    Extensions,
    /// The packet is cut short, or a length in it cannot be.
    #[error("packet is shorter than its headers say")]
    Length,
    /// Neither IPv4 nor IPv6.
    #[error("neither IPv4 nor IPv6")]
    Version,
}
