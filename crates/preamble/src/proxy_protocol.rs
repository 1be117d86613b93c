//! HAProxy's PROXY protocol, versions 1 and 2, both ways.
//!
//! ```text
//! input ──detect──▶ "PROXY " ──▶ v1 (one line of text, 107 bytes at most) ──┐
//!               └─▶ \r\n\r\n\0\r\nQUIT\n ──▶ v2 (binary, with TLVs, CRC32C) ─┴─▶ ProxyHeader
//! source, destination ──encode_v1, encode_v2──▶ header, for a TCP connection
//! ```
//!
//! The specification is HAProxy's `doc/proxy-protocol.txt`; sections named here are its. Whether a
//! peer may send a header at all, and what an address in it is good for, is the caller's decision.

mod crc32c;
mod v1;
mod v2;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4};

use thiserror::Error;

use crate::Progress;

pub use v1::encode_v1;
pub use v2::encode_v2;

/// What the first bytes of a stream say about a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Not a PROXY header.
    Other,
    /// Too short to tell, including empty.
    Undecided,
    /// Version 1: `PROXY` and a space.
    V1,
    /// Version 2: the twelve-byte signature.
    V2,
}

/// Returns which PROXY header, if any, `input` starts with.
#[must_use]
pub fn detect(input: &[u8]) -> Signature {
    if input.starts_with(v1::SIGNATURE) {
        Signature::V1
    } else if input.starts_with(v2::SIGNATURE) {
        Signature::V2
    } else if v1::SIGNATURE.starts_with(input) || v2::SIGNATURE.starts_with(input) {
        Signature::Undecided
    } else {
        Signature::Other
    }
}

/// A complete PROXY header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader<'a> {
    /// Version it was written in.
    pub version: Version,
    /// Addresses it carries.
    pub addresses: Addresses,
    tlvs: &'a [u8],
}

impl<'a> ProxyHeader<'a> {
    /// Parses the PROXY header at the start of `input`, given at most `limit` bytes for it.
    ///
    /// Version 1 is read strictly: single spaces, addresses and ports without leading zeros, CRLF,
    /// 107 bytes at most. One thing beyond the specification is accepted, because HAProxy itself
    /// writes it: an IPv4-mapped IPv6 address with a dotted tail.
    ///
    /// Version 2 is complete with its declared length. The block of a `LOCAL` header is discarded
    /// unread (§2.2). With family `UNSPEC` TLVs start right behind the fixed header. Elsewhere
    /// they follow the addresses; a CRC32C TLV, when there is one, must be right.
    ///
    /// # Errors
    ///
    /// - [`ProxyHeaderError::NotProxy`] as soon as the bytes cannot be a signature.
    /// - [`ProxyHeaderError::UnsupportedVersion`] for a binary header of another version.
    /// - [`ProxyHeaderError::Malformed`] for a header that breaks its own rules.
    /// - [`ProxyHeaderError::TooLong`] as soon as `limit`, or 107 bytes of text, are exceeded;
    ///   version 2's declared length counts.
    /// - [`ProxyHeaderError::ChecksumMismatch`] for a wrong CRC32C TLV.
    pub fn parse(input: &'a [u8], limit: usize) -> Result<Progress<Self>, ProxyHeaderError> {
        let view = input.get(..limit).unwrap_or(input);
        match detect(view) {
            Signature::Other => Err(ProxyHeaderError::NotProxy),
            Signature::Undecided if view.len() >= limit => Err(ProxyHeaderError::TooLong),
            Signature::Undecided => Ok(Progress::Need {
                at_least: v1::MIN_LEN.min(limit),
            }),
            Signature::V1 => v1::parse(view, limit),
            Signature::V2 => v2::parse(view, limit),
        }
    }

    /// Returns the TLVs of a version 2 header, type and value, in the order sent. The types are
    /// those of §2.2; the checksum and padding are among them.
    pub fn tlvs(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        v2::tlvs(self.tlvs)
    }
}

/// The PROXY protocol's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// What a PROXY header says about the connection it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// The sender relays between two IP endpoints.
    Ip {
        /// The peer that connected to the sender.
        source: SocketAddr,
        /// Where it connected to.
        destination: SocketAddr,
        /// What the connection carries.
        transport: Transport,
    },
    /// The sender connected on its own account, a health check for example (version 2 `LOCAL`).
    Local,
    /// The sender relays a UNIX socket; its path is of no use here.
    Unix,
    /// The sender does not say (version 1 `UNKNOWN`, version 2 `UNSPEC`).
    Unknown,
}

/// Kind of connection a PROXY header stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP and the like.
    Datagram,
    /// TCP.
    Stream,
}

/// Why the start of a stream is not a usable PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProxyHeaderError {
    /// The CRC32C in the header is not that of its bytes.
    #[error("PROXY header has a wrong checksum")]
    ChecksumMismatch,
    /// A PROXY header, but not a well-formed one; the text says what is wrong with it.
    #[error("PROXY header is malformed: {0}")]
    Malformed(&'static str),
    /// The first bytes are not those of a PROXY header.
    #[error("downstream sends no PROXY header")]
    NotProxy,
    /// The header is, or declares to be, longer than allowed.
    #[error("PROXY header exceeds the preamble limit")]
    TooLong,
    /// A binary header of a version other than 2; the number is the one sent, 0 to 15.
    #[error("PROXY header of unsupported version {0}")]
    UnsupportedVersion(u8),
}

/// Why a PROXY header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProxyEncodeError {
    /// The checksum TLV (type 3) is written by the encoder when asked for, not passed in.
    #[error("the checksum TLV of a PROXY header cannot be given by hand")]
    ChecksumTlv,
    /// The TLVs do not fit the 65,535 bytes a header can declare.
    #[error("the TLVs do not fit a PROXY header")]
    TooLong,
}

/// A pair of addresses brought to one family, as both versions want it.
enum Pair {
    V4([SocketAddrV4; 2]),
    V6([(Ipv6Addr, u16); 2]),
}

impl Pair {
    /// Both IPv4, be it mapped into IPv6: IPv4. Anything else: IPv6, with IPv4 mapped into it.
    /// Scope and flow label have no place in a header and are dropped.
    fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        let ends = [source, destination];
        match ends.map(|end| (end.ip().to_canonical(), end.port())) {
            [(IpAddr::V4(from), from_port), (IpAddr::V4(to), to_port)] => Self::V4([
                SocketAddrV4::new(from, from_port),
                SocketAddrV4::new(to, to_port),
            ]),
            ends => Self::V6(ends.map(|(ip, port)| match ip {
                IpAddr::V4(ip) => (ip.to_ipv6_mapped(), port),
                IpAddr::V6(ip) => (ip, port),
            })),
        }
    }
}
