//! Binds TCP and Unix sockets to serve on.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};

use super::EndpointAddr;

/// A socket that listens already; connections wait in its queue until it is served.
///
/// The file of a Unix socket is removed when this, or the server made from it, is dropped.
#[derive(Debug, Default)]
pub struct Bound {
    /// Of the kind that the address says.
    socket: Option<OwnedFd>,
    local_addr: EndpointAddr,
    file: Option<SocketFile>,
    shared: bool,
}

impl Bound {
    /// Binds `address` and listens. [`EndpointAddr::None`] gives something that serving waits on
    /// without ever having a request.
    ///
    /// `[::]` serves IPv4 as well, and means `0.0.0.0` on a kernel without IPv6. A Unix socket gets mode
    /// 0600 before any client can connect; an existing file is replaced only if it is a socket on which no
    /// process listens.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and listen(2); `AddrInUse` when the file is something else or
    /// a process listens there.
    pub fn new(address: &EndpointAddr) -> io::Result<Self> {
        Self::with(address, false)
    }

    /// As [`Bound::new`], but other processes of the same user may share the address and port in the same
    /// way (`SO_REUSEPORT`). Port 0 and Unix sockets are not shared.
    ///
    /// # Errors
    /// As [`Bound::new`]; `AddrInUse` when the address belongs to a process that does not share it.
    pub fn shared(address: &EndpointAddr) -> io::Result<Self> {
        Self::with(address, true)
    }

    fn with(address: &EndpointAddr, share: bool) -> io::Result<Self> {
        let mut shared = false;
        let (socket, local_addr, file) = match address {
            EndpointAddr::None => return Ok(Self::default()),
            EndpointAddr::Tcp(address) => {
                shared = share && address.port() != 0;
                let listener = bind_tcp(*address, shared)?;
                let local_addr = EndpointAddr::Tcp(listener.local_addr()?);
                (listener.into(), local_addr, None)
            }
            EndpointAddr::Unix(path) => {
                let (socket, file) = bind_unix(path)?;
                (socket, address.clone(), Some(file))
            }
        };
        Ok(Self {
            socket: Some(socket),
            local_addr,
            file,
            shared,
        })
    }

    /// Returns the address bound, with the port that was picked.
    #[must_use]
    pub fn local_addr(&self) -> &EndpointAddr {
        &self.local_addr
    }

    /// Returns the socket if its address may be shared, to direct connections to one of the processes.
    #[must_use]
    pub fn shared_socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket
            .as_ref()
            .filter(|_| self.shared)
            .map(AsFd::as_fd)
    }
}

/// A [`Bound`] on a runtime.
#[derive(Debug)]
pub(super) struct Acceptor {
    socket: TokioSocket,
    address: EndpointAddr,
    _file: Option<SocketFile>,
}

#[derive(Debug)]
enum TokioSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Acceptor {
    /// Registers a socket with the current runtime; `None` when there is none.
    pub(super) fn new(bound: Bound) -> io::Result<Option<Self>> {
        let socket = match (bound.socket, &bound.local_addr) {
            (None, _) | (Some(_), EndpointAddr::None) => return Ok(None),
            (Some(socket), EndpointAddr::Tcp(_)) => {
                TokioSocket::Tcp(tokio::net::TcpListener::from_std(socket.into())?)
            }
            (Some(socket), EndpointAddr::Unix(_)) => {
                TokioSocket::Unix(tokio::net::UnixListener::from_std(socket.into())?)
            }
        };
        Ok(Some(Self {
            socket,
            address: bound.local_addr,
            _file: bound.file,
        }))
    }

    pub(super) fn address(&self) -> &EndpointAddr {
        &self.address
    }

    /// Accepts a connection. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            TokioSocket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            TokioSocket::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// A connection over either kind of socket.
pub(super) type Stream = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + AsFd + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + AsFd + Send + Unpin> Duplex for T {}

fn bind_tcp(address: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let (address, socket) = match new_socket(family(address)) {
        Err(Errno::AFNOSUPPORT) if address.ip().is_unspecified() && address.is_ipv6() => {
            let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            (ipv4, new_socket(family(ipv4))?)
        }
        socket => (address, socket?),
    };
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if share {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    }
}

fn new_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(family, SocketType::STREAM, flags, None)
}

fn bind_unix(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket(AddressFamily::UNIX)?;
    // bind(2) gives the file the mode of the socket's own inode, so it is never open to others.
    rustix::fs::fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
    match net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &address)?;
            net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::new(path)?;
    net::listen(&socket, BACKLOG)?;
    Ok((socket, file))
}

/// Removes the socket of a process that is gone, and nothing else.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let in_use = |what: &str| {
        let text = format!("{} {what}", path.display());
        io::Error::new(io::ErrorKind::AddrInUse, text)
    };
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(in_use("exists and is not a socket"));
    }
    let caller = new_socket(AddressFamily::UNIX)?;
    match net::connect(&caller, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        _ => Err(in_use("is served by another process")),
    }
}

/// Removes the file at the end, unless another one has taken its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let (path, inode) = (path.to_owned(), inode(path)?);
        Ok(Self { path, inode })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Connections that may wait while the server is full.
const BACKLOG: i32 = 128;
