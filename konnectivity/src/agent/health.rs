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
use serve::ProcessInfo;
use telemetry::admin::Extra;
use telemetry::{ClusterStatus, EndpointStatus, Fact, Process, Status};

use super::board::{Board, View};
use super::config::AgentConfig;
use crate::endpoints::{self, fact};

/// Answers for the agent.
pub(super) struct Health {
    pub(super) config: Arc<AgentConfig>,
    pub(super) board: Board,
    pub(super) info: ProcessInfo,
}

impl Health {
    /// Answers whether a server is connected, with upstream's list of checks where it gives one.
    fn readiness(&self, query: Option<&str>) -> Extra {
        match self.ready() {
            Ok(()) if endpoints::is_verbose(query) => {
                let checks = "[+]ping ok\n[+]server-connected ok\ncheck passed\n";
                endpoints::text(200, checks)
            }
            Ok(()) => endpoints::text(200, "ok"),
            Err(why) => {
                let checks = format!("[+]ping ok\n[-]server-connected failed: {why}\n");
                endpoints::text(503, checks)
            }
        }
    }

    fn links(&self, limit: usize) -> Value {
        let view = self.board.view();
        let links = view.links.iter().take(limit);
        links
            .map(|(server, info)| {
                json!({
                    "server": server,
                    "extensions": info.extensions.to_string(),
                    "age_seconds": info.since.elapsed().as_secs_f64(),
                    "tunnels": info.link.tunnels(),
                })
            })
            .collect()
    }
}

impl Process for Health {
    fn binary(&self) -> &'static str {
        self.info.binary()
    }

    /// Stays ready while it drains, as upstream: it still serves what comes.
    fn ready(&self) -> Result<(), String> {
        if self.board.view().links.is_empty() {
            return Err("no servers connected".to_owned());
        }
        Ok(())
    }

    fn config(&self) -> Value {
        self.config.effective.clone()
    }

    fn snapshot(&self) -> Value {
        let links = self.links(usize::MAX);
        let view = self.board.view();
        json!({
            "draining": self.info.serving().is_err(),
            "last_failure": view.last_failure,
            "links": links,
            "servers": view.servers,
        })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        let links = self.links(limit);
        Box::pin(std::future::ready(links))
    }

    fn drain(&self) {
        self.info.begin_drain();
    }

    fn status(&self) -> Status {
        let view = self.board.view();
        Status {
            facts: facts(&self.config, &view),
            clusters: vec![servers(&view)],
            clusters_total: 1,
            ..self.info.status()
        }
    }

    fn extra(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        match (method, path) {
            ("GET", "/healthz") => Some(endpoints::text(200, "ok")),
            ("GET", "/ready" | "/readyz") => Some(self.readiness(query)),
            _ => None,
        }
    }

    fn extra_admin(&self, _method: &str, path: &str, _query: Option<&str>) -> Option<Extra> {
        endpoints::profiles(path)
    }
}

fn facts(config: &AgentConfig, view: &View) -> Vec<Fact> {
    let server = format!("{}:{}", config.server_host, config.server_port);
    let connected = format!("{} of {}", view.links.len(), view.servers);
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
    let endpoints = view.links.iter().map(|(server, info)| EndpointStatus {
        address: server.clone(),
        state: "up",
        active: info.link.tunnels() as u64,
        ..EndpointStatus::default()
    });
    ClusterStatus {
        name: "servers".to_owned(),
        active: view.tunnels() as u64,
        endpoints: endpoints.collect(),
        ..ClusterStatus::default()
    }
}
