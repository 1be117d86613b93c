//! The probe and admin endpoints, and what they need from the binary they belong to.
//!
//! ```text
//!     probe port:    /healthz  /readyz, /ready  /metrics               ┐
//!     admin address: the same, /  /status  /config  /snapshot          ├──▶ Process, Registry,
//!                    /connections  POST /drain  GET and PUT /log       ┘    LogControl
//! ```
//!
//! Binaries add endpoints of their own, on both or on the admin address only. There is no
//! authentication: any caller that reaches the admin address may drain the process, so it belongs on
//! loopback or on a Unix socket. A web page in an operator's browser is not such a caller: by TCP the
//! host has to be an address or `localhost`, and changes asked for by another site are refused.

mod routes;
mod status;

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

#[cfg(test)]
pub(crate) use routes::is_probe;
pub use routes::parameter;
pub(crate) use status::View;
pub use status::{ClusterStatus, EndpointStatus, Fact, ListenerStatus, Status};

use crate::EndpointAddr;
use crate::http::{self, Bound};
use crate::logs::LogControl;
use crate::metrics::Registry;

/// An answer to an endpoint of a binary's own: status code, content type, body.
pub type Extra = (u16, &'static str, String);

/// What the endpoints report of a binary. Everything but [`Process::connections`] returns at once.
pub trait Process: Send + Sync + 'static {
    /// Returns the binary's name.
    fn binary(&self) -> &'static str;

    /// Returns whether the process can do its job right now.
    ///
    /// # Errors
    /// The reason why not, for people.
    fn ready(&self) -> Result<(), String>;

    /// Returns whether the process should keep running, as one that merely waits for others should.
    ///
    /// # Errors
    /// The reason why not, for people.
    fn healthy(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the effective configuration, without secrets.
    fn config(&self) -> serde_json::Value;

    /// Returns the complete state the process works from: routes, peers, policies.
    fn snapshot(&self) -> serde_json::Value;

    /// Returns up to `limit` connections. It may wait for other threads; after [`ANSWER_TIMEOUT`] the
    /// caller gets 504. The default is of a process that has none.
    fn connections(
        &self,
        _limit: usize,
    ) -> Pin<Box<dyn Future<Output = serde_json::Value> + Send + '_>> {
        Box::pin(ready(json!({ "open": 0, "connections": [] })))
    }

    /// Begins to drain. Called again, it does nothing more.
    fn drain(&self);

    /// Returns what the page shows: at most some 200 clusters, those in trouble first.
    fn status(&self) -> Status;

    /// Returns what the page shows of the clusters whose names or endpoints contain `filter`,
    /// which is not empty. The default searches those of [`Process::status`] only.
    fn status_of(&self, filter: &str) -> Status {
        let mut status = self.status();
        status.clusters.retain(|cluster| cluster.matches(filter));
        status.clusters_total = status.clusters.len();
        status
    }

    /// Answers an endpoint of the binary's own, on the probe port and on the admin address. It is called
    /// first, so it can also replace one of the common ones; `HEAD` is passed as `GET`.
    fn extra(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        let _ = (method, path, query);
        None
    }

    /// As [`Process::extra`], on the admin address only.
    fn extra_admin(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        let _ = (method, path, query);
        None
    }
}

/// How long [`Process::connections`] may take.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A set of endpoints, to be served in one or more places. Clones are the same set.
#[derive(Clone)]
pub struct Endpoints {
    routes: Arc<routes::Routes>,
}

impl Endpoints {
    /// Makes those of the probe port: `/healthz`, `/readyz`, `/metrics`.
    pub fn probes(process: Arc<dyn Process>, registry: Registry, log: LogControl) -> Self {
        Self::new(process, registry, log, false)
    }

    /// Makes those of the admin address: everything.
    pub fn admin(process: Arc<dyn Process>, registry: Registry, log: LogControl) -> Self {
        Self::new(process, registry, log, true)
    }

    fn new(process: Arc<dyn Process>, registry: Registry, log: LogControl, admin: bool) -> Self {
        registry.attach(&process);
        Self {
            routes: Arc::new(routes::Routes {
                process,
                registry,
                log,
                admin,
                by_network: false,
            }),
        }
    }

    /// Serves on the current runtime until `shutdown` completes, then lets responses in progress
    /// finish for [`http::CLOSING_TIMEOUT`] at most. Dropping it closes everything at once.
    pub fn serve<F>(&self, bound: Bound, shutdown: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Future<Output = ()> + Send,
    {
        let routes = routes::Routes {
            by_network: matches!(bound.local_addr(), EndpointAddr::Tcp(_)),
            ..routes::Routes::clone(&self.routes)
        };
        http::serve(bound, Arc::new(routes), shutdown)
    }
}
