//! Lowers the segment size that the ends of a TCP connection agree on.
//!
//! Both ends name the largest segment they take in their SYN (RFC 9293 §3.7.1); lowering it to
//! what the tunnel carries spares them the discovery of its MTU. Raises nothing and adds no
//! option: without one the ends send 536 or 1220 bytes, which fit.

use crate::wire::{put, u16_at};

use super::transport::{TCP_LEN, Tcp, flags};
use super::{Header, V4_LEN, V6_LEN, Version, checksum, protocol, segment::TCP_CHECKSUM};

/// Lowers the segment size in a SYN to what packets of `mtu` bytes carry, and returns the size
/// it had; `None` when nothing was changed.
///
/// The packet's checksum must be complete, and stays right as it is changed by the difference.
pub fn clamp(header: &Header, packet: &mut [u8], mtu: u16) -> Option<u16> {
    if header.protocol != protocol::TCP || !header.has_transport_header() {
        return None;
    }
    let tcp = Tcp::new(header.segment(packet))?;
    if tcp.flags() & flags::SYN == 0 {
        return None;
    }
    let ip_len = match header.version {
        Version::V4 => V4_LEN,
        Version::V6 => V6_LEN,
    };
    let overhead = u16::try_from(ip_len + TCP_LEN).ok()?;
    let most = mtu.saturating_sub(overhead).max(1);
    let offset = find(tcp.options)?;
    let (segment, at) = (header.transport, TCP_LEN + offset);
    let old = u16_at(packet, segment + at)?;
    if old <= most {
        return None;
    }
    let before = u16_at(packet, segment + TCP_CHECKSUM)?;
    // At an odd place the number straddles two words of the sum, so its bytes are swapped.
    let after = if at % 2 == 0 {
        checksum::update(before, old, most)
    } else {
        checksum::update(before, old.swap_bytes(), most.swap_bytes())
    };
    put(packet, segment + at, &most.to_be_bytes());
    put(packet, segment + TCP_CHECKSUM, &after.to_be_bytes());
    Some(old)
}

/// Where the value of the segment size option is among the options.
fn find(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match options.get(at..)? {
            [] | [0, ..] => return None,
            [1, ..] => at += 1,
            [2, 4, _, _, ..] => return Some(at + 2),
            [_, len, ..] if *len >= 2 => at += usize::from(*len),
            _ => return None,
        }
    }
}
