//! The header that a TUN device with offloads puts in front of every packet.
//!
//! `struct virtio_net_hdr` of the virtio specification 1.2 §5.1.6, ten bytes, in the machine's
//! byte order as Linux does for TUN by default. Defines the header for this
//! crate; segmenting and coalescing are [`super::segment`] and [`super::coalesce`].

use crate::wire::{array, put};

/// Bytes of the header.
pub const LEN: usize = 10;

/// What is left to do for a packet, or what it may be cut into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// Whether the checksum at `csum_start + csum_offset` covers the pseudo-header only.
    pub needs_csum: bool,
    /// What kind of super-packet it is.
    pub gso: Gso,
    /// Bytes of headers; informational, and wrong for forwarded packets.
    pub hdr_len: u16,
    /// Bytes of data in each segment.
    pub gso_size: u16,
    /// Where the checksum's bytes begin.
    pub csum_start: u16,
    /// Where the checksum is, from there.
    pub csum_offset: u16,
}

/// Kinds of super-packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gso {
    /// An ordinary packet.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of one size, over either.
    Udp,
}

impl VnetHeader {
    /// Reads the header at the front of what was read from the device.
    ///
    /// # Errors
    ///
    /// - [`OffloadError::Short`]: fewer than ten bytes;
    /// - [`OffloadError::Kind`]: a kind that was never asked for, such as UDP fragmentation.
    pub fn parse(bytes: &[u8]) -> Result<Self, OffloadError> {
        let b: [u8; LEN] = array(bytes, 0).ok_or(OffloadError::Short)?;
        let gso = match b[1] & !ECN {
            0 => Gso::None,
            1 => Gso::TcpV4,
            4 => Gso::TcpV6,
            5 => Gso::Udp,
            other => return Err(OffloadError::Kind(other)),
        };
        Ok(Self {
            needs_csum: b[0] & NEEDS_CSUM != 0,
            gso,
            hdr_len: u16::from_ne_bytes([b[2], b[3]]),
            gso_size: u16::from_ne_bytes([b[4], b[5]]),
            csum_start: u16::from_ne_bytes([b[6], b[7]]),
            csum_offset: u16::from_ne_bytes([b[8], b[9]]),
        })
    }

    /// Returns the bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        let gso = match self.gso {
            Gso::None => 0,
            Gso::TcpV4 => 1,
            Gso::TcpV6 => 4,
            Gso::Udp => 5,
        };
        let mut bytes = [0; LEN];
        put(
            &mut bytes,
            0,
            &[u8::from(self.needs_csum) * NEEDS_CSUM, gso],
        );
        put(&mut bytes, 2, &self.hdr_len.to_ne_bytes());
        put(&mut bytes, 4, &self.gso_size.to_ne_bytes());
        put(&mut bytes, 6, &self.csum_start.to_ne_bytes());
        put(&mut bytes, 8, &self.csum_offset.to_ne_bytes());
        bytes
    }
}

const NEEDS_CSUM: u8 = 1;
/// Set beside the kind when the TCP header carries CWR.
const ECN: u8 = 0x80;

/// Why a packet of a TUN device cannot be cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The checksum would be outside of the packet, or elsewhere than its protocol has it.
    #[error("checksum offload points outside of the transport header")]
    Checksum,
    /// The headers are longer than any that are sent.
    #[error("headers too long to repeat")]
    Headers,
    /// A kind of super-packet that is not supported.
    #[error("unsupported kind of super-packet {0}")]
    Kind(u8),
    /// The packet does not match the header in front of it.
    #[error("packet does not match its offload header")]
    Mismatch,
    /// There are fewer bytes than headers.
    #[error("shorter than its headers")]
    Short,
}
