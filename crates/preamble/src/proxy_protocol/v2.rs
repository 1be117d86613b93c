//! Version 2, binary (§2.2).
//!
//! ```text
//! signature (12) │ version, command │ family, transport │ length (2) │ addresses │ TLVs
//!                                                  TLV: type │ length (2) │ value
//! ```

use std::{
    iter,
    net::{IpAddr, SocketAddr},
};

use super::{
    Addresses, Pair, ProxyEncodeError, ProxyHeader,
    ProxyHeaderError::{self, Malformed},
    Transport, Version,
    crc32c::crc32c,
};
use crate::Progress;

pub(super) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_LEN: usize = 16;

/// Parses a header that starts with the signature.
pub(super) fn parse(
    view: &[u8],
    limit: usize,
) -> Result<Progress<ProxyHeader<'_>>, ProxyHeaderError> {
    if limit < FIXED_LEN {
        return Err(ProxyHeaderError::TooLong);
    }
    let fixed = view.get(SIGNATURE.len()..).unwrap_or_default();
    let command = fixed.first().map(|&byte| command(byte)).transpose()?;
    let family = match (command, fixed.get(1)) {
        (Some(Command::Proxy), Some(&byte)) => Family::new(byte)?,
        // §2.2: the family of a LOCAL header is ignored along with its block.
        _ => Family::Ignored,
    };
    let &[_, _, high, low, ..] = fixed else {
        return Ok(Progress::Need {
            at_least: FIXED_LEN,
        });
    };
    let declared = usize::from(u16::from_be_bytes([high, low]));
    if declared < family.address_len() {
        return Err(Malformed("declared length does not hold the addresses"));
    }
    let total = FIXED_LEN + declared;
    if total > limit {
        return Err(ProxyHeaderError::TooLong);
    }
    let Some(header) = view.get(..total) else {
        return Ok(Progress::Need { at_least: total });
    };
    let block = header.get(FIXED_LEN..).unwrap_or_default();
    let (addresses, tlvs) = family.read(block).ok_or(Malformed("addresses cut short"))?;
    check_tlvs(header, tlvs)?;
    let value = ProxyHeader {
        version: Version::V2,
        addresses,
        tlvs,
    };
    Ok(Progress::Done {
        value,
        consumed: total,
    })
}

enum Command {
    Local,
    Proxy,
}

fn command(byte: u8) -> Result<Command, ProxyHeaderError> {
    match (byte >> 4, byte & 0x0f) {
        (2, 0) => Ok(Command::Local),
        (2, 1) => Ok(Command::Proxy),
        (2, _) => Err(Malformed("unknown command")),
        (version, _) => Err(ProxyHeaderError::UnsupportedVersion(version)),
    }
}

#[derive(Clone, Copy)]
enum Family {
    Ignored,
    Inet(Transport),
    Inet6(Transport),
    Unix,
    Unspecified,
}

impl Family {
    /// §2.2: combinations not listed there "must be rejected as invalid by receivers".
    fn new(byte: u8) -> Result<Self, ProxyHeaderError> {
        match byte {
            0x00 => Ok(Self::Unspecified),
            0x11 => Ok(Self::Inet(Transport::Stream)),
            0x12 => Ok(Self::Inet(Transport::Datagram)),
            0x21 => Ok(Self::Inet6(Transport::Stream)),
            0x22 => Ok(Self::Inet6(Transport::Datagram)),
            0x31 | 0x32 => Ok(Self::Unix),
            _ => Err(Malformed("unknown address family or transport")),
        }
    }

    fn address_len(self) -> usize {
        match self {
            Self::Ignored | Self::Unspecified => 0,
            Self::Inet(_) => 12,
            Self::Inet6(_) => 36,
            Self::Unix => 216,
        }
    }

    /// Splits the block into addresses and TLVs.
    fn read(self, block: &[u8]) -> Option<(Addresses, &[u8])> {
        let (bytes, tlvs) = block.split_at_checked(self.address_len())?;
        let addresses = match self {
            Self::Ignored => return Some((Addresses::Local, &[])),
            Self::Unspecified => Addresses::Unknown,
            Self::Unix => Addresses::Unix,
            Self::Inet(transport) => endpoints::<4>(bytes, transport)?,
            Self::Inet6(transport) => endpoints::<16>(bytes, transport)?,
        };
        Some((addresses, tlvs))
    }
}

/// Source address, destination address, source port, destination port; `N` bytes an address.
fn endpoints<const N: usize>(bytes: &[u8], transport: Transport) -> Option<Addresses>
where
    IpAddr: From<[u8; N]>,
{
    let (source, bytes) = bytes.split_first_chunk::<N>()?;
    let (destination, bytes) = bytes.split_first_chunk::<N>()?;
    let (source_port, bytes) = bytes.split_first_chunk()?;
    let (destination_port, _) = bytes.split_first_chunk()?;
    Some(Addresses::Ip {
        source: SocketAddr::new((*source).into(), u16::from_be_bytes(*source_port)),
        destination: SocketAddr::new((*destination).into(), u16::from_be_bytes(*destination_port)),
        transport,
    })
}

/// Checks that the TLVs fill the header to its end and that its checksum, if any, is right.
fn check_tlvs(header: &[u8], tlvs: &[u8]) -> Result<(), ProxyHeaderError> {
    let mut checksum = None;
    let mut rest = tlvs;
    while !rest.is_empty() {
        let (kind, value, next) = split_tlv(rest).ok_or(Malformed("TLV cut short"))?;
        if kind == CRC32C {
            let sent = *value
                .first_chunk::<4>()
                .ok_or(Malformed("checksum cut short"))?;
            if value.len() != 4 || checksum.is_some() {
                return Err(Malformed("checksum of wrong length or given twice"));
            }
            checksum = Some((header.len() - next.len() - 4, sent));
        }
        rest = next;
    }
    match checksum {
        Some((at, sent)) if checksum_at(header, at) != u32::from_be_bytes(sent) => {
            Err(ProxyHeaderError::ChecksumMismatch)
        }
        _ => Ok(()),
    }
}

/// CRC32C of the header with the four bytes of the checksum itself, at `at`, taken as zero.
fn checksum_at(header: &[u8], at: usize) -> u32 {
    let (before, rest) = header.split_at_checked(at).unwrap_or((header, &[]));
    let after = rest.get(4..).unwrap_or_default();
    crc32c(
        before
            .iter()
            .copied()
            .chain(iter::repeat_n(0, 4))
            .chain(after.iter().copied()),
    )
}

fn split_tlv(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&kind, bytes) = bytes.split_first()?;
    let (len, bytes) = bytes.split_first_chunk()?;
    let (value, rest) = bytes.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
    Some((kind, value, rest))
}

/// Iterates over TLVs: type and value.
pub(super) fn tlvs(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    iter::from_fn(move || {
        let (kind, value, next) = split_tlv(rest)?;
        rest = next;
        Some((kind, value))
    })
}

/// Appends a version 2 header for a TCP connection from `source` to `destination`.
///
/// Family `INET` when both are IPv4, mapped into IPv6 or not. Otherwise `INET6`, in which an IPv4
/// end is its mapped address. `tlvs` follow in the order given; with `checksum` a CRC32C TLV
/// closes the header.
///
/// # Errors
///
/// [`ProxyEncodeError::ChecksumTlv`] when `tlvs` contains type 3, [`ProxyEncodeError::TooLong`]
/// when they do not fit. Nothing is appended then.
pub fn encode_v2(
    source: SocketAddr,
    destination: SocketAddr,
    tlvs: &[(u8, &[u8])],
    checksum: bool,
    out: &mut Vec<u8>,
) -> Result<(), ProxyEncodeError> {
    if tlvs.iter().any(|&(kind, _)| kind == CRC32C) {
        return Err(ProxyEncodeError::ChecksumTlv);
    }
    let mut block = Vec::with_capacity(64);
    let family = put_addresses(source, destination, &mut block);
    let empty_checksum: (u8, &[u8]) = (CRC32C, &[0; 4]);
    for &(kind, value) in tlvs.iter().chain(checksum.then_some(&empty_checksum)) {
        let len = u16::try_from(value.len()).map_err(|_| ProxyEncodeError::TooLong)?;
        block.push(kind);
        block.extend_from_slice(&len.to_be_bytes());
        block.extend_from_slice(value);
    }
    let start = out.len();
    put_fixed(0x21, family, block.len(), out)?;
    out.extend_from_slice(&block);
    if checksum {
        let at = out.len() - 4;
        let crc = checksum_at(out.get(start..).unwrap_or_default(), at - start);
        out.truncate(at);
        out.extend_from_slice(&crc.to_be_bytes());
    }
    Ok(())
}

fn put_fixed(
    command: u8,
    family: u8,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<(), ProxyEncodeError> {
    let len = u16::try_from(len).map_err(|_| ProxyEncodeError::TooLong)?;
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[command, family]);
    out.extend_from_slice(&len.to_be_bytes());
    Ok(())
}

/// Appends addresses and ports; returns the byte that names their family.
fn put_addresses(source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) -> u8 {
    let (family, ports) = match Pair::new(source, destination) {
        Pair::V4(ends) => {
            ends.iter()
                .for_each(|end| out.extend_from_slice(&end.ip().octets()));
            (0x11, ends.map(|end| end.port()))
        }
        Pair::V6(ends) => {
            ends.iter()
                .for_each(|(ip, _)| out.extend_from_slice(&ip.octets()));
            (0x21, ends.map(|(_, port)| port))
        }
    };
    ports
        .iter()
        .for_each(|port| out.extend_from_slice(&port.to_be_bytes()));
    family
}

/// PP2_TYPE_CRC32C.
const CRC32C: u8 = 0x03;
