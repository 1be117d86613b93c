//! The sockets of the file system on which tenants' frontends come in.
//!
//! ```text
//!   registry: wanted paths ──▶ Sockets::sync ──▶ bound, handed to a worker; or closed, unlinked
//! ```
//!
//! A path that another process serves is not taken over.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use knp_proto::TenantId;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::{mpsc, watch};

use crate::registry::{FrontendMode, Tenants, UdsSpec};

/// A socket for a worker to accept from.
pub(crate) struct Listen {
    pub(crate) listener: UnixListener,
    pub(crate) tenant: TenantId,
    pub(crate) mode: FrontendMode,
    /// Its sender is dropped once the socket is no longer wanted.
    pub(crate) stop: watch::Receiver<()>,
}

/// The sockets that are bound.
pub(crate) struct Sockets {
    workers: Vec<mpsc::Sender<Listen>>,
    /// Whether what is in the way is removed.
    replace: bool,
    bound: BTreeMap<PathBuf, Bound>,
    /// Those that are wanted and could not be bound.
    failed: BTreeSet<PathBuf>,
    next: usize,
}

/// A socket, which is unlinked when this is dropped, and then closed by its worker.
struct Bound {
    tenant: TenantId,
    spec: UdsSpec,
    _stop: watch::Sender<()>,
    /// Which file it is: by the end another process may have put its own in this place.
    file: Option<(u64, u64)>,
}

/// A socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("listening on {}", path.display())]
pub(crate) struct SocketError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Sockets {
    /// Binds nothing yet. With `replace`, a socket that no process serves is removed.
    pub(crate) fn new(workers: Vec<mpsc::Sender<Listen>>, replace: bool) -> Self {
        Self {
            workers,
            replace,
            bound: BTreeMap::new(),
            failed: BTreeSet::new(),
            next: 0,
        }
    }

    /// Returns how many are wanted and could not be bound.
    pub(crate) fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Binds what is wanted and not there, and closes what is there and not wanted. What could not be
    /// bound is tried again next time; returned is what could be the time before, or was not wanted.
    pub(crate) fn sync(&mut self, tenants: &Tenants) -> Vec<SocketError> {
        let wanted: BTreeMap<_, _> = tenants
            .all()
            .filter_map(|spec| {
                let uds = spec.uds.clone()?;
                Some((uds.path.clone(), (spec.id.clone(), uds)))
            })
            .collect();
        self.bound.retain(|path, bound| {
            let wanted = wanted.get(path);
            wanted.is_some_and(|(tenant, spec)| *tenant == bound.tenant && *spec == bound.spec)
        });
        let (mut failed, before) = (Vec::new(), std::mem::take(&mut self.failed));
        for (path, (tenant, spec)) in wanted {
            if self.bound.contains_key(&path) {
                continue;
            }
            if let Err(source) = self.bind(&path, tenant, spec) {
                self.failed.insert(path.clone());
                if !before.contains(&path) {
                    failed.push(SocketError { path, source });
                }
            }
        }
        failed
    }

    fn bind(&mut self, path: &Path, tenant: TenantId, spec: UdsSpec) -> io::Result<()> {
        let listener = bind(path, self.replace)?;
        let (_stop, stop) = watch::channel(());
        let listen = Listen {
            listener,
            tenant: tenant.clone(),
            mode: spec.mode,
            stop,
        };
        let bound = Bound {
            tenant,
            spec,
            _stop,
            file: file_at(path),
        };
        self.next += 1;
        let worker = self.workers.get(self.next % self.workers.len().max(1));
        if worker.is_none_or(|worker| worker.try_send(listen).is_err()) {
            return Err(io::Error::other("the worker does not take it"));
        }
        tracing::info!(path = %path.display(), tenant = %bound.tenant, "listening for frontends");
        self.bound.insert(path.to_owned(), bound);
        Ok(())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let path = &self.spec.path;
        if self.file != file_at(path) {
            return;
        }
        if let Err(error) = std::fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "socket already removed");
        }
    }
}

/// Returns which file is there: device and inode.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = path.symlink_metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// Binds a socket that its owner and group may connect to, as upstream's does.
fn bind(path: &Path, replace: bool) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && replace && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether there is a socket that no process answers on.
fn is_stale(path: &Path) -> bool {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|found| found.file_type().is_socket());
    is_socket && connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects without waiting: a full queue is an answer.
fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

/// For owner and group: upstream's umask of 0007.
const MODE: u32 = 0o770;
