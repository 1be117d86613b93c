//! Two processes at one address, of which the second takes over from the first.
//!
//! ```text
//!     sockets of one address (SO_REUSEPORT), as they joined:  [ first, first, | second, second ]
//!     new connections go, by hash, to any of them;   after pass_over(2, 2), to the last two
//!     the kernel's list ─▶ which of them are a process's own, and which are others'
//! ```
//!
//! Knows no phases and keeps no socket open: when to pass over, and to which process, is the caller's.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use nix::libc::{sock_filter, sock_fprog};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::AttachReusePortCbpf;
use telemetry::lock;

use crate::listening::{listening, receiving};

/// Has the kernel spread new connections and datagrams by chance over `among` sockets of this address,
/// from number `first` on, counted from 0 as they joined; open connections, and those under way, stay
/// where they are.
///
/// A number that does not exist means the kernel's choice by hash, as without this, so that it need not
/// be undone when either side ends. When a socket leaves, the last one gets its number. The setting is
/// shared by all sockets of the address, each of which may change it, and needs no privilege (Linux 4.6).
///
/// # Errors
/// The kernel's; `InvalidInput` for a socket without `SO_REUSEPORT`, and if `among` is 0.
pub(crate) fn pass_over(socket: &impl AsFd, first: u32, among: u32) -> io::Result<()> {
    // Classic BPF (socket(7), SO_ATTACH_REUSEPORT_CBPF): what it returns is the number of a socket;
    // sockets are numbered as they joined, TCP's when they began to listen.
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const REMAINDER: u16 = 0x94; // BPF_ALU | BPF_MOD | BPF_K
    const ADD: u16 = 0x04; // BPF_ALU | BPF_ADD | BPF_K
    const RETURN: u16 = 0x16; // BPF_RET | BPF_A
    const RANDOM: u32 = 0xffff_f000 + 56; // SKF_AD_OFF + SKF_AD_RANDOM
    let instruction = |code, k| sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let mut instructions = [
        instruction(LOAD_WORD, RANDOM),
        instruction(REMAINDER, among),
        instruction(ADD, first),
        instruction(RETURN, 0),
    ];
    let program = sock_fprog {
        len: 4,
        filter: instructions.as_mut_ptr(),
    };
    Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
}

/// Has the kernel choose by hash again among all sockets of the address.
pub(crate) fn pass_to_all(socket: &impl AsFd) -> io::Result<()> {
    pass_over(socket, u32::MAX, 1)
}

/// The sockets with which this process listens at an address over TCP, as opposed to those of others.
#[derive(Clone, Debug)]
pub struct OwnSockets {
    address: SocketAddr,
    inodes: Arc<BTreeSet<u64>>,
}

impl OwnSockets {
    /// Remembers sockets that are bound to the same address.
    ///
    /// # Errors
    /// The kernel's error for a socket.
    pub fn new(address: SocketAddr, sockets: &[impl AsFd]) -> io::Result<Self> {
        let inode = |socket| Ok(rustix::fs::fstat(socket)?.st_ino);
        let inodes: io::Result<BTreeSet<u64>> = sockets.iter().map(inode).collect();
        Ok(Self {
            address,
            inodes: Arc::new(inodes?),
        })
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.inodes.len()
    }

    /// Returns the sockets of others that listen at the address now; `None` unless all own ones do.
    pub(crate) fn beside(&self) -> io::Result<Option<BTreeSet<u64>>> {
        let all = listening(self.address)?;
        Ok((self.inodes.is_subset(&all)).then(|| &all - &self.inodes))
    }

    /// Returns the sockets of others that listen at the address now.
    ///
    /// # Errors
    /// The kernel's error for its table.
    pub fn others(&self) -> io::Result<BTreeSet<u64>> {
        Ok(&listening(self.address)? - &self.inodes)
    }

    /// Tells whether another process listens at one of these addresses; false if that cannot be read.
    pub fn are_shared(own: &[Self]) -> bool {
        own.iter()
            .any(|own| own.others().is_ok_and(|others| !others.is_empty()))
    }
}

/// The UDP sockets that this process reads, as opposed to those of others at the same addresses.
#[derive(Debug, Default)]
pub struct OwnDatagrams(Mutex<BTreeSet<u64>>);

/// A UDP socket that this process reads, until this is dropped.
#[derive(Debug)]
pub struct ReadSocket<'a> {
    own: &'a OwnDatagrams,
    address: SocketAddr,
    inode: u64,
}

impl OwnDatagrams {
    /// Remembers a bound socket.
    ///
    /// # Errors
    /// The kernel's error for it.
    pub fn read(&self, socket: &UdpSocket) -> io::Result<ReadSocket<'_>> {
        let inode = rustix::fs::fstat(socket)?.st_ino;
        let address = socket.local_addr()?;
        lock(&self.0).insert(inode);
        Ok(ReadSocket {
            own: self,
            address,
            inode,
        })
    }
}

impl ReadSocket<'_> {
    /// Tells whether another process has a socket at the same address now; false if that cannot be read.
    pub fn is_shared(&self) -> bool {
        let all = receiving(self.address);
        all.is_ok_and(|all| !all.is_subset(&lock(&self.own.0)))
    }
}

impl Drop for ReadSocket<'_> {
    fn drop(&mut self) {
        lock(&self.own.0).remove(&self.inode);
    }
}

/// Tells whether a process listens at `address`, or at its port on every address, over TCP now; true if that
/// cannot be read. It takes no right, as trying to bind would below port 1024. For an IPv4 address a socket at
/// `[::]` counts though it may be for IPv6 alone, which the table does not say.
pub fn is_served(address: SocketAddr) -> bool {
    let at = |ip| SocketAddr::new(ip, address.port());
    let mut all = vec![address, at(Ipv6Addr::UNSPECIFIED.into())];
    if let IpAddr::V4(ip) = address.ip() {
        let mapped = ip.to_ipv6_mapped();
        all.extend([at(Ipv4Addr::UNSPECIFIED.into()), at(mapped.into())]);
    }
    all.into_iter().any(|at| match listening(at) {
        Ok(found) => !found.is_empty(),
        // Without IPv6 there is no table of it.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn shared(kind: Type, address: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::for_address(address), kind, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket
    }

    /// Listens at an address that others may share.
    pub(crate) fn listener(address: SocketAddr) -> TcpListener {
        let socket = shared(Type::STREAM, address);
        socket.listen(64).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.into()
    }

    /// Connects so often that no hash gives all of them to one of two.
    fn connect(address: SocketAddr) -> Vec<TcpStream> {
        let connect = |_| TcpStream::connect(address).unwrap();
        (0..MANY).map(connect).collect()
    }

    fn accepted(listener: &TcpListener) -> usize {
        std::iter::from_fn(|| listener.accept().ok()).count()
    }

    #[test]
    fn later_process_gets_new_connections_only() {
        let first = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = first.local_addr().unwrap();
        let queued = connect(address);
        let second = listener(address);
        pass_over(&first, 1, 1).unwrap();
        let open = connect(address);
        assert_eq!((accepted(&first), accepted(&second)), (MANY, MANY));
        drop((queued, open));

        // The process that is left alone gets everything again, without further calls.
        drop(first);
        let _open = connect(address);
        assert_eq!(accepted(&second), MANY);

        let third = listener(address);
        pass_to_all(&second).unwrap();
        let _open = connect(address);
        let (two, three) = (accepted(&second), accepted(&third));
        assert!(two > 0 && three > 0 && two + three == MANY, "{two} {three}");
    }

    #[test]
    fn new_connections_are_spread_over_successors() {
        let first = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = first.local_addr().unwrap();
        let later = [listener(address), listener(address)];
        pass_over(&first, 1, 2).unwrap();
        let _open = connect(address);
        let [second, third] = later.each_ref().map(accepted);
        assert!(second > 0 && third > 0, "{second} {third}");
        assert_eq!(second + third, MANY);
        assert!(pass_over(&first, 1, 0).is_err());
    }

    #[test]
    fn own_sockets_are_told_from_those_of_others() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let first = shared(Type::STREAM, address.parse().unwrap());
            let address = first.local_addr().unwrap().as_socket().unwrap();
            let own = OwnSockets::new(address, std::slice::from_ref(&first)).unwrap();
            assert_eq!(own.beside().unwrap(), None, "bound, not listening");
            first.listen(1).unwrap();
            assert_eq!(own.beside().unwrap(), Some(BTreeSet::new()));
            let second = shared(Type::STREAM, address);
            assert!(!OwnSockets::are_shared(std::slice::from_ref(&own)));
            second.listen(1).unwrap();
            assert!(OwnSockets::are_shared(std::slice::from_ref(&own)));
            assert_eq!(own.beside().unwrap().map(|others| others.len()), Some(1));
            drop(first);
            assert_eq!(own.beside().unwrap(), None);
            assert_eq!(own.others().unwrap().len(), 1);
        }
    }

    #[test]
    fn datagrams_are_passed_over() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first: UdpSocket = shared(Type::DGRAM, any).into();
        let address = first.local_addr().unwrap();
        let second: UdpSocket = shared(Type::DGRAM, address).into();
        pass_over(&second, 1, 1).unwrap();
        for _ in 0..MANY {
            let sender = UdpSocket::bind(any).unwrap();
            sender.send_to(b"a", address).unwrap();
        }
        let limit = Some(Duration::from_secs(10));
        second.set_read_timeout(limit).unwrap();
        for _ in 0..MANY {
            second.recv(&mut [0; 8]).unwrap();
        }
    }

    #[test]
    fn datagram_socket_is_shared_while_another_is_bound() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let first: UdpSocket = shared(Type::DGRAM, address.parse().unwrap()).into();
            let address = first.local_addr().unwrap();
            let own = OwnDatagrams::default();
            let read = own.read(&first).unwrap();
            assert!(!read.is_shared());
            let second: UdpSocket = shared(Type::DGRAM, address).into();
            assert!(read.is_shared());
            let also = own.read(&second).unwrap();
            assert!(!read.is_shared());
            drop(also);
            assert!(read.is_shared(), "another process has it now");
            drop(second);
            assert!(!read.is_shared());
        }
    }

    #[test]
    fn unshared_socket_cannot_pass_over() {
        let alone = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(pass_over(&alone, 1, 1).is_err());
    }

    #[test]
    fn address_is_served_while_a_socket_listens() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            assert!(!is_served(address));
            let socket = shared(Type::STREAM, address);
            let bound = socket.local_addr().unwrap().as_socket().unwrap();
            assert!(!is_served(bound), "bound, not listening");
            socket.listen(1).unwrap();
            assert!(is_served(bound));
            drop(socket);
            assert!(!is_served(bound));
        }
    }

    #[test]
    fn listener_on_every_address_serves_each() {
        for every in ["0.0.0.0:0", "[::]:0"] {
            let socket = listener(every.parse().unwrap());
            let port = socket.local_addr().unwrap().port();
            assert!(
                is_served(SocketAddr::from(([127, 0, 0, 1], port))),
                "{every}"
            );
            let by_ipv6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
            assert_eq!(is_served(by_ipv6), every.starts_with('['), "{every}");
        }
    }

    const MANY: usize = 32;
}
