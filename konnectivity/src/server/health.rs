//! The server's probes: upstream's paths, codes and texts, and `/readyz/<cluster>[?verbose]`.
//!
//! Whether an API server was ever let in is shown by `?verbose` and decides nothing: none is led to
//! a server that is not ready. Unready is 500, as with upstream, and not the 503 of our other
//! programs. The state itself is the server's.

use telemetry::admin::Extra;

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

/// What probes depend on; answers at once.
pub(crate) trait Probed {
    /// Returns what the probes depend on.
    fn state(&self) -> State;

    /// Returns what is known of a tenant; nothing when there is no such tenant.
    fn tenant(&self, id: &str) -> Option<TenantState>;
}

/// Answers upstream's paths. It looks at the path alone: a probe may use any method.
pub(crate) fn extra(server: &impl Probed, path: &str, query: Option<&str>) -> Option<Extra> {
    match path {
        "/healthz" => Some(endpoints::text(200, "ok")),
        "/ready" | "/readyz" => Some(answer(server.state().ready())),
        _ => path
            .strip_prefix("/readyz/")
            .map(|id| tenant(server, id, endpoints::is_verbose(query))),
    }
}

fn tenant(server: &impl Probed, id: &str, verbose: bool) -> Extra {
    let Some(tenant) = server.tenant(id) else {
        return endpoints::text(404, UNKNOWN_TENANT);
    };
    // The question is whether this tenant's dials can be served from here.
    let state = State {
        agents: if tenant.ready {
            Agents::Connected
        } else {
            Agents::Missing
        },
        ..server.state()
    };
    let (status, kind, body) = answer(state.ready());
    if verbose {
        return (status, kind, tenant.verbose(&body));
    }
    (status, kind, body)
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
    /// Returns whether `/readyz` is 200, or the text of 500.
    pub(crate) fn ready(self) -> Result<(), &'static str> {
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

/// Upstream's text.
const NO_AGENT: &str = "no connection to any proxy agent";
const DRAINING: &str = "the server is draining";
const STARTING: &str = "the server is starting";
const UNKNOWN_TENANT: &str = "no such tenant";

#[cfg(test)]
mod tests;
