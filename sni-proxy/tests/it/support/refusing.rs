//! An address that refuses connections for as long as it is held.

use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};

/// A bound socket that does not listen: no other socket gets its port, and nothing answers there.
#[derive(Debug)]
pub(crate) struct Refusing {
    socket: Socket,
    pub(crate) addr: SocketAddr,
}

impl Refusing {
    pub(crate) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        Self { socket, addr }
    }

    /// Starts to accept where it refused.
    pub(crate) fn listen(self) -> TcpListener {
        self.socket.listen(128).unwrap();
        self.socket.into()
    }
}
