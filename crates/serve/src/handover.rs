//! Handing listeners and established relays over to a process that replaces this one on the same machine.
//!
//! ```text
//!     newcomer                                   the one that serves
//!     connects to handover.sock ──── hello ────▶ same user? a version that both know? could it serve?
//!              ◀──────────────────── sockets ─── listening ones, while it goes on accepting
//!     accepts  ───────────────────── serving ──▶ accepts no more
//!              ◀──────────────────── relays ──── at most 64, which stop
//!              ─────────────────────── taken ──▶
//!     serves   ◀──────────────────── commit ──── forgets them           … until none is left
//!     serves   ◀──────────────────── flows ───── a table with its sockets, likewise
//!     ready    ◀──────────────────── settled ─── later ones follow when they are established
//! ```
//!
//! Both hold the sockets of the batch under way and serve none of it; whatever fails before `commit` leaves
//! them with the sender, which goes on. Knows neither routes nor preambles.

mod channel;
mod flows;
mod give;
mod metrics;
mod movable;
mod take;
mod wire;

pub(crate) use flows::StoppedFlows;
pub use flows::{AskedFlows, DatagramListeners, MovableFlows, MovingFlows};
pub use metrics::HandoverMetrics;
pub use movable::{Movable, MovableRelay, Resume, Resumed};
pub(crate) use movable::{Moving, micros};
pub use take::TakenSocket;
pub(crate) use wire::HalfRecord;
#[doc(hidden)]
pub use wire::parse_message;
pub use wire::{FlowRecord, RelayRecord};

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::geteuid;
use tokio::net::UnixListener;

use self::give::Giver;
use self::take::{HandoverState, Taking};
use crate::accept::Accepting;
use crate::admin::Readiness;
use crate::listener::ToShare;
use crate::worker::Asker;

/// How processes follow each other.
#[derive(Clone, Debug)]
pub struct HandoverParams {
    /// The Unix socket at which both meet.
    pub socket: PathBuf,
    /// How long the other process may make no progress.
    pub timeout: Duration,
    /// Whether the process ends once it has handed everything over.
    pub exit: bool,
    /// The service manager's socket (`NOTIFY_SOCKET`), which is told that this is the main process now.
    pub notify: Option<String>,
}

/// Whether a process has what it needs to serve: one that has hands nothing over to one that lacks it.
pub struct HandoverConditions {
    /// Why a newcomer must take nothing yet from a process that serves.
    pub take: Box<Readiness>,
    /// Why a process that is to be replaced cannot serve, so that any newcomer is as good.
    pub keep: Box<Readiness>,
}

/// What is the same in both directions.
#[derive(Debug)]
struct Shared {
    params: HandoverParams,
    conditions: HandoverConditions,
    state: HandoverState,
    metrics: HandoverMetrics,
}

/// A process that takes over from the one that serves, if there is one, and is replaced later.
#[derive(Debug)]
pub struct Handover {
    shared: Arc<Shared>,
    socket: HandoverSocket,
    taking: Option<Taking>,
}

/// Tells probes how far a process is between two others.
#[derive(Clone, Debug)]
pub struct HandoverReadiness(Arc<Shared>);

impl Handover {
    /// Asks the process that serves for its listening sockets, which are returned: it goes on accepting until
    /// [`Handover::run`].
    ///
    /// While this process lacks what it needs, and the other one has it, it waits here.
    ///
    /// # Errors
    /// The socket's directory is not as it has to be. That the other process does not hand over is none.
    pub async fn begin(
        params: HandoverParams,
        conditions: HandoverConditions,
        metrics: HandoverMetrics,
    ) -> Result<(Self, Vec<TakenSocket>), DirectoryError> {
        let socket = HandoverSocket::bind(&params.socket)?;
        let state = HandoverState::default();
        let shared = Arc::new(Shared {
            params,
            conditions,
            state,
            metrics,
        });
        let (taking, taken) = Taking::begin(&shared).await.unzip();
        let handover = Self {
            shared,
            socket,
            taking,
        };
        Ok((handover, taken.unwrap_or_default()))
    }

    /// Returns what tells probes.
    pub fn readiness(&self) -> HandoverReadiness {
        HandoverReadiness(Arc::clone(&self.shared))
    }

    /// Returns the listener of each table of flows that is to come: each has its own sockets.
    pub fn announced(&self) -> &[String] {
        self.taking.as_ref().map_or(&[], |taking| &taking.announced)
    }

    /// Takes the relays and flows, now that the workers serve, and gives them to a newcomer later, with the
    /// listening sockets of `listening`. Never completes.
    pub async fn run(
        self,
        workers: Asker,
        accepting: Accepting,
        listening: ToShare,
        datagrams: DatagramListeners,
    ) {
        let ToShare { sockets, groups } = listening;
        let drain = accepting.drain.clone();
        let giver = Giver {
            shared: Arc::clone(&self.shared),
            accepting,
            workers: workers.clone(),
        };
        let take = async {
            match self.taking {
                Some(taking) => {
                    let socket = &self.socket;
                    taking
                        .run(&workers, &groups, socket, &datagrams, &drain)
                        .await;
                }
                None => self.socket.publish(&self.shared.params),
            }
        };
        tokio::join!(take, giver.run(&self.socket, sockets, &datagrams));
    }
}

impl Default for HandoverConditions {
    /// Those of a process that always has it.
    fn default() -> Self {
        Self {
            take: Box::new(|| Ok(())),
            keep: Box::new(|| Ok(())),
        }
    }
}

impl std::fmt::Debug for HandoverConditions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandoverConditions").finish_non_exhaustive()
    }
}

impl HandoverReadiness {
    /// Returns whether this process is the one that serves.
    ///
    /// # Errors
    /// Why not, for probes.
    pub fn ready(&self) -> Result<(), String> {
        self.0.state.ready()
    }
}

/// The directory of the socket is no place for it.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be looked at.
    #[error("handover: looking at {0}")]
    Look(PathBuf, #[source] io::Error),
    /// Others could put something there.
    #[error("handover: {0} must be a directory of user {1} with mode 0700")]
    Open(PathBuf, u32),
    /// The socket cannot be made.
    #[error("handover: listening at {0}")]
    Bind(PathBuf, #[source] io::Error),
}

/// Checks the directory of a socket at which processes follow each other, and returns it.
///
/// # Errors
/// It cannot be looked at, or is not for this user alone.
pub fn check_handover(socket: &Path) -> Result<&Path, DirectoryError> {
    let directory = match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let found = std::fs::metadata(directory);
    let found = found.map_err(|error| DirectoryError::Look(directory.to_owned(), error))?;
    let user = geteuid().as_raw();
    let is_own = found.is_dir() && found.uid() == user && found.mode() & 0o7777 == 0o700;
    match is_own {
        true => Ok(directory),
        false => Err(DirectoryError::Open(directory.to_owned(), user)),
    }
}

/// The socket of a process that can be replaced, beside its final path until it serves.
#[derive(Debug)]
struct HandoverSocket {
    listener: UnixListener,
    here: PathBuf,
    path: PathBuf,
    published: AtomicBool,
}

impl HandoverSocket {
    /// Checks the directory and listens in it.
    fn bind(path: &Path) -> Result<Self, DirectoryError> {
        let directory = check_handover(path)?;
        let look = |error| DirectoryError::Look(directory.to_owned(), error);
        let own = path.file_name().unwrap_or_default().as_encoded_bytes();
        // What processes have left that were killed before they served.
        for entry in std::fs::read_dir(directory).map_err(look)? {
            let entry = entry.map_err(look)?.path();
            let name = entry.file_name().unwrap_or_default().as_encoded_bytes();
            let is_of_one = name
                .strip_prefix(own)
                .is_some_and(|rest| rest.starts_with(b"."));
            let is_old_socket = entry.symlink_metadata().is_ok_and(|own| {
                let age = own.modified().map(|since| since.elapsed());
                let is_old = matches!(age, Ok(Ok(age)) if age > LEFT_AGE);
                own.file_type().is_socket() && is_old
            });
            if is_of_one && is_old_socket && is_left(&entry) {
                let _ = std::fs::remove_file(&entry);
            }
        }
        // In pods of their own all processes have the number 1.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let number = now.unwrap_or_default().as_nanos();
        let mut here = path.as_os_str().to_owned();
        here.push(format!(".{}-{number}", std::process::id()));
        let here = PathBuf::from(here);
        let bind = |error| DirectoryError::Bind(here.clone(), error);
        Ok(Self {
            listener: UnixListener::bind(&here).map_err(bind)?,
            path: path.to_owned(),
            here,
            published: AtomicBool::new(false),
        })
    }

    /// Takes the path once, whatever is there: the next newcomer comes here.
    fn publish(&self, params: &HandoverParams) {
        if self.published.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(Err(error)) = params.notify.as_deref().map(notify) {
            tracing::warn!(%error, "the service manager does not know of this process");
        }
        if let Err(error) = std::fs::rename(&self.here, &self.path) {
            tracing::warn!(%error, path = %self.path.display(), "no other process can take over from this one");
        }
    }
}

/// Tells the service manager that this process is the main one of its service, and ready (sd_notify(3)).
fn notify(socket: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let text = format!("READY=1\nMAINPID={}", std::process::id());
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

/// A younger socket may be that of another process that starts, and does not listen yet.
const LEFT_AGE: Duration = Duration::from_secs(10);

/// Returns whether no process listens at a socket any more.
fn is_left(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

impl Drop for HandoverSocket {
    fn drop(&mut self) {
        // Where it was never published; what was is the successor's to replace.
        let _ = std::fs::remove_file(&self.here);
    }
}
