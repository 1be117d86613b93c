//! Destinations that the test kit has not, and bytes to send there.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};
use testkit::wait;

use super::LIMIT;

/// An address that refuses connections for as long as it is held.
#[derive(Debug)]
pub(crate) struct Refusing {
    _socket: Socket,
    pub(crate) addr: SocketAddr,
}

impl Refusing {
    pub(crate) fn new() -> Self {
        let socket = bound();
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        Self {
            _socket: socket,
            addr,
        }
    }
}

/// An address whose queue of connections is full, so that no connection is answered.
#[derive(Debug)]
pub(crate) struct Unanswering {
    _listener: Socket,
    _waiting: Vec<Socket>,
    pub(crate) addr: SocketAddr,
}

impl Unanswering {
    pub(crate) fn new() -> Self {
        let listener = bound();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let waiting = (0..4).map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&addr.into());
            socket
        });
        Self {
            _waiting: waiting.collect(),
            _listener: listener,
            addr,
        }
    }
}

fn bound() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket
}

/// A destination whose connections are in the test's hands.
#[derive(Debug)]
pub(crate) struct Held {
    listener: TcpListener,
}

impl Held {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Waits for the next connection.
    pub(crate) fn accept(&self) -> TcpStream {
        let accepted = wait::until_ok("a connection", LIMIT, || Ok(self.listener.accept()?));
        let (stream, _) = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream
    }
}

/// Waits for an end or a reset, with nothing before it.
pub(crate) fn assert_ends(stream: &mut TcpStream) {
    match stream.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        // A timeout is none.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// Returns bytes that look random and are the same for the same `seed`.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
