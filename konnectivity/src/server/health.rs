//! The server's probe and admin endpoints: upstream's paths, codes and texts, and ours.
//!
//! ```text
//!     health port: /healthz  /ready  /readyz  /readyz/<cluster>[?verbose]  /metrics ┐
//!     admin port:  /metrics  /  /status  /config  /snapshot                         ├──▶ ServerView
//!                  /connections  /drain  /log                                       ┘
//! ```
//!
//! Whether an API server was ever let in is shown by `?verbose` and decides nothing: none is led to
//! a server that is not ready. Unready is 500, as with upstream, and not the 503 of our other programs. It decides nothing but
//! what to answer: the state is the server's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use telemetry::admin::Extra;
use telemetry::{Endpoints, LogControl, Process, Registry, Status};

use crate::endpoints;

/// What a server's probes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether all listeners are bound and the registry was read.
    pub(crate) started: bool,
    /// Whether it has begun to drain.
    pub(crate) draining: bool,
    /// What is known of agents.
    pub(crate) agents: Agents,
}

/// Whether a server that asks for agents has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agents {
    /// The first strategy of the only tenant has an agent to choose.
    Connected,
    /// It has none.
    Missing,
    /// The server has a registry, and is ready without agents.
    NotRequired,
}

/// What the probe of one tenant shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantState {
    /// Whether the first strategy has an agent to choose.
    pub(crate) ready: bool,
    /// How many connections of API servers were let in.
    pub(crate) frontends: u64,
}

/// What the endpoints ask the server for. Everything but [`ServerView::connections`] answers at
/// once.
pub(crate) trait ServerView: Send + Sync + 'static {
    /// Returns what the probes depend on.
    fn state(&self) -> State;

    /// Returns what is known of a tenant; nothing when there is no such tenant.
    fn tenant(&self, id: &str) -> Option<TenantState>;

    /// Returns the effective configuration, without secrets.
    fn config(&self) -> Value;

    /// Returns the active tenants with their agents.
    fn snapshot(&self) -> Value;

    /// Returns up to `limit` tunnels.
    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>>;

    /// Begins to drain. Called again, it does nothing more.
    fn drain(&self);

    /// Returns what the page shows: at most some 200 tenants, those in trouble first.
    fn status(&self) -> Status;

    /// Returns what the page shows of tenants whose names contain `filter`, which is not empty.
    fn status_of(&self, filter: &str) -> Status;
}

/// Makes the endpoints of the health port.
pub(crate) fn health(view: &Arc<dyn ServerView>, metrics: Registry, log: LogControl) -> Endpoints {
    Endpoints::probes(Arc::new(Served(Arc::clone(view))), metrics, log)
}

/// Makes the endpoints of the admin port, which has those of the health port as well.
pub(crate) fn admin(view: &Arc<dyn ServerView>, metrics: Registry, log: LogControl) -> Endpoints {
    Endpoints::admin(Arc::new(Served(Arc::clone(view))), metrics, log)
}

struct Served(Arc<dyn ServerView>);

impl Served {
    fn tenant(&self, id: &str, verbose: bool) -> Extra {
        let Some(tenant) = self.0.tenant(id) else {
            return endpoints::text(404, UNKNOWN_TENANT);
        };
        // What is asked is whether this tenant's dials can be served from here.
        let state = State {
            agents: if tenant.ready {
                Agents::Connected
            } else {
                Agents::Missing
            },
            ..self.0.state()
        };
        let (status, kind, body) = answer(state.ready());
        if verbose {
            return (status, kind, tenant.verbose(&body));
        }
        (status, kind, body)
    }
}

impl TenantState {
    /// Returns the answer `ready` with a line for each of the two sides.
    fn verbose(self, ready: &str) -> String {
        let agents = if self.ready {
            "[+]agents ok"
        } else {
            "[-]agents missing"
        };
        let frontends = match self.frontends {
            0 => "[-]frontends none was accepted since the start".to_owned(),
            count => format!("[+]frontends {count} accepted since the start"),
        };
        format!("{agents}\n{frontends}\n{ready}\n")
    }
}

impl State {
    fn ready(self) -> Result<(), &'static str> {
        if self.draining {
            return Err(DRAINING);
        }
        if !self.started {
            return Err(STARTING);
        }
        match self.agents {
            Agents::Connected | Agents::NotRequired => Ok(()),
            Agents::Missing => Err(NO_AGENT),
        }
    }
}

fn answer(ready: Result<(), &'static str>) -> Extra {
    match ready {
        Ok(()) => endpoints::text(200, "ok"),
        Err(reason) => endpoints::text(500, reason),
    }
}

impl Process for Served {
    fn binary(&self) -> &'static str {
        crate::metrics::SERVER_BUILD.binary
    }

    fn ready(&self) -> Result<(), String> {
        self.0.state().ready().map_err(str::to_owned)
    }

    fn config(&self) -> Value {
        self.0.config()
    }

    fn snapshot(&self) -> Value {
        self.0.snapshot()
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        self.0.connections(limit)
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn status(&self) -> Status {
        self.0.status()
    }

    fn status_of(&self, filter: &str) -> Status {
        self.0.status_of(filter)
    }

    /// Upstream looks at the path alone, and so does this: a probe may use any method.
    fn extra(&self, _method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        match path {
            "/healthz" => Some(endpoints::text(200, "ok")),
            "/ready" | "/readyz" => Some(answer(self.0.state().ready())),
            _ => path
                .strip_prefix("/readyz/")
                .map(|id| self.tenant(id, endpoints::is_verbose(query))),
        }
    }

    fn extra_admin(&self, _method: &str, path: &str, _query: Option<&str>) -> Option<Extra> {
        endpoints::profiles(path)
    }
}

/// Upstream's text.
const NO_AGENT: &str = "no connection to any proxy agent";
const DRAINING: &str = "the server is draining";
const STARTING: &str = "the server is starting";
const UNKNOWN_TENANT: &str = "no such tenant";

#[cfg(test)]
mod tests;
