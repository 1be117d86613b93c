//! Version 1, one line of text (§2.1): `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n`.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
};

use super::{Addresses, Pair, ProxyHeader, ProxyHeaderError, Transport, Version};
use crate::Progress;

pub(super) const SIGNATURE: &[u8] = b"PROXY ";
/// `PROXY UNKNOWN\r\n`.
pub(super) const MIN_LEN: usize = 15;
/// §2.1: the longest line a sender may write, CRLF included.
const MAX_LEN: usize = 107;

/// Parses a header that starts with the signature.
pub(super) fn parse(
    view: &[u8],
    limit: usize,
) -> Result<Progress<ProxyHeader<'_>>, ProxyHeaderError> {
    let max = limit.min(MAX_LEN);
    let view = view.get(..max).unwrap_or(view);
    let rest = view.strip_prefix(SIGNATURE).unwrap_or_default();
    if !PROTOCOLS
        .iter()
        .any(|name| rest.starts_with(name) || name.starts_with(rest))
    {
        return Err(ProxyHeaderError::Malformed("unknown protocol"));
    }
    let Some(end) = view.windows(2).position(|pair| pair == b"\r\n") else {
        if view.len() >= max {
            return Err(ProxyHeaderError::TooLong);
        }
        let at_least = (view.len() + 1).max(MIN_LEN.min(limit));
        return Ok(Progress::Need { at_least });
    };
    let line = view.get(SIGNATURE.len()..end).unwrap_or_default();
    let addresses = read_line(line).ok_or(ProxyHeaderError::Malformed("addresses or ports"))?;
    let value = ProxyHeader {
        version: Version::V1,
        addresses,
        tlvs: &[],
    };
    Ok(Progress::Done {
        value,
        consumed: end + 2,
    })
}

/// Reads the line between signature and CRLF.
fn read_line(line: &[u8]) -> Option<Addresses> {
    // §2.1: whatever follows UNKNOWN is ignored, so it need not be text.
    if line == b"UNKNOWN" || line.starts_with(b"UNKNOWN ") {
        return Some(Addresses::Unknown);
    }
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let read_ip: fn(&str) -> Option<IpAddr> = match words.next()? {
        "TCP4" => |word| word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => |word| word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => return None,
    };
    let (source, destination) = (read_ip(words.next()?)?, read_ip(words.next()?)?);
    let (source_port, destination_port) = (read_port(words.next()?)?, read_port(words.next()?)?);
    if words.next().is_some() {
        return None;
    }
    Some(Addresses::Ip {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
        transport: Transport::Stream,
    })
}

/// Decimal digits without sign or leading zero.
fn read_port(word: &str) -> Option<u16> {
    let padded = word.len() > 1 && word.starts_with('0');
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|_| digits && !padded)
}

/// Appends a version 1 header for a TCP connection from `source` to `destination`.
///
/// `TCP4` when both are IPv4, mapped into IPv6 or not. Otherwise `TCP6`, in which an IPv4 end is
/// written as its mapped address, in hexadecimal (`::ffff:c000:201`) as §2.1 wants it.
pub fn encode_v1(source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) {
    let written = match Pair::new(source, destination) {
        Pair::V4([from, to]) => {
            let (from_port, to_port) = (from.port(), to.port());
            write!(
                out,
                "PROXY TCP4 {} {} {from_port} {to_port}\r\n",
                from.ip(),
                to.ip()
            )
        }
        Pair::V6([(from, from_port), (to, to_port)]) => {
            let (from, to) = (hexadecimal(from), hexadecimal(to));
            write!(out, "PROXY TCP6 {from} {to} {from_port} {to_port}\r\n")
        }
    };
    debug_assert!(written.is_ok(), "writing to a vector does not fail");
}

/// `Ipv6Addr` prints mapped addresses with a dotted tail, which the specification does not know.
fn hexadecimal(ip: Ipv6Addr) -> String {
    match (ip.to_ipv4_mapped(), ip.segments()) {
        (Some(_), [.., high, low]) => format!("::ffff:{high:x}:{low:x}"),
        _ => ip.to_string(),
    }
}

const PROTOCOLS: [&[u8]; 4] = [b"TCP4 ", b"TCP6 ", b"UNKNOWN ", b"UNKNOWN\r\n"];
