//! Two processes at one address, the second of which takes over from the first.
//!
//! ```text
//!     sockets of one address (SO_REUSEPORT), as they joined:  [ first, first, | second, second ]
//!     whom the kernel gives what is new: by hash, any of them;   pass_over(2) ─▶ the third
//! ```
//!
//! Knows no phases and opens nothing to stay: who passes what over, and when, is the caller's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::libc::{sock_filter, sock_fprog};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::AttachReusePortCbpf;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Has the kernel give new connections and datagrams to the socket that joined those of this address
/// as the one behind the first `count`; those that are open, or under way, stay where they are.
///
/// Where there is no such socket the kernel chooses by hash, as it does without this, so that it holds
/// for as long as it can and needs no undoing when either side ends. It is a matter of all sockets of
/// the address, which every one of them may change, and needs no privilege (Linux 4.6).
///
/// # Errors
/// What the kernel says; `InvalidInput` of a socket without `SO_REUSEPORT`.
pub fn pass_over(socket: &impl AsFd, count: u32) -> io::Result<()> {
    // Classic BPF (socket(7), SO_ATTACH_REUSEPORT_CBPF): what it returns is the number of a socket,
    // from 0; sockets are numbered as they joined, TCP's when they began to listen.
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let mut instructions = [sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: count,
    }];
    let program = sock_fprog {
        len: 1,
        filter: instructions.as_mut_ptr(),
    };
    Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
}

/// Has the kernel choose by hash again among all sockets of the address.
///
/// # Errors
/// As [`pass_over`].
pub fn pass_to_all(socket: &impl AsFd) -> io::Result<()> {
    pass_over(socket, u32::MAX)
}

/// Tells whether somebody listens at `address` over TCP now; never of port 0.
#[must_use]
pub fn is_served(address: SocketAddr) -> bool {
    let try_it = || {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // With it only a socket that listens is in the way, and without SO_REUSEPORT each that does.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(address))
    };
    let tried: io::Result<()> = try_it();
    tried.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    use super::*;

    fn shared(kind: Type, address: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::IPV4, kind, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket
    }

    fn listener(address: SocketAddr) -> TcpListener {
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
    fn who_came_later_is_given_everything_new_and_what_is_queued_stays() {
        let first = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = first.local_addr().unwrap();
        let queued = connect(address);
        let second = listener(address);
        pass_over(&first, 1).unwrap();
        let open = connect(address);
        assert_eq!((accepted(&first), accepted(&second)), (MANY, MANY));
        drop((queued, open));

        // Whoever is left alone has all of it again, without a word of anybody's.
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
    fn datagrams_are_passed_over_too() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first: UdpSocket = shared(Type::DGRAM, any).into();
        let address = first.local_addr().unwrap();
        let second: UdpSocket = shared(Type::DGRAM, address).into();
        pass_over(&second, 1).unwrap();
        for _ in 0..MANY {
            UdpSocket::bind(any)
                .unwrap()
                .send_to(b"a", address)
                .unwrap();
        }
        second
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        for _ in 0..MANY {
            second.recv(&mut [0; 8]).unwrap();
        }
    }

    #[test]
    fn a_socket_that_shares_nothing_has_nobody_to_pass_to() {
        let alone = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(pass_over(&alone, 1).is_err());
    }

    #[test]
    fn an_address_is_served_while_somebody_listens_there() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            assert!(!is_served(address));
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&address.into()).unwrap();
            let bound = socket.local_addr().unwrap().as_socket().unwrap();
            assert!(!is_served(bound), "bound, and does not listen");
            socket.listen(1).unwrap();
            assert!(is_served(bound));
            drop(socket);
            assert!(!is_served(bound));
        }
    }

    const MANY: usize = 32;
}
