//! Views of TCP, UDP and ICMP headers.
//!
//! Each view is made of a segment as [`super::Header::segment`] returns it, and only when all of
//! the header is there. Checksums are verified where that is asked for, not by making a view.

use crate::wire::array;

use super::{Header, checksum::Sum};

/// Flags of a TCP header, byte 13 (RFC 9293 §3.1).
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push to the application.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 0x10;
    /// Congestion experienced (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    fixed: [u8; TCP_LEN],
    /// The options, up to 40 bytes.
    pub options: &'a [u8],
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Returns the view, or `None` when the header is cut off or its length is less than 20.
    #[must_use]
    pub fn new(segment: &'a [u8]) -> Option<Self> {
        let fixed: [u8; TCP_LEN] = array(segment, 0)?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        let (header, payload) = segment.split_at_checked(header_len)?;
        let options = header.get(TCP_LEN..)?;
        Some(Self {
            fixed,
            options,
            payload,
        })
    }

    /// Returns the sequence number.
    #[must_use]
    pub fn seq(&self) -> u32 {
        let f = &self.fixed;
        u32::from_be_bytes([f[4], f[5], f[6], f[7]])
    }

    /// Returns the [`flags`].
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.fixed[13]
    }

    /// Returns the bytes of the header, options included.
    #[must_use]
    pub fn header_len(&self) -> usize {
        TCP_LEN + self.options.len()
    }
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    fixed: [u8; UDP_LEN],
    /// The data; as much as the header says, or as is there of a fragment or a quotation.
    pub payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Returns the view, or `None` when the header is cut off or its length is less than 8.
    #[must_use]
    pub fn new(segment: &'a [u8]) -> Option<Self> {
        let fixed: [u8; UDP_LEN] = array(segment, 0)?;
        let len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let payload = segment.get(UDP_LEN..len.min(segment.len()))?;
        Some(Self { fixed, payload })
    }

    /// Returns the length in the header: of header and data.
    #[must_use]
    pub fn declared_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.fixed[4], self.fixed[5]]))
    }

    /// Returns the checksum; zero means none in IPv4.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]])
    }
}

/// An ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    /// The type.
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// Bytes 4 to 7: identifier and sequence number of an echo, the MTU of a packet too big.
    pub rest: [u8; 4],
    /// What follows the first eight bytes.
    pub body: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Returns the view, or `None` when there are fewer than eight bytes.
    #[must_use]
    pub fn new(segment: &'a [u8]) -> Option<Self> {
        let fixed: [u8; 8] = array(segment, 0)?;
        Some(Self {
            kind: fixed[0],
            code: fixed[1],
            rest: [fixed[4], fixed[5], fixed[6], fixed[7]],
            body: segment.get(8..)?,
        })
    }

    /// Returns the identifier of an echo request or reply.
    #[must_use]
    pub fn echo_id(&self) -> u16 {
        u16::from_be_bytes([self.rest[0], self.rest[1]])
    }
}

/// Returns source and destination address of a packet as they stand in it, 8 or 32 bytes.
pub(crate) fn address_bytes(packet: &[u8]) -> &[u8] {
    let range = match packet.first().map(|first| first >> 4) {
        Some(4) => 12..20,
        _ => 8..40,
    };
    packet.get(range).unwrap_or_default()
}

/// Returns whether the checksum of a whole, unfragmented TCP, UDP or ICMPv6 packet is right.
///
/// Of a source-routed packet the answer means nothing: its final destination is elsewhere.
#[must_use]
pub fn checksum_is_right(header: &Header, packet: &[u8]) -> bool {
    let segment = header.segment(packet);
    let len = u32::try_from(segment.len()).unwrap_or(u32::MAX);
    Sum::default()
        .pseudo_header(address_bytes(packet), header.protocol, len)
        .bytes(segment)
        .checksum()
        == 0
}

/// Bytes of a TCP header without options.
pub(crate) const TCP_LEN: usize = 20;
/// Bytes of a UDP header.
pub(crate) const UDP_LEN: usize = 8;
