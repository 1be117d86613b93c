//! ICMP messages that a tunnel makes itself: packet too big, and echoes to probe with.
//!
//! An error is never an answer to an error, to a later fragment, or to a packet that has no single
//! sender (RFC 1122 §3.2.2, RFC 4443 §2.4(e)). How many errors are sent is for the caller to limit.

use std::net::IpAddr;

use crate::wire::put;

use super::transport::Icmp;
use super::{Header, V4_LEN, V6_LEN, Version, checksum, protocol, segment::transport_checksum};

/// Writes the ICMP error "packet too big" for `packet` and returns its length. `None` when there must
/// be no error for this packet, such as an IPv4 packet that may be fragmented on the way, when `from`
/// is of the other family, and when `out` is too small.
///
/// `from` is the address of the tunnel's end, of the packet's family; `mtu` is what the tunnel
/// carries, in bytes of an inner packet. `out` of [`MAX_ERROR_LEN`] bytes is always enough.
pub fn packet_too_big(
    header: &Header,
    packet: &[u8],
    mtu: u16,
    from: IpAddr,
    out: &mut [u8],
) -> Option<usize> {
    if !may_answer(header, packet) {
        return None;
    }
    let (ip_len, most) = match header.version {
        Version::V4 => (V4_LEN, MAX_V4_ERROR),
        Version::V6 => (V6_LEN, MAX_ERROR_LEN),
    };
    let quoted = header.total_len.min(packet.len()).min(most - ip_len - 8);
    let quoted = packet.get(..quoted).unwrap_or_default();
    let total = ip_len + 8 + quoted.len();
    let out = out.get_mut(..total)?;
    let [m0, m1] = mtu.to_be_bytes();
    // RFC 1191 §4: unreachable, fragmentation needed. RFC 4443 §3.2: packet too big.
    let message = match header.version {
        Version::V4 => [3, 4, 0, 0, 0, 0, m0, m1],
        Version::V6 => [2, 0, 0, 0, 0, 0, m0, m1],
    };
    put(out, ip_len, &message);
    put(out, ip_len + 8, quoted);
    finish(out, from, header.src)
}

/// Writes an echo request and returns its length: the headers and `data_len` bytes of zeros. `None`
/// when the addresses are not of one family, `out` is too small, or the packet would be larger than
/// 65,535 bytes.
pub fn echo_request(
    from: IpAddr,
    to: IpAddr,
    id: u16,
    seq: u16,
    data_len: usize,
    out: &mut [u8],
) -> Option<usize> {
    let (ip_len, kind) = match to {
        IpAddr::V4(_) => (V4_LEN, 8),
        IpAddr::V6(_) => (V6_LEN, 128),
    };
    let total = (ip_len + 8).checked_add(data_len)?;
    let out = out.get_mut(..total)?;
    out.fill(0);
    put(out, ip_len, &[kind, 0, 0, 0]);
    put(out, ip_len + 4, &id.to_be_bytes());
    put(out, ip_len + 6, &seq.to_be_bytes());
    finish(out, from, to)
}

/// Turns an echo request into its reply, in place, and returns whether it was one.
///
/// Source and destination change places and the time to live is renewed; data stay. Fragments,
/// source-routed packets and requests to a group are left alone.
pub fn make_echo_reply(header: &Header, packet: &mut [u8]) -> bool {
    let Some(packet) = packet.get_mut(..header.total_len) else {
        return false;
    };
    let Some(icmp) = Icmp::new(header.segment(packet)) else {
        return false;
    };
    let reply = match (header.version, header.protocol, icmp.kind) {
        (Version::V4, protocol::ICMP, 8) if header.transport == V4_LEN => 0,
        (Version::V6, protocol::ICMPV6, 128) if header.transport == V6_LEN => 129,
        _ => return false,
    };
    if header.fragment.is_some() || !is_single(header.dst) || !is_single(header.src) {
        return false;
    }
    put(packet, header.transport, &[reply, 0, 0, 0]);
    finish(packet, header.dst, header.src).is_some()
}

/// Writes the IP header in front of a message and fills in the message's checksum, which holds
/// zero. `None` for addresses of two families and above 65,535 bytes.
fn finish(packet: &mut [u8], from: IpAddr, to: IpAddr) -> Option<usize> {
    let total = packet.len();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = u16::try_from(total).ok()?;
            let [l0, l1] = len.to_be_bytes();
            // Never fragmented, hence no identification (RFC 6864 §4.1).
            put(
                packet,
                0,
                &[0x45, 0, l0, l1, 0, 0, 0x40, 0, HOPS, protocol::ICMP, 0, 0],
            );
            put(packet, 12, &from.octets());
            put(packet, 16, &to.octets());
            let sum = checksum::checksum(packet.get(..V4_LEN).unwrap_or_default());
            put(packet, 10, &sum.to_be_bytes());
            let sum = checksum::checksum(packet.get(V4_LEN..).unwrap_or_default());
            put(packet, V4_LEN + 2, &sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = u16::try_from(total - V6_LEN).ok()?;
            let [l0, l1] = len.to_be_bytes();
            put(packet, 0, &[0x60, 0, 0, 0, l0, l1, protocol::ICMPV6, HOPS]);
            put(packet, 8, &from.octets());
            put(packet, 24, &to.octets());
            let sum = transport_checksum(packet, V6_LEN, protocol::ICMPV6);
            put(packet, V6_LEN + 2, &sum.unwrap_or_default().to_be_bytes());
        }
        _ => return None,
    }
    Some(total)
}

fn may_answer(header: &Header, packet: &[u8]) -> bool {
    let segment = header.segment(packet);
    let kind = segment.first().copied();
    let is_error = match (header.version, header.protocol) {
        // What is neither an echo nor a timestamp counts as an error, unknown types too.
        (Version::V4, protocol::ICMP) => !matches!(kind, Some(0 | 8 | 13 | 14)),
        (Version::V6, protocol::ICMPV6) => !matches!(kind, Some(128..)),
        _ => false,
    };
    let may_be_cut = header.version == Version::V4
        && packet.get(6).is_none_or(|flags| flags & DONT_FRAGMENT == 0);
    let singles = is_single(header.src) && is_single(header.dst);
    singles && header.has_transport_header() && !is_error && !may_be_cut
}

/// Returns whether the address stands for one host.
fn is_single(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_multicast() || address.is_broadcast() || address.is_unspecified())
        }
        IpAddr::V6(address) => !(address.is_multicast() || address.is_unspecified()),
    }
}

/// Maximum bytes of an error: the minimum MTU of IPv6 (RFC 4443 §3.2).
pub const MAX_ERROR_LEN: usize = 1280;
/// RFC 1812 §4.3.2.3.
const MAX_V4_ERROR: usize = 576;
const HOPS: u8 = 64;
/// In byte 6 of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;
