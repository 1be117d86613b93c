//! Which sockets listen at an address over TCP, or receive there over UDP, by their inode numbers.
//!
//! Reads the kernel's text tables, `/proc/net/tcp` and `udp`: up to some milliseconds, which a start and a drain
//! have. Keeps no socket open.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

/// Returns the inode numbers of the sockets that listen at exactly `address`, whatever its scope.
pub(crate) fn listening(address: SocketAddr) -> io::Result<BTreeSet<u64>> {
    const LISTEN: &str = "0A";
    // Listening sockets come first, and connections may be many.
    let is_listening = |state: &str| state == LISTEN;
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    found(tables, address, is_listening)
}

/// Returns the inode numbers of the UDP sockets that are bound to exactly `address`, whatever its scope.
pub(crate) fn receiving(address: SocketAddr) -> io::Result<BTreeSet<u64>> {
    let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
    found(tables, address, |_| true)
}

/// Reads one of the `tables`, of IPv4 and IPv6, while states are `wanted`.
fn found(
    [v4, v6]: [&str; 2],
    address: SocketAddr,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<BTreeSet<u64>> {
    let table = if address.is_ipv4() { v4 } else { v6 };
    let at = shown(address);
    let mut found = BTreeSet::new();
    // proc_pid_net(5): slot, local, remote, state, queues, timer, retransmissions, user, timeout, inode.
    for line in BufReader::new(File::open(table)?).lines().skip(1) {
        let line = line?;
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        if !state.is_some_and(&wanted) {
            break;
        }
        if local == Some(at.as_str())
            && let Some(inode) = words.nth(5).and_then(|inode| inode.parse().ok())
        {
            found.insert(inode);
        }
    }
    Ok(found)
}

/// Formats an address as the table has it: words of 32 bits in the machine's order, and the port.
fn shown(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.as_chunks::<4>().0.iter();
    let words: String = words
        .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
        .collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::fd::AsFd;

    use super::*;
    use crate::shared_address::tests::listener;

    fn inode(socket: &impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn table_has_only_listeners_of_address() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
            let first = listener(address.parse().unwrap());
            let address = first.local_addr().unwrap();
            let second = listener(address);
            // Of the same port: a connection's end, and one at another address.
            let (v4, port) = (address.is_ipv4(), address.port());
            let ip = if v4 { "127.0.0.1" } else { "::1" };
            let _open = TcpStream::connect((ip, port)).unwrap();
            let _other = v4.then(|| listener(([127, 0, 0, 9], port).into()));
            let wanted = BTreeSet::from([inode(&first), inode(&second)]);
            assert_eq!(listening(address).unwrap(), wanted, "{address}");
            drop((first, second));
            assert_eq!(listening(address).unwrap(), BTreeSet::new());
        }
    }

    #[test]
    fn many_sockets_are_all_found() {
        let first = listener("127.0.0.1:0".parse().unwrap());
        let address = first.local_addr().unwrap();
        let more: Vec<_> = (0..600).map(|_| listener(address)).collect();
        let found = listening(address).unwrap();
        assert_eq!(found.len(), 601);
        assert!(more.iter().all(|one| found.contains(&inode(one))));
    }
}
