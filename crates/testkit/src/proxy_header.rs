//! Writes PROXY protocol headers, from the specification and apart from the parser under test.
//!
//! Section numbers are those of HAProxy's `proxy-protocol.txt`.

use std::net::{IpAddr, SocketAddr};

/// Returns a version 1 header (section 2.1): one line of text, `CRLF` at its end.
///
/// Addresses of two families are written as IPv6, the IPv4 one mapped.
pub fn v1(src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    let (src, dst) = same_family(src, dst);
    let family = if src.is_ipv4() { "TCP4" } else { "TCP6" };
    format!(
        "PROXY {family} {} {} {} {}\r\n",
        src.ip(),
        dst.ip(),
        src.port(),
        dst.port()
    )
    .into_bytes()
}

/// Returns a version 2 header (section 2.2) with command `PROXY`, transport `STREAM` and the given
/// type-length-values.
pub fn v2(src: SocketAddr, dst: SocketAddr, tlvs: &[(u8, &[u8])]) -> Vec<u8> {
    let (src, dst) = same_family(src, dst);
    let mut body = Vec::new();
    for address in [src, dst] {
        match address.ip() {
            IpAddr::V4(ip) => body.extend(ip.octets()),
            IpAddr::V6(ip) => body.extend(ip.octets()),
        }
    }
    body.extend(src.port().to_be_bytes());
    body.extend(dst.port().to_be_bytes());
    for (kind, value) in tlvs {
        body.push(*kind);
        body.extend(length(value.len()));
        body.extend(*value);
    }
    v2_raw(0x21, if src.is_ipv4() { 0x11 } else { 0x21 }, &body)
}

/// Returns a version 2 header with command `LOCAL` and no addresses: a health check.
pub fn v2_local() -> Vec<u8> {
    v2_raw(0x20, 0x00, &[])
}

/// Returns a version 2 header of any version and command byte, family byte and body.
pub fn v2_raw(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([version_command, family]);
    header.extend(length(body.len()));
    header.extend(body);
    header
}

fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn same_family(src: SocketAddr, dst: SocketAddr) -> (SocketAddr, SocketAddr) {
    if src.is_ipv4() == dst.is_ipv4() {
        return (src, dst);
    }
    let widen = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    (widen(src), widen(dst))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn version_1_is_the_line_of_section_2_1() {
        let header = v1(at("192.168.0.1:56324"), at("192.168.0.11:443"));
        assert_eq!(header, b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n");
    }

    #[test]
    fn version_2_has_the_lengths_of_section_2_2() {
        let v4 = v2(at("10.0.0.1:1"), at("10.0.0.2:443"), &[(0x04, b"xy")]);
        assert_eq!(&v4[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x11");
        let body = b"\x0a\0\0\x01\x0a\0\0\x02\0\x01\x01\xbb\x04\0\x02xy";
        assert_eq!(&v4[16..], body);
        let v6 = v2(at("[fd00::1]:1"), at("10.0.0.2:443"), &[]);
        assert_eq!((v6[13], v6[15], v6.len()), (0x21, 36, 52));
    }
}
