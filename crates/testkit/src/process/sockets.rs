//! Which TCP addresses are listened on, read from `/proc` instead of by a connection that the
//! other side would see.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns whether a socket listens on `addr` (or on its port at any address) in the network
/// namespace of process `pid`.
pub fn listens(pid: u32, addr: SocketAddr) -> bool {
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
        .any(|table| {
            table
                .lines()
                .filter_map(listener)
                .any(|found| covers(found, addr))
        })
}

fn covers(found: SocketAddr, addr: SocketAddr) -> bool {
    found.port() == addr.port() && (found.ip().is_unspecified() || found.ip() == addr.ip())
}

/// Reads a table's line: `sl local_address rem_address st …`, state 0A is LISTEN (`proc(5)`).
fn listener(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (local, state) = (words.next()?, words.nth(1)?);
    if state != "0A" {
        return None;
    }
    let (ip, port) = local.split_once(':')?;
    Some(SocketAddr::new(
        address(ip)?,
        u16::from_str_radix(port, 16).ok()?,
    ))
}

/// Reads 32-bit words in the machine's byte order.
fn address(hex: &str) -> Option<IpAddr> {
    let words = hex.as_bytes().chunks(8).map(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    match bytes.len() {
        4 => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
        16 => Some(IpAddr::V6(Ipv6Addr::from(
            <[u8; 16]>::try_from(bytes).ok()?,
        ))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn own_sockets_are_found() {
        let us = std::process::id();
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
            let addr = listener.local_addr().unwrap();
            assert!(listens(us, addr), "{addr}");
            assert!(!listens(
                us,
                SocketAddr::new("192.0.2.1".parse().unwrap(), addr.port())
            ));
            drop(listener);
            assert!(!listens(us, addr), "{addr}");
        }
    }
}
