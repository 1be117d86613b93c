//! Opens UDP sockets: bound for listeners, connected for one receiver; with buffers in the kernel.
//!
//! What is done with them is `socket`'s and `outbox`'s.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Once;

use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// Bytes that the kernel may queue for one socket.
#[derive(Clone, Copy, Debug)]
pub struct BufferSizes {
    /// That were received and not yet read.
    pub receive: usize,
    /// That were sent and are still in this host.
    pub send: usize,
}

/// Opens one socket for each worker on `address`; port 0 lets the kernel choose one for all, which no
/// other socket has.
///
/// `[::]` also takes IPv4; on a host without IPv6 it means `0.0.0.0`.
///
/// # Errors
/// An error of the kernel.
pub fn bind(address: SocketAddr, workers: usize, sizes: BufferSizes) -> io::Result<Vec<UdpSocket>> {
    let mut address = address;
    let mut sockets: Vec<UdpSocket> = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = match bind_one(address, sizes) {
            Err(error) if no_ipv6(&error) && address.ip() == Ipv6Addr::UNSPECIFIED => {
                static WARNING: Once = Once::new(); // of the host, and there is a socket per worker
                WARNING.call_once(|| tracing::warn!(%address, "this host has no IPv6: IPv4 alone"));
                address.set_ip(Ipv4Addr::UNSPECIFIED.into());
                bind_one(address, sizes)?
            }
            opened => opened?,
        };
        if workers > 1 {
            SockRef::from(&socket).set_reuse_port(true)?;
        }
        address.set_port(socket.local_addr()?.port());
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Opens a socket that sends to `address` only and receives from it only.
///
/// # Errors
/// An error of the kernel; a host without a route to `address` fails here.
pub fn connect(address: SocketAddr, sizes: BufferSizes) -> io::Result<UdpSocket> {
    let socket = open(address, sizes)?;
    socket.connect(&SockAddr::from(address))?;
    Ok(socket.into())
}

/// Returns how much the kernel granted to a socket for receiving.
///
/// # Errors
/// An error of the kernel.
pub fn granted(socket: &UdpSocket) -> io::Result<usize> {
    // The kernel doubles what it was asked for, for its own book-keeping (socket(7)).
    SockRef::from(socket)
        .recv_buffer_size()
        .map(|size| size / 2)
}

/// Whether that is why an address of IPv6 cannot be bound; one that is in use must not become IPv4's.
fn no_ipv6(error: &io::Error) -> bool {
    let error = Errno::from_io_error(error);
    matches!(error, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

fn bind_one(address: SocketAddr, sizes: BufferSizes) -> io::Result<UdpSocket> {
    let socket = open(address, sizes)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // With it, the kernel may choose a port for 0 whose other sockets have it too (Linux 6.18).
    socket.set_reuse_port(address.port() != 0)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

fn open(address: SocketAddr, sizes: BufferSizes) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // With NET_ADMIN the limits of the host do not hold; else it grants what they allow
    // (net.core.rmem_max, wmem_max).
    if sockopt::set_socket_recv_buffer_size_force(&socket, sizes.receive).is_err() {
        socket.set_recv_buffer_size(sizes.receive)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, sizes.send).is_err() {
        socket.set_send_buffer_size(sizes.send)?;
    }
    Ok(socket)
}
