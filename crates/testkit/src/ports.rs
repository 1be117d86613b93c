//! Ports for programs that cannot be told "port 0, and say which".

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};

/// Returns `count` different TCP ports of `127.0.0.1` that were free a moment ago.
///
/// The kernel hands them out anew only after walking the whole ephemeral range, so a program
/// started right away gets its port. Our own binaries take port 0 and need none of this.
///
/// # Errors
/// When no socket can be bound.
pub fn free(count: usize) -> Result<Vec<u16>> {
    free_at(IpAddr::V4(Ipv4Addr::LOCALHOST), count)
}

/// As [`free`], at another local address.
///
/// # Errors
/// When no socket can be bound there.
pub fn free_at(address: IpAddr, count: usize) -> Result<Vec<u16>> {
    let held = (0..count)
        .map(|_| TcpListener::bind(SocketAddr::new(address, 0)))
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(|| format!("asking for a free port at {address}"))?;
    held.iter()
        .map(|listener| {
            Ok(listener
                .local_addr()
                .context("reading a socket's address")?
                .port())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ_and_can_be_bound() {
        let ports = free(4).unwrap();
        let mut sorted = ports.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 4);
        TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0])).unwrap();
    }
}
