//! A blocking client that tells a reset from an end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};

use socket2::{Domain, SockRef, Socket, Type};
use testkit::client_hello::ClientHello;

use super::LIMIT;

/// One connection to a gateway.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
}

/// How a connection ended on which no more data was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The stream ended.
    Closed,
    /// The connection was reset.
    Reset,
}

impl Client {
    pub(crate) fn open(addr: SocketAddr) -> Self {
        let from = if addr.is_ipv4() { "127.0.0.1" } else { "::1" };
        Self::try_from_ip(from.parse().unwrap(), addr).unwrap()
    }

    /// Connects from an address of this host, `127.0.0.2` for example.
    pub(crate) fn from_ip(from: &str, addr: SocketAddr) -> Self {
        Self::try_from_ip(from.parse().unwrap(), addr).unwrap()
    }

    pub(crate) fn try_from_ip(from: IpAddr, addr: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(from, 0).into())?;
        socket.connect_timeout(&addr.into(), LIMIT)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream })
    }

    /// Connects and sends an ordinary ClientHello for `server_name`.
    pub(crate) fn hello(addr: SocketAddr, server_name: &str) -> Self {
        let mut client = Self::open(addr);
        client.send(&ClientHello::for_name(server_name).encode());
        client
    }

    /// Connects, sends a ClientHello and waits until an echoing endpoint has sent it back.
    pub(crate) fn established(addr: SocketAddr, server_name: &str) -> Self {
        let mut client = Self::open(addr);
        client.expect_echo(&ClientHello::for_name(server_name).encode());
        client
    }

    /// Sends a CONNECT for `value` and returns the answer's head.
    pub(crate) fn connect(&mut self, value: &str) -> String {
        self.send(connect_head(value).as_bytes());
        self.read_head()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends what the gateway may refuse halfway.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends each byte in a segment of its own.
    pub(crate) fn drip(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.send(&[*byte]);
        }
    }

    /// Ends the sending half.
    pub(crate) fn finish(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    pub(crate) fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn expect_echo(&mut self, bytes: &[u8]) {
        self.send(bytes);
        assert_eq!(self.receive(bytes.len()), bytes);
    }

    /// Reads an HTTP head, its empty line included, and not a byte more.
    pub(crate) fn read_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.receive(1));
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads to the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// Waits for the end of a connection on which nothing may arrive any more.
    pub(crate) fn end(&mut self) -> End {
        let mut buf = [0; 16];
        match self.stream.read(&mut buf) {
            Ok(0) => End::Closed,
            Ok(read) => panic!("still served: {:?}", String::from_utf8_lossy(&buf[..read])),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => End::Reset,
            Err(error) => panic!("neither ended nor reset: {error}"),
        }
    }

    /// Closes by a reset instead of an end.
    pub(crate) fn reset(self) {
        let linger = Some(std::time::Duration::ZERO);
        SockRef::from(&self.stream).set_linger(linger).unwrap();
    }
}

/// Returns an HTTP/1.1 CONNECT whose `Reversed-VPN` header is `value`.
pub(crate) fn connect_head(value: &str) -> String {
    format!("CONNECT any.test:443 HTTP/1.1\r\nHost: any.test:443\r\nReversed-VPN: {value}\r\n\r\n")
}
