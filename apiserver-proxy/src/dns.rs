//! The optional DNS server: one small zone of our own, everything else asked of others.
//!
//! ```text
//!     pod ── UDP ──▶ hickory's Server ─┐             ┌─▶ Zone       the API server's name, AA
//!     pod ── TCP ──▶ tcp::serve ───────┴─▶ Handler ──┤
//!                                                    └─▶ Forwarder  any other name, or REFUSED
//! ```
//!
//! It exists for clusters whose `kubernetes.default` Service is an ExternalName: the name then
//! resolves, on every node, to the address at which the proxy listens. Answers of others are not
//! cached, the node-local cache that is asked does that; names are not searched or rewritten.
//!
//! hickory's own TCP loop takes connections without bound and spins when descriptors run out, and
//! its forwarding zone resolves and caches by itself, so those two parts are ours.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_server::Server;
use hickory_server::net::NetError;
use hickory_server::proto::rr::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serve::{OwnSockets, pass_to_last};
use settings::{ConfigErrors, ListenAddress};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};

use self::forward::Forwarder;
use self::handler::Handler;
use self::zone::Zone;

mod exchange;
mod forward;
mod handler;
mod tcp;
#[cfg(test)]
mod tests;
mod zone;

/// A DNS server that answers one name itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "DnsFile")]
pub(crate) struct DnsParams {
    /// Where it answers, by UDP and TCP; the address is put on `interface` as well.
    pub(crate) address: ListenAddress,
    /// The name it answers itself.
    pub(crate) zone: String,
    /// Addresses of that name.
    pub(crate) answer: Vec<IpAddr>,
    /// Servers that are asked everything else, in this order.
    #[serde(default)]
    pub(crate) forward: Vec<SocketAddr>,
    /// `zone`, as a name.
    #[serde(skip)]
    origin: Name,
}

/// A bound DNS server that does not answer yet.
#[derive(Debug)]
pub(crate) struct DnsServer {
    udp: UdpSocket,
    tcp: TcpListener,
    local_addr: SocketAddr,
    own: Option<OwnSockets>,
    handler: Handler,
    limits: Limits,
}

impl DnsParams {
    /// Adds to `errors` what is wrong, and reads the zone's name.
    pub(crate) fn validate(&mut self, errors: &mut ConfigErrors) {
        let own = self.address.get();
        if own.ip().to_canonical().is_unspecified() {
            let why = "answers would leave from another address than the one that was asked; a \
                       specific one is needed";
            errors.add("dns.address", why);
        }
        // A question forwarded to ourselves would be forwarded again, until the limit stops it.
        for (index, server) in self.forward.iter().enumerate() {
            let same_ip = server.ip().to_canonical() == own.ip().to_canonical();
            if same_ip && server.port() == own.port() {
                let why = format!("forwarding to {server}, the server's own address, would loop");
                errors.add(format!("dns.forward[{index}]"), why);
            }
        }
        if self.answer.is_empty() {
            errors.add("dns.answer", "at least one address is needed");
        }
        match Name::from_ascii(&self.zone) {
            Err(error) => errors.add("dns.zone", error),
            Ok(name) if name.is_root() => {
                errors.add("dns.zone", "the root of all names cannot be the zone");
            }
            Ok(name) => self.origin = name,
        }
    }
}

impl DnsServer {
    /// Binds UDP and TCP, on the current runtime. Nothing is answered before [`run`](Self::run), but questions queue up: all
    /// that come from now on, also where another process of this program has answered until now.
    pub(crate) fn bind(params: &DnsParams) -> Result<Self, DnsError> {
        Self::bind_with(params, Limits::default())
    }

    fn bind_with(params: &DnsParams, limits: Limits) -> Result<Self, DnsError> {
        let address = params.address.get();
        let failed = |error| DnsError::Bind(address, error);
        let (udp, tcp) = bind_pair(address).map_err(failed)?;
        let own = (address.port() != 0).then(|| take_turn(address, &udp, &tcp));
        let local_addr = udp.local_addr().map_err(failed)?;
        let zone = Zone::new(&params.origin, &params.answer);
        let handler = Handler::new(zone, Forwarder::new(&params.forward, &limits));
        Ok(Self {
            udp,
            tcp,
            local_addr,
            own: own.flatten(),
            handler,
            limits,
        })
    }

    /// Returns what tells its TCP socket from those of other processes, where these may be beside it.
    pub(crate) fn own(&self) -> Option<OwnSockets> {
        self.own.clone()
    }

    /// Returns the address of both sockets.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Answers until `shutdown` is done; then the sockets close, and questions under way are
    /// dropped: their askers ask again.
    ///
    /// Cancel-safe: when the future is dropped, the server stops.
    ///
    /// # Errors
    /// [`DnsError::Udp`] when the UDP socket ended by itself.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), DnsError> {
        let mut server = Server::new(self.handler.clone());
        server.register_socket(self.udp);
        tokio::select! {
            () = shutdown => {}
            () = tcp::serve(self.tcp, self.handler, &self.limits) => {}
            ended = server.block_until_done() => return Err(DnsError::Udp(ended.err())),
        }
        let ended = server.shutdown_gracefully().await;
        ended.map_err(|error| DnsError::Udp(Some(error)))
    }
}

/// Why the DNS server cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DnsError {
    /// The address is not on this machine, in use, or its port needs a capability.
    #[error("binding the DNS server to {0}, UDP and TCP")]
    Bind(SocketAddr, #[source] io::Error),
    /// Receiving over UDP ended, which only a broken socket does.
    #[error("receiving DNS questions over UDP")]
    Udp(#[source] Option<NetError>),
}

/// Every bound of the server.
#[derive(Clone, Debug)]
struct Limits {
    /// Questions asked of others at one time. Each holds a descriptor per exchange: five at most,
    /// when servers are silent.
    questions: usize,
    /// How long one question may take, over all servers asked; a stub resolver gives up after
    /// as long (resolv.conf(5), `timeout`).
    question: Duration,
    /// How long a server may be silent before the next is asked as well.
    patience: Duration,
    /// For how long a server that failed is asked last.
    aside: Duration,
    /// How long it may take to fetch a truncated answer in full over TCP.
    in_full: Duration,
    /// TCP connections at one time, of which one source has at most half. Each may hold one message of 64 KiB.
    connections: usize,
    /// How long a TCP connection may take for its next question (RFC 7766 §6.2.3: "a few
    /// seconds").
    idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            questions: 256,
            question: Duration::from_secs(5),
            patience: Duration::from_secs(1),
            aside: Duration::from_secs(10),
            in_full: Duration::from_secs(2),
            connections: 128,
            idle: Duration::from_secs(10),
        }
    }
}

/// Binds one address for both protocols, shared with a process that this one follows. With port 0 the
/// kernel picks UDP's, and the same port may be taken for TCP: then another is tried.
fn bind_pair(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    const TRIES: usize = 16;
    let mut tries = if address.port() == 0 { TRIES } else { 1 };
    loop {
        tries -= 1;
        let shared = address.port() != 0;
        let udp = UdpSocket::from_std(bind_one(Type::DGRAM, address, shared)?.into())?;
        let tcp = bind_one(Type::STREAM, udp.local_addr()?, shared);
        match tcp.and_then(|tcp| tcp.listen(BACKLOG).map(|()| tcp.into())) {
            Ok(tcp) => return Ok((udp, TcpListener::from_std(tcp)?)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

/// Has the questions come to these sockets from now on, and no longer to those of another process.
fn take_turn(address: SocketAddr, udp: &UdpSocket, tcp: &TcpListener) -> Option<OwnSockets> {
    let own = OwnSockets::new(address, &[tcp]).ok();
    let taken = pass_to_last(udp, own.as_ref()).and_then(|()| pass_to_last(tcp, own.as_ref()));
    if let Err(error) = taken {
        tracing::warn!(%error, "DNS: questions may be lost with a process that ends");
    }
    own
}

fn bind_one(kind: Type, address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    socket.set_nonblocking(true)?;
    if kind == Type::STREAM {
        // As std has it: connections of a process that is gone are not in the way.
        socket.set_reuse_address(true)?;
    }
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Connections that the kernel may queue.
const BACKLOG: i32 = 128;
