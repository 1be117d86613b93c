//! Cuts a super-packet of a TUN device into packets, in place.
//!
//! ```text
//! │headers│ data 1 │ data 2 │ data 3 │        as read
//! │headers│ data 1 │                          first answer
//!          ···│headers│ data 2 │              second: headers overwrite the end of data 1
//!                   ···│headers│ data 3 │     third
//! ```
//!
//! Each packet is lent until the next is asked for, so the data are never copied: a caller that seals a
//! packet into another buffer is done with it by then. Lengths, sequence numbers, flags and
//! checksums are made anew for each. Headers are found in the packet itself; `hdr_len` is not
//! trusted, since it is wrong for forwarded packets.
//!
//! Fragments nothing: a segment is as large as the sender's `gso_size` says.

use crate::wire::{put, u16_at, u32_at};

use super::checksum::{Sum, checksum};
use super::transport::{TCP_LEN, Tcp, UDP_LEN, address_bytes, flags};
use super::vnet::{Gso, OffloadError, VnetHeader};
use super::{Header, Version, protocol};

/// The packets in what was read from a TUN device.
#[derive(Debug)]
pub struct Segments<'a> {
    packet: &'a mut [u8],
    head: [u8; MAX_HEAD],
    head_len: usize,
    transport: usize,
    version: Version,
    /// `None` for an ordinary packet, which is answered as it is.
    cut: Option<Cut>,
    /// Where the data of the next packet begin; past the end when all were answered.
    at: usize,
    index: u32,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    size: usize,
    tcp: bool,
}

impl<'a> Segments<'a> {
    /// Prepares the packets in `packet`, which begins with the IP header and ends with the data.
    ///
    /// An ordinary packet's checksum is finished when that was left to us.
    ///
    /// # Errors
    ///
    /// - [`OffloadError::Mismatch`]: not the packet that `vnet` describes, or a segment size of 0;
    /// - [`OffloadError::Checksum`]: a checksum elsewhere than the protocol has it;
    /// - [`OffloadError::Headers`]: more than 128 bytes of headers.
    pub fn new(vnet: &VnetHeader, packet: &'a mut [u8]) -> Result<Self, OffloadError> {
        let mut segments = Self {
            head: [0; MAX_HEAD],
            head_len: 0,
            transport: 0,
            version: Version::V4,
            cut: None,
            at: 0,
            index: 0,
            packet,
        };
        if vnet.gso == Gso::None {
            if vnet.needs_csum {
                finish_checksum(vnet, segments.packet)?;
            }
            return Ok(segments);
        }
        segments.prepare(vnet)?;
        Ok(segments)
    }

    /// Returns the bytes of the largest packet.
    #[must_use]
    pub fn max_len(&self) -> usize {
        match self.cut {
            Some(cut) => self.packet.len().min(self.head_len + cut.size),
            None => self.packet.len(),
        }
    }

    /// Returns the next packet, until it is called again. The caller may change it.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot lend what it answers"
    )]
    pub fn next(&mut self) -> Option<&mut [u8]> {
        if self.at >= self.packet.len() {
            return None;
        }
        let Some(cut) = self.cut else {
            self.at = self.packet.len();
            return Some(self.packet);
        };
        let end = self.packet.len().min(self.at + cut.size);
        let last = end == self.packet.len();
        let start = self.at.checked_sub(self.head_len)?;
        let (transport, version, index) = (self.transport, self.version, self.index);
        let head = self.head.get(..self.head_len)?;
        let segment = self.packet.get_mut(start..end)?;
        segment.get_mut(..head.len())?.copy_from_slice(head);
        self.at = end;
        self.index = index.wrapping_add(1);
        patch_ip(segment, version, index)?;
        if cut.tcp {
            patch_tcp(segment, transport, cut.size, index, last)?;
        } else {
            patch_udp(segment, transport)?;
        }
        Some(segment)
    }

    fn prepare(&mut self, vnet: &VnetHeader) -> Result<(), OffloadError> {
        let mismatch = OffloadError::Mismatch;
        let header = Header::parse_quoted(self.packet).map_err(|_| mismatch)?;
        let (version, wanted) = match vnet.gso {
            Gso::TcpV4 => (Version::V4, protocol::TCP),
            Gso::TcpV6 => (Version::V6, protocol::TCP),
            Gso::Udp | Gso::None => (header.version, protocol::UDP),
        };
        let fits = header.version == version
            && header.protocol == wanted
            && header.fragment.is_none()
            && !header.source_routed
            && vnet.gso_size != 0;
        if !fits {
            return Err(mismatch);
        }
        let segment = self.packet.get(header.transport..).ok_or(mismatch)?;
        let tcp = wanted == protocol::TCP;
        let (len, csum_offset) = if tcp {
            (
                Tcp::new(segment).ok_or(mismatch)?.header_len(),
                TCP_CHECKSUM,
            )
        } else {
            (UDP_LEN, UDP_CHECKSUM)
        };
        if !vnet.needs_csum
            || usize::from(vnet.csum_start) != header.transport
            || usize::from(vnet.csum_offset) != csum_offset
        {
            return Err(OffloadError::Checksum);
        }
        self.head_len = header.transport + len;
        if self.head_len >= self.packet.len() {
            return Err(mismatch); // no data to cut
        }
        let head = self.packet.get(..self.head_len).ok_or(mismatch)?;
        let kept = self.head.get_mut(..self.head_len);
        kept.ok_or(OffloadError::Headers)?.copy_from_slice(head);
        self.at = self.head_len;
        self.transport = header.transport;
        self.version = version;
        self.cut = Some(Cut {
            size: usize::from(vnet.gso_size),
            tcp,
        });
        Ok(())
    }
}

/// Finishes the checksum of an ordinary packet whose checksum field holds the sum of the
/// pseudo-header.
fn finish_checksum(vnet: &VnetHeader, packet: &mut [u8]) -> Result<(), OffloadError> {
    let start = usize::from(vnet.csum_start);
    let offset = usize::from(vnet.csum_offset);
    let covered = packet.get(start..).ok_or(OffloadError::Checksum)?;
    let sum = checksum(covered);
    // A UDP checksum of zero means that there is none (RFC 768).
    let udp = offset == UDP_CHECKSUM;
    let sum = if sum == 0 && udp { 0xffff } else { sum };
    put(packet, start + offset, &sum.to_be_bytes())
        .then_some(())
        .ok_or(OffloadError::Checksum)
}

fn patch_ip(packet: &mut [u8], version: Version, index: u32) -> Option<()> {
    let len = packet.len();
    match version {
        Version::V4 => {
            let index = u16::try_from(index & 0xffff).ok()?;
            let id = u16_at(packet, 4)?.wrapping_add(index);
            let header_len = usize::from(packet.first()? & 0xf) * 4;
            put(packet, 2, &u16::try_from(len).ok()?.to_be_bytes());
            put(packet, 4, &id.to_be_bytes());
            put(packet, 10, &[0, 0]);
            let sum = checksum(packet.get(..header_len)?);
            put(packet, 10, &sum.to_be_bytes());
        }
        Version::V6 => {
            let payload = u16::try_from(len.checked_sub(super::V6_LEN)?).ok()?;
            put(packet, 4, &payload.to_be_bytes());
        }
    }
    Some(())
}

fn patch_tcp(packet: &mut [u8], at: usize, size: usize, index: u32, last: bool) -> Option<()> {
    let before = u32::try_from(size).ok()?.wrapping_mul(index);
    let seq = u32_at(packet, at + 4)?.wrapping_add(before);
    put(packet, at + 4, &seq.to_be_bytes());
    let flags = packet.get_mut(at + 13)?;
    if !last {
        *flags &= !(flags::FIN | flags::PSH);
    }
    if index != 0 {
        *flags &= !flags::CWR; // it reports one reduction (RFC 3168 §6.1.2)
    }
    put(packet, at + TCP_CHECKSUM, &[0, 0]);
    let sum = transport_checksum(packet, at, protocol::TCP)?;
    put(packet, at + TCP_CHECKSUM, &sum.to_be_bytes());
    Some(())
}

fn patch_udp(packet: &mut [u8], at: usize) -> Option<()> {
    let len = u16::try_from(packet.len().checked_sub(at)?).ok()?;
    put(packet, at + 4, &len.to_be_bytes());
    put(packet, at + UDP_CHECKSUM, &[0, 0]);
    let sum = match transport_checksum(packet, at, protocol::UDP)? {
        0 => 0xffff,
        sum => sum,
    };
    put(packet, at + UDP_CHECKSUM, &sum.to_be_bytes());
    Some(())
}

/// The checksum over pseudo-header and segment, whose checksum field holds zero.
pub(crate) fn transport_checksum(packet: &[u8], at: usize, protocol: u8) -> Option<u16> {
    let segment = packet.get(at..)?;
    let len = u32::try_from(segment.len()).ok()?;
    let sum = Sum::default().pseudo_header(address_bytes(packet), protocol, len);
    Some(sum.bytes(segment).checksum())
}

/// The longest headers that are repeated: IPv6 with 28 bytes of extensions and the longest TCP
/// header, or IPv4 with all options and the same.
const MAX_HEAD: usize = 128;
const _: () = assert!(MAX_HEAD >= 60 + TCP_LEN + 40);

/// Where the checksum is in a TCP header.
pub(crate) const TCP_CHECKSUM: usize = 16;
/// Where the checksum is in a UDP header.
pub(crate) const UDP_CHECKSUM: usize = 6;
