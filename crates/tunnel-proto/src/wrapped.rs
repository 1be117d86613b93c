//! Datagrams between gateway and server, with the client's address in front.
//!
//! ```text
//!  0      4        5      6      8          24
//! ┌──────┬────────┬──────┬──────┬──────────┬────────────────────┐
//! │ RZW1 │ 4 or 6 │ zero │ port │ address  │ WireGuard datagram │
//! └──────┴────────┴──────┴──────┴──────────┴────────────────────┘
//! ```
//!
//! The same both ways: toward the server it is the datagram's source, toward the gateway
//! its destination. IPv4 addresses are written IPv4-mapped; the port is big-endian. The datagram
//! is never copied: the header is written in front of it or beside it.
//!
//! Which senders may send such datagrams is checked by the receiver, by the sender's address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::{array, u16_at};

/// Bytes of the header.
pub const HEADER_LEN: usize = 24;

/// A wrapped datagram, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrapped<'a> {
    /// The client at the far side of the gateway; never an IPv4-mapped address.
    pub client: SocketAddr,
    /// The WireGuard datagram, at least one byte; not looked into.
    pub datagram: &'a [u8],
}

/// Takes a wrapped datagram apart.
///
/// # Errors
///
/// - [`WrappedError::Short`]: no byte behind the header;
/// - [`WrappedError::Magic`]: not ours at all;
/// - [`WrappedError::Family`]: a family or zero byte this version does not know;
/// - [`WrappedError::Address`]: port 0, an address no client can have, or one written in the other
///   family's form.
pub fn parse(bytes: &[u8]) -> Result<Wrapped<'_>, WrappedError> {
    let header: [u8; HEADER_LEN] = array(bytes, 0).ok_or(WrappedError::Short)?;
    let datagram = bytes.get(HEADER_LEN..).unwrap_or_default();
    if array(&header, 0) != Some(MAGIC) {
        return Err(WrappedError::Magic);
    }
    if datagram.is_empty() {
        return Err(WrappedError::Short);
    }
    let port = u16_at(&header, 6).ok_or(WrappedError::Short)?;
    let address = Ipv6Addr::from(array::<16>(&header, 8).ok_or(WrappedError::Short)?);
    let ip = match (array(&header, 4), address.to_ipv4_mapped()) {
        (Some([4, 0]), Some(address)) => IpAddr::V4(address),
        (Some([6, 0]), None) => IpAddr::V6(address),
        (Some([4 | 6, 0]), _) => return Err(WrappedError::Address),
        _ => return Err(WrappedError::Family),
    };
    if port == 0 || !may_be_client(ip) {
        return Err(WrappedError::Address);
    }
    Ok(Wrapped {
        client: SocketAddr::new(ip, port),
        datagram,
    })
}

/// Returns the header for a client's address, to be sent in front of the datagram.
///
/// An IPv4-mapped address is written as the IPv4 address it stands for; zones and flow labels are
/// not carried.
#[must_use]
pub fn header(client: SocketAddr) -> [u8; HEADER_LEN] {
    let (family, address) = match client.ip().to_canonical() {
        IpAddr::V4(address) => (4, address.to_ipv6_mapped()),
        IpAddr::V6(address) => (6, address),
    };
    let [m0, m1, m2, m3] = MAGIC;
    let [p0, p1] = client.port().to_be_bytes();
    let mut header = [0; HEADER_LEN];
    let (fixed, tail) = header.split_at_mut(8);
    fixed.copy_from_slice(&[m0, m1, m2, m3, family, 0, p0, p1]);
    tail.copy_from_slice(&address.octets());
    header
}

fn may_be_client(ip: IpAddr) -> bool {
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

const MAGIC: [u8; 4] = *b"RZW1";

/// Why bytes are no wrapped datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrappedError {
    /// The address or port is none that a client can have, or is written in the wrong form.
    #[error("the wrapped address is not a client's")]
    Address,
    /// The family is neither 4 nor 6, or the byte behind it is not zero.
    #[error("unknown address family in the wrapping")]
    Family,
    /// The first four bytes are not `RZW1`.
    #[error("not a wrapped datagram")]
    Magic,
    /// There is nothing behind the header, or not even all of it.
    #[error("shorter than a wrapped datagram")]
    Short,
}
