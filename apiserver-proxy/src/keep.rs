//! The node's side alone: its addresses and rules, kept for whatever proxy listens there.
//!
//! ```text
//!     probes bound ─▶ addresses ─▶ rules ─▶ kept until a stop signal
//! ```
//!
//! Listens at none of the addresses, connects nowhere, and does not know the proxy beside it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use net_config::NatWatch;
use serde_json::Value;
use serve::{BoundEndpoints, Drain, DrainParams, ProcessInfo, Signal, Signals};
use telemetry::{EndpointAddr, LogControl, Process, Registry, Status};

use crate::config::Config;
use crate::metrics::{self, BUILD};
use crate::node::{self, Node};
use crate::proxy::{StartError, put_in_place};

/// Keeps the addresses on the node, and the rules, until a stop signal; nothing is taken back.
///
/// # Errors
/// Why they are not all there, or probes not answered; what was put on the node stays there.
pub async fn keep(
    config: &Config,
    log: LogControl,
    mut signals: Signals,
) -> Result<(), StartError> {
    let registry = Registry::new();
    let node = metrics::register_node(&registry, &log);
    let probes = EndpointAddr::Tcp(config.probes.address());
    let endpoints = BoundEndpoints::bind_shared(probes, config.admin.address.clone())?;
    put_in_place(config, &node).await?;
    let (delay, timeout) = (Duration::ZERO, Duration::ZERO);
    let drain = Drain::new(DrainParams { delay, timeout });
    let answers: Arc<dyn Process> = Arc::new(Answers {
        info: ProcessInfo::new(BUILD, drain),
        config: settings::effective(config),
        node: Arc::clone(&node),
    });
    let _served = endpoints.serve(&answers, registry, log);
    let mut keeper = node::keeper(config, &node);
    let mut nat = NatWatch::default();
    let stopped = async {
        while signals.next().await == Signal::Reload {
            node.look_again();
        }
    };
    tokio::select! {
        () = keeper.run(pending()) => {}
        () = node.keep_no_track(config, &mut nat) => {}
        () = stopped => tracing::info!("ended"),
    }
    Ok(())
}

/// What the endpoints ask.
struct Answers {
    info: ProcessInfo,
    config: Value,
    node: Arc<Node>,
}

impl Process for Answers {
    fn binary(&self) -> &'static str {
        self.info.binary()
    }

    fn ready(&self) -> Result<(), String> {
        self.info.serving()?;
        self.node.ready()
    }

    fn config(&self) -> Value {
        self.config.clone()
    }

    fn snapshot(&self) -> Value {
        Value::Null
    }

    fn drain(&self) {
        self.info.begin_drain();
    }

    fn status(&self) -> Status {
        self.info.status()
    }
}
