//! The server's probes: upstream's paths, codes and texts, and `/readyz/<cluster>[?verbose]`.
//!
//! Whether an API server was ever let in is shown by `?verbose` and decides nothing: none is led to
//! a server that is not ready. Unready is 500, as with upstream, and not the 503 of our other
//! programs. The state itself is the server's.

use telemetry::admin::Extra;

use crate::endpoints::{self, text};

/// What the probe of one tenant shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantState {
    /// Whether a strategy has an agent to choose.
    pub(crate) ready: bool,
    /// How many connections of API servers were let in.
    pub(crate) frontends: u64,
}

/// Returns whether `/readyz` is 200, or the text of 500.
pub(crate) fn ready(draining: bool, agents: bool) -> Result<(), &'static str> {
    match (draining, agents) {
        (true, _) => Err("the server is draining"),
        // Upstream's text.
        (false, false) => Err("no connection to any proxy agent"),
        (false, true) => Ok(()),
    }
}

/// Answers upstream's paths; `agents` says whether the server has those it needs. It looks at the
/// path alone: a probe may use any method.
pub(crate) fn extra(
    path: &str,
    query: Option<&str>,
    draining: bool,
    agents: bool,
    tenant: impl FnOnce(&str) -> Option<TenantState>,
) -> Option<Extra> {
    let answer = |ready: Result<(), _>| match ready {
        Ok(()) => (200, "ok"),
        Err(reason) => (500, reason),
    };
    let (status, body) = match path {
        "/healthz" => (200, "ok"),
        "/ready" | "/readyz" => answer(ready(draining, agents)),
        _ => match tenant(path.strip_prefix("/readyz/")?) {
            None => (404, "no such tenant"),
            Some(tenant) => {
                // The question is whether this tenant's dials can be served from here.
                let (status, body) = answer(ready(draining, tenant.ready));
                if endpoints::is_verbose(query) {
                    return Some(text(status, verbose(tenant, body)));
                }
                (status, body)
            }
        },
    };
    Some(text(status, body))
}

/// Returns the answer `ready` with a line for each of the two sides.
fn verbose(tenant: TenantState, ready: &str) -> String {
    let agents = if tenant.ready {
        "[+]agents ok"
    } else {
        "[-]agents missing"
    };
    let frontends = match tenant.frontends {
        0 => "[-]frontends none was accepted since the start".to_owned(),
        count => format!("[+]frontends {count} accepted since the start"),
    };
    format!("{agents}\n{frontends}\n{ready}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks a server with the tenants `full`, which has agents, and `empty`, which has none.
    fn get(draining: bool, agents: bool, path: &str) -> Option<(u16, String)> {
        let (path, query) = path
            .split_once('?')
            .map_or((path, None), |(path, query)| (path, Some(query)));
        let state = |ready, frontends| Some(TenantState { ready, frontends });
        let answer = extra(path, query, draining, agents, |id| match id {
            "full" => state(true, 0),
            "empty" => state(false, 7),
            _ => None,
        });
        answer.map(|(status, _, body)| (status, body))
    }

    #[test]
    fn probes_answer_as_upstream() {
        let none = "no connection to any proxy agent";
        let full = "[+]agents ok\n[-]frontends none was accepted since the start\nok\n";
        let empty = format!("[-]agents missing\n[+]frontends 7 accepted since the start\n{none}\n");
        let draining = "the server is draining";
        for (drains, agents, paths, status, body) in [
            (false, false, &["/ready", "/readyz"][..], 500, none),
            (
                false,
                true,
                &["/ready", "/readyz", "/readyz?verbose"],
                200,
                "ok",
            ),
            (false, true, &["/readyz/full"], 200, "ok"),
            (false, true, &["/readyz/empty"], 500, none),
            (false, true, &["/readyz/full?verbose"], 200, full),
            (false, true, &["/readyz/empty?verbose=1"], 500, &empty),
            (
                true,
                true,
                &["/ready", "/readyz", "/readyz/full", "/readyz/empty"],
                500,
                draining,
            ),
        ] {
            for path in paths {
                let expected = Some((status, body.to_owned()));
                assert_eq!(get(drains, agents, path), expected, "{path}");
            }
        }
        for (drains, agents) in [(false, false), (false, true), (true, true)] {
            assert_eq!(
                get(drains, agents, "/healthz"),
                Some((200, "ok".to_owned()))
            );
            for path in ["/readyz/other", "/readyz/", "/readyz/full/x"] {
                let expected = Some((404, "no such tenant".to_owned()));
                assert_eq!(get(drains, agents, path), expected, "{path}");
            }
            assert_eq!(get(drains, agents, "/other"), None);
        }
    }
}
