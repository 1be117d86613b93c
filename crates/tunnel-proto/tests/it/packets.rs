//! Makes packets to test with, by its own means: the checksum here is the slow one.

use std::net::IpAddr;

/// The checksum as RFC 1071 §1 words it, byte pair by byte pair.
pub(crate) fn naive_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Addresses, protocol and length, as a transport checksum covers them.
pub(crate) fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    let bytes = |address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut bytes = [bytes(src), bytes(dst)].concat();
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes
}

/// An IP packet around `segment`, DF set, identification 7.
pub(crate) fn ip(src: &str, dst: &str, protocol: u8, segment: &[u8]) -> Vec<u8> {
    let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut packet;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = (20 + segment.len()) as u16;
            packet = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, protocol, 0, 0];
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            packet.extend(src.octets());
            packet.extend(dst.octets());
            let sum = naive_checksum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            packet[4..6].copy_from_slice(&(segment.len() as u16).to_be_bytes());
            packet.extend(src.octets());
            packet.extend(dst.octets());
        }
        _ => panic!("addresses of two families"),
    }
    packet.extend(segment);
    packet
}

/// The segment with its checksum at `at` filled in.
fn summed(src: &str, dst: &str, protocol: u8, at: usize, mut segment: Vec<u8>) -> Vec<u8> {
    let (from, to) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut covered = match protocol {
        1 => Vec::new(),
        _ => pseudo_header(from, to, protocol, segment.len()),
    };
    covered.extend(&segment);
    let sum = match (naive_checksum(&covered), protocol) {
        (0, 17) => 0xffff,
        (sum, _) => sum,
    };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    ip(src, dst, protocol, &segment)
}

/// What is special about a TCP segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment<'a> {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
}

pub(crate) fn tcp(src: &str, dst: &str, ports: (u16, u16), s: Segment<'_>) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(ports.0.to_be_bytes());
    segment.extend(ports.1.to_be_bytes());
    segment.extend(s.seq.to_be_bytes());
    segment.extend(s.ack.to_be_bytes());
    segment.push((5 + s.options.len() as u8 / 4) << 4);
    segment.push(s.flags);
    segment.extend([0x20, 0, 0, 0, 0, 0]);
    segment.extend(s.options);
    segment.extend(s.payload);
    summed(src, dst, 6, 16, segment)
}

pub(crate) fn udp(src: &str, dst: &str, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(ports.0.to_be_bytes());
    segment.extend(ports.1.to_be_bytes());
    segment.extend((8 + payload.len() as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    summed(src, dst, 17, 6, segment)
}

/// An ICMP message of the addresses' family.
pub(crate) fn icmp(
    src: &str,
    dst: &str,
    kind: u8,
    code: u8,
    rest: [u8; 4],
    body: &[u8],
) -> Vec<u8> {
    let protocol = if src.contains(':') { 58 } else { 1 };
    let mut segment = vec![kind, code, 0, 0];
    segment.extend(rest);
    segment.extend(body);
    summed(src, dst, protocol, 2, segment)
}

/// Cuts a packet without options or extensions into fragments; `data` bytes in all but the last.
pub(crate) fn fragments(packet: &[u8], data: usize) -> Vec<Vec<u8>> {
    let v4 = packet[0] >> 4 == 4;
    let header = if v4 { 20 } else { 40 };
    let body = &packet[header..];
    let count = body.len().div_ceil(data);
    let cut = |(index, part): (usize, &[u8])| {
        let more = u16::from(index + 1 < count);
        let offset = (index * data) as u16;
        let mut fragment = packet[..header].to_vec();
        if v4 {
            let len = (header + part.len()) as u16;
            fragment[2..4].copy_from_slice(&len.to_be_bytes());
            fragment[6..8].copy_from_slice(&(more << 13 | offset >> 3).to_be_bytes());
            fragment[10..12].copy_from_slice(&[0, 0]);
            let sum = naive_checksum(&fragment);
            fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let len = (8 + part.len()) as u16;
            fragment[4..6].copy_from_slice(&len.to_be_bytes());
            fragment.extend([fragment[6], 0]);
            fragment[6] = 44;
            fragment.extend((offset | more).to_be_bytes());
            fragment.extend([0, 0, 0, 9]);
        }
        fragment.extend(part);
        fragment
    };
    body.chunks(data).enumerate().map(cut).collect()
}

/// Puts IPv6 extension headers, already encoded, in front of what a packet carries.
pub(crate) fn extended(packet: &[u8], first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut out = packet[..40].to_vec();
    let len = packet.len() - 40 + extensions.len();
    out[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    out[6] = first;
    out.extend(extensions);
    out.extend(&packet[40..]);
    out
}
