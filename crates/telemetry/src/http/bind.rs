//! Binds TCP and Unix sockets to serve on.

use std::fs;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

use super::EndpointAddr;

/// A socket that listens already, on the current runtime; connections wait in its queue until it is
/// served.
///
/// The file of a Unix socket is removed when this is dropped.
#[derive(Debug, Default)]
pub struct Bound {
    socket: Socket,
    local_addr: EndpointAddr,
    file: Option<SocketFile>,
    shared: bool,
}

/// What becomes of other processes at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Refused,
    Share,
    AreReplaced,
}

#[derive(Debug, Default)]
enum Socket {
    #[default]
    None,
    Tcp(TcpListener),
    Unix(UnixListener),
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
    ///
    /// # Panics
    /// Outside a Tokio runtime, which is the one that serves it.
    pub fn new(address: &EndpointAddr) -> io::Result<Self> {
        Self::with(address, Others::Refused)
    }

    /// As [`Bound::new`], but other processes of the same user may share the address and port in the same
    /// way (`SO_REUSEPORT`). Port 0 and Unix sockets are not shared.
    ///
    /// # Errors
    /// As [`Bound::new`]; `AddrInUse` when the address belongs to a process that does not share it.
    ///
    /// # Panics
    /// As [`Bound::new`].
    pub fn shared(address: &EndpointAddr) -> io::Result<Self> {
        Self::with(address, Others::Share)
    }

    /// As [`Bound::shared`], but a Unix socket of another process is replaced once this one is served: it keeps its
    /// requests, and gets no more. Until then this one has a name beside it, which a process that is killed leaves.
    ///
    /// # Errors
    /// As [`Bound::shared`].
    ///
    /// # Panics
    /// As [`Bound::new`].
    pub fn succeeding(address: &EndpointAddr) -> io::Result<Self> {
        Self::with(address, Others::AreReplaced)
    }

    fn with(address: &EndpointAddr, others: Others) -> io::Result<Self> {
        match address {
            EndpointAddr::None => Ok(Self::default()),
            EndpointAddr::Tcp(address) => {
                let shared = others != Others::Refused && address.port() != 0;
                let listener = bind_tcp(*address, shared)?;
                Ok(Self {
                    local_addr: EndpointAddr::Tcp(listener.local_addr()?),
                    socket: Socket::Tcp(listener),
                    file: None,
                    shared,
                })
            }
            EndpointAddr::Unix(path) => {
                let (listener, file) = bind_unix(path, others == Others::AreReplaced)?;
                Ok(Self {
                    socket: Socket::Unix(listener),
                    local_addr: address.clone(),
                    file: Some(file),
                    shared: false,
                })
            }
        }
    }

    /// Returns the address bound, with the port that was picked.
    pub fn local_addr(&self) -> &EndpointAddr {
        &self.local_addr
    }

    /// Returns the socket if its address may be shared, to direct connections to one of the processes.
    pub fn shared_socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.socket {
            Socket::Tcp(listener) if self.shared => Some(listener.as_fd()),
            Socket::None | Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    /// Takes the path of a Unix socket from the process that has it, once.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        match (&mut self.file, &self.local_addr) {
            (Some(file), EndpointAddr::Unix(path)) => file.rename(path),
            _ => Ok(()),
        }
    }

    /// Accepts a connection. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::None => pending().await,
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Socket::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// A connection over either kind of socket.
pub(super) type Stream = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + AsFd + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + AsFd + Send + Unpin> Duplex for T {}

fn bind_tcp(address: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let open = |address: SocketAddr| match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let no_ipv6 = |error| Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT);
    let (address, socket) = match open(address) {
        Err(error) if no_ipv6(&error) && address.ip().is_unspecified() && address.is_ipv6() => {
            let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            (ipv4, open(ipv4)?)
        }
        socket => (address, socket?),
    };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(share)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind_unix(path: &Path, replace: bool) -> io::Result<(UnixListener, SocketFile)> {
    let socket = UnixSocket::new_stream()?;
    // bind(2) gives the file the mode of the socket's own inode, so it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let file = match socket.bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && replace => {
            check_socket(path)?;
            let beside = beside(path);
            socket.bind(&beside)?;
            SocketFile::new(&beside)?
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            socket.bind(path)?;
            SocketFile::new(path)?
        }
        bound => {
            bound?;
            SocketFile::new(path)?
        }
    };
    Ok((socket.listen(BACKLOG)?, file))
}

/// Returns a name that is another one each time.
fn beside(path: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:x}", now.unwrap_or_default().as_nanos()));
    PathBuf::from(name)
}

fn in_use(path: &Path, what: &str) -> io::Error {
    let text = format!("{} {what}", path.display());
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

fn check_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.file_type().is_socket() {
        true => Ok(()),
        false => Err(in_use(path, "exists and is not a socket")),
    }
}

/// Removes the socket of a process that is gone, and nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    check_socket(path)?;
    // Non-blocking: a queue may be full.
    let caller = UnixSocket::new_stream()?;
    match connect(&caller, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        _ => Err(in_use(path, "is served by another process")),
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

    fn rename(&mut self, path: &Path) -> io::Result<()> {
        if self.path != path {
            fs::rename(&self.path, path)?;
            self.path = path.to_owned();
        }
        Ok(())
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
const BACKLOG: u32 = 128;
