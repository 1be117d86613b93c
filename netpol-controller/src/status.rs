//! What probes and operators are reported the controller.
//!
//! The reconciler publishes a summary every second and on every change of state; requests read the
//! last one without waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use telemetry::{Fact, Process, Status};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::BUILD;
use crate::plan::Problem;
use crate::routes::GatewayEntry;
use crate::state::Kind;

/// Problems that are listed; beside the total number.
pub(crate) const LISTED: usize = 1000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) synced: bool,
    pub(crate) leading: bool,
    pub(crate) services: usize,
    pub(crate) namespaces: usize,
    pub(crate) policies: usize,
    pub(crate) waiting: usize,
    /// Kinds that have not been listed yet; `None` before it is known which there are.
    pub(crate) unlisted: Option<BTreeSet<Kind>>,
    /// The first ones, and how many there are.
    pub(crate) problems: Vec<Problem>,
    pub(crate) problems_total: usize,
    /// By name, for each gateway; none when routes are not served.
    pub(crate) gateways: BTreeMap<String, GatewaySummary>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GatewaySummary {
    pub(crate) routes: usize,
    pub(crate) clusters: usize,
    pub(crate) withheld_total: usize,
    /// Some of those, with why.
    pub(crate) withheld: Vec<String>,
}

pub(crate) struct Answers {
    pub(crate) summary: watch::Receiver<Arc<Summary>>,
    pub(crate) config: Value,
    /// What of it changes.
    pub(crate) gateways: watch::Receiver<Vec<GatewayEntry>>,
    pub(crate) started: Instant,
    pub(crate) clients: Option<xds::Server>,
}

impl Process for Answers {
    fn binary(&self) -> &'static str {
        BUILD.binary
    }

    fn ready(&self) -> Result<(), String> {
        let summary = Arc::clone(&self.summary.borrow());
        if summary.synced {
            return Ok(());
        }
        match &summary.unlisted {
            None => Err("the API server has not answered yet".to_owned()),
            Some(kinds) => {
                let names: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
                Err(format!("not listed yet: {}", names.join(", ")))
            }
        }
    }

    fn config(&self) -> Value {
        let mut config = self.config.clone();
        config["controllers"]["routing"]["gateways"] = json!(*self.gateways.borrow());
        config
    }

    fn snapshot(&self) -> Value {
        let summary = Arc::clone(&self.summary.borrow());
        let problem = |problem: &Problem| {
            json!({
                "object": problem.object.to_string(),
                "reason": problem.reason.as_str(),
                "message": problem.message,
            })
        };
        json!({
            "synced": summary.synced,
            "leading": summary.leading,
            "services": summary.services,
            "namespaces": summary.namespaces,
            "policies": summary.policies,
            "waiting": summary.waiting,
            "problems": summary.problems.iter().map(problem).collect::<Vec<_>>(),
            "problemsTotal": summary.problems_total,
            "gateways": summary.gateways,
            "clients": self.clients.as_ref().map(xds::Server::clients),
        })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        let clients = self.clients.as_ref().map(xds::Server::clients);
        let mut clients = clients.unwrap_or_default();
        clients.truncate(limit);
        Box::pin(ready(json!(clients)))
    }

    /// There is nothing to drain: SIGTERM ends the process within a second.
    fn drain(&self) {}

    fn status(&self) -> Status {
        let summary = Arc::clone(&self.summary.borrow());
        let fact = |name: &str, value: String| Fact {
            name: name.to_owned(),
            value,
        };
        let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let mut facts = vec![
            fact("everything listed", word(summary.synced)),
            fact("leading", word(summary.leading)),
            fact("services", summary.services.to_string()),
            fact("namespaces", summary.namespaces.to_string()),
            fact("policies", summary.policies.to_string()),
            fact("waiting", summary.waiting.to_string()),
            fact("problems", summary.problems_total.to_string()),
        ];
        for (name, gateway) in &summary.gateways {
            let figures = format!("{} routes, {} clusters", gateway.routes, gateway.clusters);
            facts.push(fact(&format!("gateway {name}"), figures));
        }
        for problem in summary.problems.iter().take(20) {
            let what = format!("{}: {}", problem.reason.as_str(), problem.message);
            facts.push(fact(&problem.object.to_string(), what));
        }
        Status {
            version: BUILD.version,
            uptime: self.started.elapsed(),
            facts,
            ..Status::default()
        }
    }
}
