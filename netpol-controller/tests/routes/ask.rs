//! What is asked of a gateway, and how it answers.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::http::{self, Proxy, RefusedByProxy, Target};

/// Where a gateway listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) tls: SocketAddr,
    pub(crate) node: SocketAddr,
    pub(crate) vpn: SocketAddr,
}

impl Ports {
    fn of(&self, listener: Listener) -> SocketAddr {
        match listener {
            Listener::Node => self.node,
            Listener::Vpn => self.vpn,
        }
    }
}

/// A listener that takes CONNECT requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listener {
    Node,
    Vpn,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// A CONNECT with a header.
    Connect(Listener, &'static str, String),
    /// A node proxy's PROXY header of a version, with a destination.
    Destination(u8, &'static str),
    /// A request in the clear: its head.
    Http(Listener, &'static str),
    /// TLS by a server name, or without one.
    Name(Option<String>),
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(listener, header, value) => {
                write!(f, "CONNECT at {listener:?}, {header}: {value}")
            }
            Self::Destination(version, to) => write!(f, "PROXY v{version} to {to}"),
            Self::Http(listener, head) => write!(f, "at {listener:?}: {head:?}"),
            Self::Name(name) => write!(f, "server name {name:?}"),
        }
    }
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// An HTTP status, and where it sends the client.
    Status(u16, Option<String>),
    /// The API server of this shoot.
    Shoot(String),
    /// None: the connection ended, or what came is no TLS.
    Nothing,
}

/// The name that every shoot's certificate has beside its own: what its pods ask for.
pub(crate) const INNER: &str = "kubernetes.default.svc";

/// No gateway takes longer than this on a busy machine; it is short of a preamble's time, so that
/// waiting that out is distinguishable from an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Asks, and waits for the answer.
pub(crate) fn ask(ports: &Ports, authority_pem: &str, ask: &Ask) -> Answer {
    let tls = |addr: SocketAddr| Target::tls(addr, authority_pem).timeout(PATIENCE);
    let target = match ask {
        Ask::Connect(listener, header, value) => tls(ports.of(*listener))
            .server_name(INNER)
            .proxy(Proxy::connect(header, value)),
        Ask::Destination(version, to) => {
            let dst: SocketAddr = to.parse().unwrap();
            let src = if dst.is_ipv4() {
                "192.0.2.9:1234"
            } else {
                "[2001:db8::9]:1234"
            };
            let src = src.parse().unwrap();
            let proxy = match version {
                1 => Proxy::V1 { src, dst },
                _ => Proxy::V2 { src, dst },
            };
            tls(ports.node).server_name(INNER).proxy(proxy)
        }
        Ask::Http(listener, head) => return plain(ports.of(*listener), head),
        Ask::Name(Some(name)) => tls(ports.tls).server_name(name),
        Ask::Name(None) => tls(ports.tls),
    };
    match http::get(&target, "/version") {
        Ok(answer) => Answer::Shoot(answer.json().unwrap()["shoot"].as_str().unwrap().to_owned()),
        Err(error) => match error.downcast_ref::<RefusedByProxy>() {
            Some(refused) => Answer::Status(refused.status, None),
            None => Answer::Nothing,
        },
    }
}

fn plain(addr: SocketAddr, head: &str) -> Answer {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = Vec::new();
    let mut buf = [0; 1024];
    while !text.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buf) {
            Ok(0) | Err(_) => return Answer::Nothing,
            Ok(read) => text.extend(&buf[..read]),
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let location = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location")
            .then(|| value.to_owned())
    });
    status.map_or(Answer::Nothing, |status| Answer::Status(status, location))
}
