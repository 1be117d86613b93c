//! What probes, scrapes and operators are told, in upstream's words where it has any.
//!
//! ```text
//! health port: /healthz  /ready  /readyz[?verbose]  /metrics
//! admin port:  the same, /config  /snapshot  /connections  /drain  /log, and a page
//! ```
//!
//! Reads the [`Board`]; asks the data thread nothing.

use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};
use telemetry::admin::Extra;
use telemetry::{ClusterStatus, EndpointStatus, Fact, Process, Status};
use tokio::time::Instant;

use super::board::{Board, View};
use super::config::AgentConfig;

/// Answers for the agent.
pub(super) struct Health {
    config: Arc<AgentConfig>,
    board: Board,
    started: Instant,
    drain: Box<dyn Fn() + Send + Sync>,
}

impl Health {
    /// Answers from `board`; `drain` begins to drain.
    pub(super) fn new(
        config: Arc<AgentConfig>,
        board: Board,
        drain: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            config,
            board,
            started: Instant::now(),
            drain: Box::new(drain),
        }
    }

    /// Says whether a server is connected, with upstream's list of checks where it gives one.
    fn readiness(&self, query: Option<&str>) -> Extra {
        let verbose = query.is_some_and(|query| {
            let mut keys = query.split('&').map(|pair| pair.split('=').next());
            keys.any(|key| key == Some("verbose"))
        });
        match self.ready() {
            Ok(()) if verbose => {
                let checks = "[+]ping ok\n[+]server-connected ok\ncheck passed\n";
                (200, TEXT, checks.to_owned())
            }
            Ok(()) => (200, TEXT, "ok".to_owned()),
            Err(why) => {
                let checks = format!("[+]ping ok\n[-]server-connected failed: {why}\n");
                (503, TEXT, checks)
            }
        }
    }

    fn sessions(&self, limit: usize) -> Value {
        let view = self.board.view();
        let sessions = view.sessions.iter().take(limit);
        sessions
            .map(|(server, session)| {
                json!({
                    "server": server,
                    "extensions": session.extensions.to_string(),
                    "age_seconds": session.since.elapsed().as_secs_f64(),
                    "tunnels": session.link.tunnels(),
                })
            })
            .collect()
    }
}

impl Process for Health {
    fn binary(&self) -> &'static str {
        "konnectivity-agent"
    }

    /// Stays ready while it drains, as upstream: it still serves what comes.
    fn ready(&self) -> Result<(), String> {
        if self.board.view().sessions.is_empty() {
            return Err("no servers connected".to_owned());
        }
        Ok(())
    }

    fn config(&self) -> Value {
        self.config.effective.clone()
    }

    fn snapshot(&self) -> Value {
        let sessions = self.sessions(usize::MAX);
        let view = self.board.view();
        json!({
            "draining": view.draining,
            "last_failure": view.last_failure,
            "servers": view.servers,
            "sessions": sessions,
        })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        let sessions = self.sessions(limit);
        Box::pin(std::future::ready(sessions))
    }

    fn drain(&self) {
        (self.drain)();
    }

    fn status(&self) -> Status {
        let view = self.board.view();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime: self.started.elapsed(),
            draining: view.draining,
            facts: facts(&self.config, &view),
            clusters: vec![servers(&view)],
            clusters_total: 1,
            ..Status::default()
        }
    }

    fn extra(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        match (method, path) {
            ("GET", "/healthz") => Some((200, TEXT, "ok".to_owned())),
            ("GET", "/ready" | "/readyz") => Some(self.readiness(query)),
            _ => None,
        }
    }

    fn extra_admin(&self, method: &str, path: &str, _: Option<&str>) -> Option<Extra> {
        let profile = method == "GET" && path.starts_with("/debug/pprof");
        profile.then(|| {
            let text = "profiles in Go's format are not available; see /metrics and /status\n";
            (404, TEXT, text.to_owned())
        })
    }
}

fn facts(config: &AgentConfig, view: &View) -> Vec<Fact> {
    let fact = |name: &str, value: String| Fact {
        name: name.to_owned(),
        value,
    };
    let server = format!("{}:{}", config.server_host, config.server_port);
    let connected = format!("{} of {}", view.sessions.len(), view.servers);
    let mut facts = vec![
        fact("agent id", config.agent_id.clone()),
        fact("identifiers", config.identifiers.to_string()),
        fact("server address", server),
        fact("servers connected", connected),
        fact("tunnels", view.tunnels().to_string()),
    ];
    let failure = view.last_failure.clone();
    facts.extend(failure.map(|failure| fact("last attempt to connect", failure)));
    facts
}

fn servers(view: &View) -> ClusterStatus {
    let endpoints = view
        .sessions
        .iter()
        .map(|(server, session)| EndpointStatus {
            address: server.clone(),
            state: "up",
            active: session.link.tunnels() as u64,
            ..EndpointStatus::default()
        });
    ClusterStatus {
        name: "servers".to_owned(),
        active: view.tunnels() as u64,
        endpoints: endpoints.collect(),
        ..ClusterStatus::default()
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
