//! The data thread: finds servers, serves their streams, and ends when it is drained.
//!
//! ```text
//!                     ┌── due ──▶ attempt ──▶ Connector: keep? ──▶ link ──▶ tunnels
//!   drain, leases  ──▶│◀───────── lost ◀───────────────────────────┘
//!                     └── draining and idle ──▶ end
//! ```
//!
//! One attempt to connect at a time. Everything of a tunnel happens on this thread; what others may
//! know of it is on the [`Board`].

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use knp_proto::{Budget, LinkConfig, StreamId, Tenant, TenantId};
use serve::{Drain, Phase};
use tls::ClientTls;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::board::{Board, LinkInfo};
use super::config::AgentConfig;
use super::connect::{Connector, Verdict};
use super::dial::Dialer;
use super::server_link::{self, Links, OpenError, Opened};
use super::tunnel::Tunnels;
use crate::link::now;
use crate::metrics::{AgentMetrics, ConnectResult, GrpcCode};
use crate::pump::LinkEnd;

/// Without a tunnel for this long, a draining agent exits; nor does it before.
const IDLE: Duration = Duration::from_secs(5);

/// How often a draining agent looks whether it is idle.
const IDLE_CHECK: Duration = Duration::from_millis(100);

/// How much later than the dialler the link gives a dial up.
const DIAL_MARGIN: Duration = Duration::from_secs(2);

/// Servers whose drain may wait to be handled.
const DRAINS: usize = 64;

/// How long what streams said last may take to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// What the thread is given.
pub(super) struct Task {
    pub(super) config: Arc<AgentConfig>,
    pub(super) tls: ClientTls,
    pub(super) metrics: Arc<AgentMetrics>,
    pub(super) board: Board,
    pub(super) drain: Drain,
    /// Changes with each request to read files again; closed when the agent is gone.
    pub(super) reloads: watch::Receiver<()>,
    pub(super) leases: watch::Receiver<Option<u32>>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Opened, OpenError>>>>;

struct Worker {
    task: Task,
    links: Rc<Links>,
    connector: Connector,
    attempt: Option<Attempt>,
    running: JoinSet<LinkEnd>,
    /// Whose stream each task serves.
    servers: HashMap<Id, String>,
    /// Servers that drain; each says so once.
    drains: (mpsc::Sender<String>, mpsc::Receiver<String>),
    streams: u64,
    /// At which of the server's addresses the first attempt begins: not all agents at the same.
    first_address: u64,
    chance: RandomState,
    rolls: u64,
    draining_since: Option<Instant>,
    ended: bool,
}

/// Serves until the agent is drained, or told to end.
pub(super) async fn run(task: Task) {
    let config = Arc::clone(&task.config);
    let budget = Budget::new(config.limits.buffered_bytes);
    task.metrics.budget(&budget);
    let tenant = Tenant::new(TenantId::new("agent"), config.limits, budget);
    let link = LinkConfig {
        // The dialler is first, and has the better text.
        dial_timeout: config.dial.timeout + DIAL_MARGIN,
        ..config.link
    };
    let tunnels = Tunnels::new(Dialer::new(config.dial.clone()), task.metrics.clone());
    let chance = RandomState::new();
    let mut worker = Worker {
        connector: Connector::new(config.connect, now()),
        links: Rc::new(Links {
            config,
            tenant,
            params: link,
            tls: task.tls.clone(),
            tunnels,
        }),
        task,
        attempt: None,
        running: JoinSet::new(),
        servers: HashMap::new(),
        drains: mpsc::channel(DRAINS),
        streams: 0,
        first_address: chance.hash_one(0),
        chance,
        rolls: 0,
        draining_since: None,
        ended: false,
    };
    while !worker.ended {
        worker.step().await;
    }
    worker.end().await;
}

impl Worker {
    /// Waits for the next thing that happens, and acts on it.
    async fn step(&mut self) {
        self.publish();
        let due = self.connector.due().filter(|_| self.attempt.is_none());
        let due = due.map(Instant::from_std);
        let draining = self.draining_since.is_some();
        let next = if draining { Phase::Cut } else { Phase::Unready };
        tokio::select! {
            () = self.task.drain.reached(next) => match draining {
                true => {
                    tracing::info!(grace = ?self.links.config.grace, "drain timed out");
                    self.ended = true;
                }
                false => self.begin_drain(),
            },
            changed = self.task.reloads.changed() => match changed {
                Ok(()) => self.links.tunnels.dialer.reload(),
                // The agent is gone: nothing else would end this thread.
                Err(_) => self.ended = true,
            },
            Some(()) = OptionFuture::from(due.map(sleep_until)) => self.begin(),
            Some(opened) = OptionFuture::from(self.attempt.as_mut()) => {
                self.attempt = None;
                self.opened(opened);
            }
            Some(ended) = self.running.join_next_with_id() => self.ended(ended),
            Some(server) = self.drains.1.recv() => {
                tracing::info!(server, "server draining");
                let random = self.random();
                self.connector.server_drains(now(), random, &server);
            }
            Ok(()) = self.task.leases.changed() => {
                let count = *self.task.leases.borrow_and_update();
                let random = self.random();
                self.connector.counted(now(), random, count);
            }
            () = sleep(IDLE_CHECK), if draining => self.end_if_idle(),
        }
    }

    fn begin_drain(&mut self) {
        self.connector.drain();
        self.attempt = None;
        self.draining_since = Some(Instant::now());
        self.links.tunnels.metrics.draining.set(1);
        for info in self.task.board.view().links.values() {
            info.link.drain();
        }
    }

    fn end_if_idle(&mut self) {
        let tunnels = &self.links.tunnels;
        let (Some(draining), Some(idle)) = (self.draining_since, tunnels.idle_since()) else {
            return;
        };
        let since = draining.max(idle);
        if since.elapsed() >= IDLE && self.task.board.view().tunnels() == 0 {
            tracing::info!(idle = ?IDLE, "drained");
            self.ended = true;
        }
    }

    fn begin(&mut self) {
        self.streams += 1;
        let stream = StreamId(self.streams);
        let first = self.first_address.wrapping_add(self.streams);
        let links = Rc::clone(&self.links);
        self.attempt = Some(Box::pin(async move { links.open(stream, first).await }));
    }

    fn opened(&mut self, opened: Result<Opened, OpenError>) {
        let random = self.random();
        let metrics = &self.links.tunnels.metrics;
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let error = telemetry::chain(&error).to_string();
                tracing::warn!(error, "connecting to a server failed");
                metrics.connected(ConnectResult::Failed);
                self.task.board.view().last_failure = Some(error);
                self.connector.failed(now(), random);
                return;
            }
        };
        let introduction = &opened.introduction;
        let (server, count) = (&introduction.server_id, introduction.server_count);
        match (self.connector).connected(now(), random, server, count) {
            Verdict::Duplicate => {
                tracing::debug!(server, count, "server already connected");
                metrics.connected(ConnectResult::Duplicate);
            }
            Verdict::Keep => {
                tracing::info!(server, count, extensions = %introduction.extensions, "connected");
                metrics.connected(ConnectResult::Connected);
                self.serve(opened);
            }
        }
    }

    fn serve(&mut self, opened: Opened) {
        let server = opened.introduction.server_id.clone();
        let info = LinkInfo {
            extensions: opened.introduction.extensions,
            since: Instant::now(),
            link: opened.link.clone(),
        };
        let mut view = self.task.board.view();
        view.last_failure = None;
        view.links.insert(server.clone(), info);
        drop(view);
        let tunnels = Rc::clone(&self.links.tunnels);
        let (drains, draining) = (self.drains.0.clone(), server.clone());
        // Those for whom there is no space are found when their streams end.
        let drains = move || drop(drains.try_send(draining.clone()));
        let task = self.running.spawn_local(opened.serve(tunnels, drains));
        self.servers.insert(task.id(), server);
    }

    fn ended(&mut self, ended: Result<(Id, LinkEnd), JoinError>) {
        let (id, reason) = match &ended {
            Ok((id, end)) => (*id, end.reason()),
            Err(error) => (error.id(), "internal"),
        };
        let Some(server) = self.servers.remove(&id) else {
            return;
        };
        let info = self.task.board.view().links.remove(&server);
        let lasted = info.map(|info| info.since.elapsed());
        match ended {
            Ok((_, end)) => {
                let error = telemetry::chain(&end).to_string();
                tracing::warn!(server, reason, error, ?lasted, "server stream ended");
                self.count(&end);
            }
            Err(error) => tracing::error!(server, %error, "stream task failed"),
        }
        let random = self.random();
        self.connector.lost(now(), random, &server);
    }

    /// Counts the end of a stream, unless it is as it should be.
    fn count(&self, end: &LinkEnd) {
        let metrics = &self.links.tunnels.metrics;
        match end {
            LinkEnd::Closed(_) => {}
            LinkEnd::Finished(status) => {
                let code = server_link::code(status.as_deref());
                if code != GrpcCode::OK {
                    metrics.link.received.error(code, None);
                    metrics.server_failure();
                }
            }
            // Where there is an error of the stream, the pump has counted that.
            LinkEnd::Link(_) | LinkEnd::Silent | LinkEnd::Stream(_) => metrics.server_failure(),
        }
    }

    fn publish(&self) {
        let servers = self.connector.servers();
        self.task.board.view().servers = servers;
        (self.links.tunnels.metrics.known_servers).set(servers.into());
    }

    /// Ends all streams, and waits a little for the servers to be told.
    async fn end(mut self) {
        self.attempt = None;
        // A stream that is dropped is reset: only servers end it with a status. Its tunnels end with
        // the thread.
        self.running.shutdown().await;
        self.task.board.view().links.clear();
        sleep(FLUSH_TIMEOUT).await;
    }

    fn random(&mut self) -> u64 {
        self.rolls += 1;
        self.chance.hash_one(self.rolls)
    }
}
