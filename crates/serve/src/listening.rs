//! Which sockets listen at an address over TCP, by their inode numbers.
//!
//! ```text
//!     sock_diag(7): listening sockets of one port ──▶ those at the address ─▶ inode numbers
//!     /proc/net/tcp, without sock_diag ─────────────────────▲
//! ```
//!
//! The file has the same content, but reading it walks the kernel's whole connection table:
//! milliseconds on a machine with much memory, even if idle. Keeps no socket open.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// Returns the inode numbers of the sockets that listen at exactly `address`, whatever its scope.
///
/// # Errors
/// The kernel's error for its table.
pub(crate) fn listening(address: SocketAddr) -> io::Result<BTreeSet<u64>> {
    query(address).or_else(|_| read_table(address))
}

/// Bytes of a message's header (`struct nlmsghdr`, include/uapi/linux/netlink.h).
const HEADER: usize = 16;

/// Bytes of a socket in an answer (`struct inet_diag_msg`, include/uapi/linux/inet_diag.h), whose
/// attributes follow.
const SOCKET: usize = 72;

/// Bytes of one read: no datagram of a dump is longer (`netlink_dump` in the kernel).
const DATAGRAM: usize = 32 * 1024;

/// Datagrams of an answer at most: more than all sockets of one port on one machine.
const MAX_DATAGRAMS: usize = 256;

/// Queries the sockets that listen at the address's port.
fn query(address: SocketAddr) -> io::Result<BTreeSet<u64>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let request = request(address);
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &request, SendFlags::empty(), &kernel)?;
    let mut found = BTreeSet::new();
    let mut datagram = vec![0; DATAGRAM];
    for _ in 0..MAX_DATAGRAMS {
        // The kernel answers within sendto(2): there is nothing to wait for.
        let (len, _) = recv(&socket, &mut datagram[..], RecvFlags::DONTWAIT)?;
        if answer(datagram.get(..len).unwrap_or_default(), address, &mut found)? {
            return Ok(found);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Adds a datagram's sockets at `address`, and returns whether it was the last datagram.
fn answer(mut rest: &[u8], address: SocketAddr, found: &mut BTreeSet<u64>) -> io::Result<bool> {
    while let Some((kind, message, behind)) = message(rest) {
        match kind {
            // The result of the dump: an error where the kernel has no table of TCP.
            NLMSG_DONE => {
                let code = message
                    .first_chunk()
                    .map_or(0, |code| i32::from_ne_bytes(*code));
                return match code {
                    0.. => Ok(true),
                    _ => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
            SOCK_DIAG_BY_FAMILY if is_at(message, address) => found.extend(inode(message)),
            SOCK_DIAG_BY_FAMILY => {}
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        rest = behind;
    }
    Ok(false)
}

const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Writes the request for sockets that listen at the port, of the address's family.
fn request(address: SocketAddr) -> Vec<u8> {
    const NLM_F_REQUEST: u16 = 1;
    const NLM_F_DUMP: u16 = 0x300;
    const IPPROTO_TCP: u8 = 6;
    const LISTEN: u32 = 1 << 10; // TCPF_LISTEN
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    // struct inet_diag_req_v2: what, which states, and a socket's name, of which only the port is given.
    let mut request = Vec::with_capacity(HEADER + 56);
    request.extend(72_u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 8]); // sequence, port
    request.extend([family.as_raw().to_le_bytes()[0], IPPROTO_TCP, 0, 0]);
    request.extend(LISTEN.to_ne_bytes());
    request.extend(address.port().to_be_bytes());
    request.resize(HEADER + 56, 0);
    request
}

/// Splits off the first message: its kind, its payload, and what follows.
fn message(rest: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    let message = rest.get(HEADER..len)?;
    let behind = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, message, behind))
}

/// Tells whether a socket's own address is this one.
fn is_at(socket: &[u8], address: SocketAddr) -> bool {
    let own = |from: usize, bytes: &[u8]| socket.get(from..from + bytes.len()) == Some(bytes);
    let ip = match address.ip() {
        IpAddr::V4(ip) => own(8, &ip.octets()),
        IpAddr::V6(ip) => own(8, &ip.octets()),
    };
    ip && own(4, &address.port().to_be_bytes())
}

fn inode(socket: &[u8]) -> Option<u64> {
    let inode = socket.get(..SOCKET)?.last_chunk()?;
    Some(u32::from_ne_bytes(*inode).into())
}

/// Reads the same from the text table.
fn read_table(address: SocketAddr) -> io::Result<BTreeSet<u64>> {
    const LISTEN: &str = "0A";
    let table = match address {
        SocketAddr::V4(_) => "/proc/thread-self/net/tcp",
        SocketAddr::V6(_) => "/proc/thread-self/net/tcp6",
    };
    let wanted = shown(address);
    let mut found = BTreeSet::new();
    // proc_pid_net(5): slot, local, remote, state, queues, timer, retransmissions, user, timeout, inode.
    for line in BufReader::new(File::open(table)?).lines().skip(1) {
        let line = line?;
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        if state != Some(LISTEN) {
            break; // listening sockets come first, and connections may be many
        }
        if local == Some(wanted.as_str())
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
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn listener(address: SocketAddr) -> TcpListener {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(8).unwrap();
        socket.into()
    }

    fn inode(socket: &impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn query_and_table_find_listening_sockets_only() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
            let first = listener(address.parse().unwrap());
            let address = first.local_addr().unwrap();
            let second = listener(address);
            // Of the same port: a connection's end, and one at another address.
            let ip = if address.is_ipv4() {
                "127.0.0.1"
            } else {
                "::1"
            };
            let to = SocketAddr::new(ip.parse().unwrap(), address.port());
            let _open = TcpStream::connect(to).unwrap();
            let _other = address
                .is_ipv4()
                .then(|| listener(SocketAddr::from(([127, 0, 0, 9], address.port()))));
            let wanted = BTreeSet::from([inode(&first), inode(&second)]);
            assert_eq!(query(address).unwrap(), wanted, "{address}");
            assert_eq!(read_table(address).unwrap(), wanted, "{address}");
            drop((first, second));
            assert_eq!(query(address).unwrap(), BTreeSet::new());
            assert_eq!(read_table(address).unwrap(), BTreeSet::new());
        }
    }

    #[test]
    fn query_reads_several_datagrams() {
        let first = listener("127.0.0.1:0".parse().unwrap());
        let address = first.local_addr().unwrap();
        let more: Vec<_> = (0..600).map(|_| listener(address)).collect();
        let found = query(address).unwrap();
        assert_eq!(found.len(), 601);
        assert!(more.iter().all(|one| found.contains(&inode(one))));
    }

    #[test]
    fn failed_dump_is_an_error() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let parse = |kind: u16, code: i32| {
            let kind = u32::from(kind).to_ne_bytes();
            let words = [
                20_u32.to_ne_bytes(),
                kind,
                [0; 4],
                [0; 4],
                code.to_ne_bytes(),
            ];
            answer(&words.concat(), address, &mut BTreeSet::new())
        };
        assert!(parse(NLMSG_DONE, 0).unwrap());
        assert_eq!(
            parse(NLMSG_DONE, -2).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert!(parse(2, -2).is_err(), "NLMSG_ERROR");
        assert!(!answer(&[], address, &mut BTreeSet::new()).unwrap());
    }

    #[test]
    fn truncated_message_is_none() {
        let whole = [20_u32.to_ne_bytes(), [20, 0, 0, 0], [0; 4], [0; 4], [7; 4]].concat();
        assert_eq!(message(&whole), Some((20, &[7; 4][..], &[][..])));
        assert!((0..whole.len()).all(|len| message(&whole[..len]).is_none()));
        assert!(message(&[0; 20]).is_none(), "shorter than its header");
        assert_eq!(super::inode(&[0; SOCKET - 1]), None);
    }
}
