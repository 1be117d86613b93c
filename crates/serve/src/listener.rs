//! Binding listeners: one socket per worker on the same address, so that the kernel spreads
//! connections over workers and none is handed from thread to thread.
//!
//! Does not accept; see `accept`. Sockets that systemd passed are used instead of bound ones.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use route::TcpOptions;
use socket2::{Domain, Protocol, SockAddr, SockFilter, SockRef, Socket, Type};

use crate::handover::TakenSocket;
use crate::inherited::InheritedSocket;
use crate::reuse_port::ReusePortGroup;
use crate::shared_address::OwnSockets;
use crate::tcp::{apply_tcp_options, replace_tcp_options, unmapped};

/// Connections the kernel may queue before they are accepted; it silently caps the value at
/// `net.core.somaxconn` (4096 since Linux 5.4).
const BACKLOG: i32 = 4096;

/// How one listener is bound.
#[derive(Clone, Debug)]
pub struct ListenerParams {
    /// Name in logs and metrics.
    pub name: String,
    /// Address and port; port 0 lets the kernel choose one, the same for every worker.
    pub address: SocketAddr,
    /// Options of the accepted sockets.
    pub tcp: TcpOptions,
}

/// One worker's listening socket.
#[derive(Debug)]
pub struct WorkerSocket {
    pub(crate) socket: TcpListener,
    /// The sockets of its listener; `None` of a socket that was passed by the service manager, which keeps
    /// it open and listening after this process.
    pub(crate) group: Option<Arc<ReusePortGroup>>,
    /// Which listener's it is, from 0.
    pub listener: usize,
}

/// A listening socket, to be shared with another process.
#[derive(Debug)]
pub(crate) struct SharedSocket {
    /// The name of its listener.
    name: String,
    socket: OwnedFd,
    pub(crate) group: Arc<ReusePortGroup>,
}

/// What another process may share.
#[derive(Debug)]
pub struct ToShare {
    pub(crate) sockets: Vec<SharedSocket>,
    /// Those close with their last owner, an accept loop.
    pub(crate) groups: Vec<Weak<ReusePortGroup>>,
}

impl SharedSocket {
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        SockRef::from(&self.socket).local_addr().ok()?.as_socket()
    }

    /// Returns its listener's name and another descriptor of it; from then on its queue is another process's too.
    pub(crate) fn share(&self) -> Option<(String, OwnedFd)> {
        let socket = self.socket.try_clone().ok()?;
        self.group.share(true);
        Some((self.name.clone(), socket))
    }
}

/// A listener could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("listener {name}: {attempt} {address}")]
pub struct BindError {
    name: String,
    attempt: &'static str,
    address: SocketAddr,
    #[source]
    source: io::Error,
}

impl WorkerSocket {
    /// Returns the address the socket listens on.
    ///
    /// # Errors
    /// The kernel's error for the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(unmapped(self.socket.local_addr()?))
    }
}

/// Binds (or takes over) the sockets of one listener, one per worker; they do not listen yet. Returns
/// their address as well.
///
/// `[::]` also accepts IPv4; on a host without IPv6 it means `0.0.0.0`.
fn bind(
    params: &ListenerParams,
    workers: usize,
    inherited: Option<InheritedSocket>,
) -> Result<(Vec<WorkerSocket>, SocketAddr), BindError> {
    let failed = |attempt: &'static str, address: SocketAddr| {
        let name = params.name.clone();
        move |source: io::Error| BindError {
            name,
            attempt,
            address,
            source,
        }
    };
    if let Some(InheritedSocket { socket, .. }) = inherited {
        let set = retune(&socket, params).and_then(|()| socket.set_nonblocking(true));
        let attempt = "taking over the inherited socket of";
        set.map_err(failed(attempt, params.address))?;
        let address = socket.local_addr();
        let address = address.map_err(failed("reading the address of", params.address))?;
        let of_worker = |_| {
            let (socket, group, listener) = (socket.try_clone()?, None, 0);
            Ok(WorkerSocket {
                socket,
                group,
                listener,
            })
        };
        let sockets: io::Result<_> = (0..workers).map(of_worker).collect();
        let attempt = "sharing the inherited socket of";
        let sockets = sockets.map_err(failed(attempt, params.address))?;
        return Ok((sockets, unmapped(address)));
    }
    let mut address = params.address;
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = match open(address, &params.tcp) {
            Err(error) if no_ipv6(&error) && address.ip() == Ipv6Addr::UNSPECIFIED => {
                address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
                tracing::warn!(listener = %params.name, "this host has no IPv6: IPv4 alone");
                open(address, &params.tcp)
            }
            opened => opened,
        };
        let socket = socket.map_err(failed("listening on", address))?;
        let bound = socket
            .local_addr()
            .map_err(failed("reading the address of", address))?;
        address.set_port(bound.port());
        sockets.push(socket);
    }
    let group = ReusePortGroup::new(address, &sockets)
        .map_err(failed("reading the address of", address))?;
    let group = Arc::new(group);
    let of_worker = |socket| WorkerSocket {
        socket,
        group: Some(Arc::clone(&group)),
        listener: 0,
    };
    let sockets = sockets.into_iter().map(of_worker).collect();
    Ok((sockets, unmapped(address)))
}

/// Sets the options of a socket that was set up elsewhere.
fn retune(socket: &TcpListener, params: &ListenerParams) -> io::Result<()> {
    if replace_tcp_options(SockRef::from(socket), &params.tcp)? {
        let listener = &params.name;
        tracing::warn!(%listener, "the socket keeps the receive buffer that was set before");
    }
    Ok(())
}

/// Tells whether a socket that is bound there is one of a listener that is configured so.
pub(crate) fn is_configured(configured: SocketAddr, bound: SocketAddr) -> bool {
    let (wanted, bound) = (unmapped(configured), unmapped(bound));
    // Port 0 is any, and `[::]` is `0.0.0.0` on a host without IPv6.
    let ip = wanted.ip() == bound.ip()
        || wanted.ip() == Ipv6Addr::UNSPECIFIED && bound.ip() == Ipv4Addr::UNSPECIFIED;
    ip && (wanted.port() == 0 || wanted.port() == bound.port())
}

/// Takes the sockets of another process for a listener; a worker has several, or shares one, where their
/// number is not the workers'.
fn adopt(
    params: &ListenerParams,
    workers: usize,
    taken: Vec<TcpListener>,
) -> io::Result<(Vec<WorkerSocket>, SocketAddr)> {
    let mut address = params.address;
    for socket in &taken {
        // Of a process that was about to close it.
        let _ = SockRef::from(socket).detach_filter();
        retune(socket, params)?;
        address = socket.local_addr()?;
    }
    let group = Arc::new(ReusePortGroup::new(address, &taken)?);
    group.share(true);
    let cloned = taken.iter().map(TcpListener::try_clone).cycle();
    let missing = workers.saturating_sub(taken.len());
    let more: io::Result<Vec<_>> = cloned.take(missing).collect();
    let of_worker = |socket| WorkerSocket {
        socket,
        group: Some(Arc::clone(&group)),
        listener: 0,
    };
    let sockets = taken.into_iter().chain(more?).map(of_worker).collect();
    Ok((sockets, unmapped(address)))
}

/// The bound sockets of every listener.
#[derive(Debug)]
pub struct BoundListeners {
    /// One list for each worker.
    pub per_worker: Vec<Vec<WorkerSocket>>,
    /// The address of each listener.
    pub addresses: Vec<SocketAddr>,
}

impl BoundListeners {
    /// Starts to listen on every socket. Connections are possible only from here on, so it is the last
    /// step before the accept loops run.
    ///
    /// # Errors
    /// The kernel's error for the first socket that cannot listen.
    pub fn listen(&self) -> io::Result<()> {
        let groups = || self.groups().into_iter();
        groups().for_each(|group| group.arrive());
        let bound = self.per_worker.iter().flatten();
        for own in bound.filter(|own| own.group.is_some()) {
            SockRef::from(&own.socket).listen(BACKLOG)?;
        }
        groups().for_each(|group| group.arrived());
        Ok(())
    }

    /// Returns the group of each listener that has one: the sockets of all workers are of the same as the first
    /// one's.
    pub(crate) fn groups(&self) -> Vec<Arc<ReusePortGroup>> {
        let mut groups: Vec<Arc<ReusePortGroup>> = Vec::new();
        for own in self.per_worker.iter().take(1).flatten() {
            if let Some(group) = &own.group
                && groups.last().is_none_or(|last| !Arc::ptr_eq(last, group))
            {
                groups.push(Arc::clone(group));
            }
        }
        groups
    }

    /// Returns what another process may share of `listeners`, in whose order they were bound.
    ///
    /// # Errors
    /// The kernel's, for another descriptor.
    pub fn to_share(&self, listeners: &[ListenerParams]) -> io::Result<ToShare> {
        let mut all = Vec::new();
        for own in self.per_worker.iter().flatten() {
            if let (Some(group), Some(params)) = (&own.group, listeners.get(own.listener)) {
                all.push(SharedSocket {
                    name: params.name.clone(),
                    socket: own.socket.try_clone()?.into(),
                    group: Arc::clone(group),
                });
            }
        }
        Ok(ToShare {
            sockets: all,
            groups: self.groups().iter().map(Arc::downgrade).collect(),
        })
    }

    /// Returns the sockets that this process bound, for each listener.
    pub fn own(&self) -> Vec<OwnSockets> {
        let groups = self.groups().into_iter();
        groups.map(|group| group.own().clone()).collect()
    }
}

/// Binds every listener, or uses the service manager's sockets where they match by name or, if names
/// match none, by port.
///
/// # Errors
/// The first listener that could not be bound; those before it are closed again.
pub fn bind_all(
    listeners: &[ListenerParams],
    workers: usize,
    inherited: Vec<InheritedSocket>,
) -> Result<BoundListeners, BindError> {
    bind_rest(listeners, workers, inherited, Vec::new())
}

/// As [`bind_all`], for what is left besides the sockets that were `taken` from another process, which are used
/// by their listeners' names.
///
/// # Errors
/// As [`bind_all`].
pub fn bind_rest(
    listeners: &[ListenerParams],
    workers: usize,
    inherited: Vec<InheritedSocket>,
    mut taken: Vec<TakenSocket>,
) -> Result<BoundListeners, BindError> {
    let mut bound = BoundListeners {
        per_worker: (0..workers).map(|_| Vec::new()).collect(),
        addresses: Vec::new(),
    };
    let inherited = assign(listeners, inherited);
    for (index, (params, own)) in listeners.iter().zip(inherited).enumerate() {
        let fits = |taken: &mut TakenSocket| {
            let bound = taken.socket.local_addr().ok();
            let named = taken.listener == params.name;
            named && bound.is_some_and(|bound| is_configured(params.address, bound))
        };
        let of_listener = taken.extract_if(.., fits);
        let of_listener: Vec<_> = of_listener.map(|taken| taken.socket).collect();
        let (sockets, address) = if of_listener.is_empty() {
            bind(params, workers, own)?
        } else {
            adopt(params, workers, of_listener).map_err(|source| BindError {
                name: params.name.clone(),
                attempt: "taking over the sockets of",
                address: params.address,
                source,
            })?
        };
        bound.addresses.push(address);
        for (turn, mut socket) in sockets.into_iter().enumerate() {
            socket.listener = index;
            if let Some(own) = bound.per_worker.get_mut(turn % workers.max(1)) {
                own.push(socket);
            }
        }
        tracing::info!(listener = %params.name, %address, "bound");
    }
    Ok(bound)
}

/// Assigns each listener the inherited socket of its name; sockets without a name go to listeners
/// without a socket, by port. The rest match nothing.
fn assign(
    listeners: &[ListenerParams],
    inherited: Vec<InheritedSocket>,
) -> Vec<Option<InheritedSocket>> {
    let mut own: Vec<Option<InheritedSocket>> = listeners.iter().map(|_| None).collect();
    let mut unnamed = Vec::new();
    for socket in inherited {
        let named = listeners
            .iter()
            .position(|listener| listener.name == socket.name);
        match named.and_then(|at| own.get_mut(at)) {
            Some(place @ None) => *place = Some(socket),
            _ => unnamed.push(socket),
        }
    }
    for socket in unnamed {
        let fits = |at: &usize| {
            own.get(*at).is_some_and(Option::is_none)
                && listeners.get(*at).map(|own| own.address.port()) == socket.port()
        };
        match (0..listeners.len())
            .find(fits)
            .and_then(|at| own.get_mut(at))
        {
            Some(place) => *place = Some(socket),
            None => {
                tracing::warn!(
                    name = socket.name,
                    "an inherited socket matches no listener"
                );
            }
        }
    }
    own
}

fn open(address: SocketAddr, tcp: &TcpOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    apply_tcp_options(SockRef::from(&socket), tcp)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

fn no_ipv6(error: &io::Error) -> bool {
    matches!(
        rustix::io::Errno::from_io_error(error),
        Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL)
    )
}

/// Makes the kernel drop every connection attempt (a SYN without ACK) that reaches this listener,
/// while handshakes already under way still complete.
///
/// A listener that is closed resets what it had half accepted. With new attempts dropped first,
/// the queue can be emptied and the socket closed with nothing in it: a client that tried meanwhile
/// tries again a second later (RFC 6298 §2.1), when it is closed, and is refused. Attempts that are
/// passed over to another process (`shared_address`) do not reach it.
pub(crate) fn refuse_new(socket: &impl AsFd) -> io::Result<()> {
    // Classic BPF (socket(7), SO_ATTACH_FILTER); a TCP socket's filter sees the packet from its
    // TCP header on, whose byte 13 holds the flags.
    const LOAD_BYTE: u16 = 0x30; // BPF_LD | BPF_B | BPF_ABS
    const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const FLAGS_AT: u32 = 13;
    const SYN_AND_ACK: u32 = 0x12;
    const SYN: u32 = 0x02;
    let program = [
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS_AT),
        SockFilter::new(AND, 0, 0, SYN_AND_ACK),
        SockFilter::new(JUMP_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
    SockRef::from(socket).attach_filter(&program)
}
