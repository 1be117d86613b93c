//! The probe port and the admin address: bound early, served once the process can answer, and shared
//! with a process that takes over.
//!
//! Knows no answers; those are the [`Process`]'s.

use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use telemetry::{Bound, EndpointAddr, Endpoints, LogControl, Process, Registry};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::drain::{Drain, Phase};
use crate::shared_address::{OwnSockets, pass_over};

/// How often a process that drains looks for its successor.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The probe port or the admin address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("serving {what} on {address}")]
pub struct EndpointError {
    what: &'static str,
    address: EndpointAddr,
    #[source]
    source: io::Error,
}

type Bind = fn(&EndpointAddr) -> io::Result<Bound>;

/// The bound endpoints of probes and operators; requests queue until they are served.
#[derive(Debug)]
pub struct BoundEndpoints {
    probes: Bound,
    admin: Bound,
    /// The probes' socket, where others may be beside it.
    shared: Option<OwnSockets>,
}

impl BoundEndpoints {
    /// Binds both addresses: of `/healthz`, `/readyz`, `/metrics`, and of the same and all else.
    ///
    /// # Errors
    /// The one that could not be bound.
    ///
    /// # Panics
    /// Outside a Tokio runtime, which is the one that serves them.
    pub fn bind(probes: EndpointAddr, admin: EndpointAddr) -> Result<Self, EndpointError> {
        Self::with((probes, Bound::new), (admin, Bound::new))
    }

    /// As [`BoundEndpoints::bind`], but other processes may share the address of probes in the same way.
    /// The last one that started answers there; when one of three or more has ended, any of the others.
    /// A process that drains leaves the address to the others. The admin address is not shared.
    ///
    /// # Errors
    /// As [`BoundEndpoints::bind`].
    ///
    /// # Panics
    /// As [`BoundEndpoints::bind`].
    pub fn bind_shared(probes: EndpointAddr, admin: EndpointAddr) -> Result<Self, EndpointError> {
        Self::with((probes, Bound::shared), (admin, Bound::new))
    }

    /// As [`BoundEndpoints::bind_shared`], and the last process that started answers at the admin address too.
    ///
    /// # Errors
    /// As [`BoundEndpoints::bind`].
    ///
    /// # Panics
    /// As [`BoundEndpoints::bind`].
    pub fn bind_succeeding(
        probes: EndpointAddr,
        admin: EndpointAddr,
    ) -> Result<Self, EndpointError> {
        Self::with((probes, Bound::shared), (admin, Bound::succeeding))
    }

    fn with(
        (probes, bind_probes): (EndpointAddr, Bind),
        (admin, bind_admin): (EndpointAddr, Bind),
    ) -> Result<Self, EndpointError> {
        // First what another process may have.
        let admin = bound("admin", admin, bind_admin)?;
        let probes = bound("probes", probes, bind_probes)?;
        join(&admin);
        let shared = join(&probes);
        Ok(Self {
            probes,
            admin,
            shared,
        })
    }

    /// Serves both on the current runtime for as long as the result lives; `registry` is scraped, `/log`
    /// sets `log`.
    #[must_use]
    pub fn serve(
        self,
        process: &Arc<dyn Process>,
        registry: Registry,
        log: LogControl,
    ) -> ServedEndpoints {
        self.serve_until(process, registry, log, None)
    }

    /// As [`BoundEndpoints::serve`], and leaves a shared address of probes to another process once `drain`
    /// has begun.
    pub(crate) fn serve_until(
        self,
        process: &Arc<dyn Process>,
        registry: Registry,
        log: LogControl,
        drain: Option<Drain>,
    ) -> ServedEndpoints {
        let own: Vec<_> = self.shared.into_iter().collect();
        let left = async {
            match drain {
                Some(drain) => succeeded(drain, Phase::Unready, own).await,
                None => pending().await,
            }
        };
        let mut tasks = JoinSet::new();
        let answers = Endpoints::probes(Arc::clone(process), registry.clone(), log.clone());
        let probes = serve(&mut tasks, "probes", self.probes, answers, left);
        let answers = Endpoints::admin(Arc::clone(process), registry, log);
        let admin = serve(&mut tasks, "admin", self.admin, answers, pending());
        ServedEndpoints {
            probes,
            admin,
            _tasks: tasks,
        }
    }
}

/// Endpoints that are served; dropping it closes them.
#[derive(Debug, Default)]
pub struct ServedEndpoints {
    /// The address of the probe port.
    pub probes: EndpointAddr,
    /// The admin address.
    pub admin: EndpointAddr,
    _tasks: JoinSet<()>,
}

fn serve(
    tasks: &mut JoinSet<()>,
    what: &'static str,
    bound: Bound,
    endpoints: Endpoints,
    left: impl Future<Output = ()> + Send + 'static,
) -> EndpointAddr {
    let local = bound.local_addr().clone();
    if local != EndpointAddr::None {
        tracing::info!(address = %local, "serving {what}");
        tasks.spawn(async move {
            endpoints.serve(bound, left).await;
            tracing::info!("{what} left to another process");
        });
    }
    local
}

/// Has new connections to a shared address come to this process; returns its socket there.
fn join(bound: &Bound) -> Option<OwnSockets> {
    let socket = bound.shared_socket()?;
    let EndpointAddr::Tcp(address) = *bound.local_addr() else {
        return None;
    };
    let own = OwnSockets::new(address, &[socket]).ok();
    let others = own.as_ref().and_then(|own| own.others().ok());
    if others.is_some_and(|others| others.len() > 1) {
        tracing::warn!(%address, "several other processes share the address");
    }
    if let Err(error) = pass_to_last(&socket, own.as_ref()) {
        tracing::warn!(%error, %address, "requests may reach a process that is ending");
    }
    own
}

/// Directs new connections to a socket that has just joined others at its address.
///
/// # Errors
/// What the kernel says.
pub fn pass_to_last(socket: &impl AsFd, own: Option<&OwnSockets>) -> io::Result<()> {
    let others = own.and_then(|own| own.others().ok());
    // Where their number cannot be read, one is likely.
    let before = others.map_or(1, |others| others.len().max(1));
    pass_over(socket, u32::try_from(before).unwrap_or(u32::MAX), 1)
}

/// Waits until a drain has come to `phase` and another process listens beside one of these sockets.
pub async fn succeeded(drain: Drain, phase: Phase, own: impl AsRef<[OwnSockets]>) {
    drain.reached(phase).await;
    while !OwnSockets::are_shared(own.as_ref()) {
        sleep(POLL_INTERVAL).await;
    }
}

fn bound(what: &'static str, address: EndpointAddr, bind: Bind) -> Result<Bound, EndpointError> {
    bind(&address).map_err(|source| EndpointError {
        what,
        address,
        source,
    })
}
