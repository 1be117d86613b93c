//! The side that is replaced: gives listeners and relays to a newcomer.
//!
//! Holds nothing for it: a newcomer that dies or stops is given up after a while without progress, and what it
//! has not been told to serve goes on here.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telemetry::{chain, lock};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::channel::{Channel, ChannelError, Received};
use super::flows::{DatagramListeners, MovingFlows};
use super::metrics::{Direction, Outcome};
use super::wire::{BATCH, FLOWS, Message, SocketRecord, TABLE, VERSIONS};
use super::{HandoverSocket, Moving, Shared};
use crate::accept::{Accepting, Gate};
use crate::drain::Phase;
use crate::listener::SharedSocket;
use crate::shared_address::is_served;
use crate::worker::Asker;

/// How often connections that were not established are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Time after which a process that has handed over ends, if none listens; a container is started anew sooner.
const UNSERVED: Duration = Duration::from_secs(2);

/// Listening sockets of one message.
const SOCKETS: usize = 64;

/// Gives to newcomers.
#[derive(Debug)]
pub(super) struct Giver {
    pub(super) shared: Arc<Shared>,
    pub(super) accepting: Accepting,
    pub(super) workers: Asker,
}

/// Why a handover was given up.
#[derive(Debug, thiserror::Error)]
enum GiveError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("no progress for {0:?}")]
    Late(Duration),
    #[error("it takes nothing more: {0}")]
    Refused(String),
    #[error("it speaks versions {0} to {1}")]
    Version(u32, u32),
    #[error("it closed without a word")]
    Silent,
    #[error("it sent {0}, which was not expected")]
    Unexpected(String),
    #[error("it is not ready")]
    Unready,
}

impl Giver {
    /// Waits for newcomers, one after the other, and gives the first that takes it all there is. Never
    /// completes.
    pub(super) async fn run(
        self,
        socket: &HandoverSocket,
        sockets: Vec<SharedSocket>,
        datagrams: &DatagramListeners,
    ) {
        let drain = &self.accepting.drain;
        let sockets = Mutex::new(sockets);
        let closing = async {
            // A listener is closed with its last descriptor.
            drain.reached(Phase::Closing).await;
            lock(&sockets).clear();
            pending::<()>().await;
        };
        let giving = async {
            loop {
                let accepted = socket.listener.accept().await;
                let mut tables = Vec::new();
                let given = match accepted {
                    Ok((stream, _)) => self.give(stream, &sockets, &mut tables).await,
                    Err(error) => Err(ChannelError::from(error).into()),
                };
                if let Err(error) = given {
                    if error.is_none_at_all() {
                        continue; // it only looked whether a process serves, or waits to be ready
                    }
                    self.shared.metrics.ended(Direction::Out, false);
                    drain.hand_over_begins(false);
                    self.accepting.set(Gate::Open);
                    self.open_again(tables, datagrams).await;
                    let error = chain(&error).to_string();
                    tracing::warn!(error, "nothing more is handed over; this process goes on");
                    sleep(LOOK).await;
                }
            }
        };
        tokio::join!(closing, giving);
    }

    /// Returns whether this process serves new connections, and has what it needs to.
    fn serves(&self) -> bool {
        let keep = (self.shared.conditions.keep)();
        self.accepting.drain.phase() < Phase::Closing && keep.is_ok()
    }

    /// Gives everything to one newcomer; completes if that fails. Until all is given, the listeners of tables of
    /// flows that are given are in `tables`.
    async fn give(
        &self,
        stream: UnixStream,
        sockets: &Mutex<Vec<SharedSocket>>,
        tables: &mut Vec<String>,
    ) -> Result<(), GiveError> {
        let mut channel = Channel::new(stream).map_err(ChannelError::from)?;
        let given = self.give_all(&mut channel, sockets, tables).await;
        if given.is_err() {
            // It may accept with them, until it has ended.
            let channel = channel.end();
            for own in lock(sockets).iter() {
                own.group.share_until_closed(&channel);
            }
        }
        given
    }

    async fn give_all(
        &self,
        channel: &mut Channel,
        sockets: &Mutex<Vec<SharedSocket>>,
        tables: &mut Vec<String>,
    ) -> Result<(), GiveError> {
        let begun = Instant::now();
        let first = self.receive(channel).await;
        let hello = first.map_err(GiveError::first)?.message;
        let Message::Hello {
            lowest,
            highest,
            unready,
        } = hello
        else {
            return Err(GiveError::unexpected(&hello));
        };
        if unready && self.serves() {
            let reason = "it can serve, and the newcomer cannot yet".to_owned();
            let refused = Message::Refused { reason };
            self.send(channel, &refused, &[], &[]).await?;
            return Err(GiveError::Unready);
        }
        let [own_lowest, own_highest] = VERSIONS;
        let version = own_highest.min(highest);
        if version < own_lowest.max(lowest) {
            let reason = format!("versions {own_lowest} to {own_highest} are spoken here");
            let refused = Message::Refused { reason };
            self.send(channel, &refused, &[], &[]).await?;
            return Err(GiveError::Version(lowest, highest));
        }
        let agreed = Message::Agreed { version };
        self.send(channel, &agreed, &[], &[]).await?;
        tracing::info!("handing over to another process");
        self.accepting.drain.hand_over_begins(true);

        // What closes has nothing to share.
        let accepts = self.accepting.drain.phase() < Phase::Closing;
        let shared: Vec<_> = lock(sockets)
            .iter()
            .filter(|_| accepts)
            .filter_map(SharedSocket::share)
            .collect();
        self.show_sockets(channel, shared).await?;
        self.accepting.set(Gate::Paused);

        let mut moved = 0;
        for worker in 0..self.workers.count() {
            while let Some(now) = self.give_some(channel, worker).await? {
                moved += now;
            }
        }
        for worker in 0..self.workers.count() {
            while let Some((listener, now)) = self.give_flows(channel, worker).await? {
                moved += now;
                tables.push(listener);
            }
        }
        self.send(channel, &Message::Settled, &[], &[]).await?;
        // Newcomers come to it from here on, and a service manager knows of it: this process may end.
        self.expect(channel, Message::Taken).await?;
        tables.clear();
        self.accepting.set(Gate::Left);
        let addresses: BTreeSet<_> = lock(sockets)
            .drain(..)
            .filter_map(|own| own.address())
            .collect();
        self.shared.state.hand_over();
        self.shared.metrics.ended(Direction::Out, true);
        self.shared
            .metrics
            .seconds
            .observe(begun.elapsed().as_secs_f64());
        tracing::info!(
            connections = moved,
            seconds = begun.elapsed().as_secs_f64(),
            "handed over"
        );
        self.accepting.drain.hand_over(self.shared.params.exit);
        // What was not established follows, for as long as there is somewhere to go.
        let followed = self.give_later(channel).await;
        if let Err(error) = followed {
            let error = chain(&error).to_string();
            tracing::info!(error, "what is left stays here");
        }
        self.unserved(&addresses).await;
        // A newcomer that a deployment has taken back leaves this process alone, which has no listeners.
        tracing::error!("no process listens any more; this one ends, to be started anew");
        self.accepting.drain.hand_over(true);
        self.accepting.drain.cut();
        pending().await
    }

    /// Waits until no process has listened at any of the addresses for a while.
    async fn unserved(&self, addresses: &BTreeSet<SocketAddr>) {
        let mut since = Instant::now();
        loop {
            sleep(UNSERVED / 4).await;
            let served = addresses.iter().any(|address| is_served(*address));
            if served || addresses.is_empty() || self.accepting.drain.phase() > Phase::Serving {
                since = Instant::now();
            }
            if since.elapsed() >= UNSERVED {
                return;
            }
        }
    }

    /// Gives away the listening sockets, and waits until the other process accepts with them.
    async fn show_sockets(
        &self,
        channel: &mut Channel,
        shared: Vec<(String, OwnedFd)>,
    ) -> Result<(), GiveError> {
        let mut flows = Vec::new();
        for worker in 0..self.workers.count() {
            flows.extend(self.workers.flow_listeners(worker).await);
        }
        let mut rest = shared.as_slice();
        loop {
            let (batch, after) = rest.split_at(rest.len().min(SOCKETS));
            rest = after;
            let last = rest.is_empty();
            let names = batch.iter().map(|(listener, _)| SocketRecord {
                listener: listener.clone(),
            });
            let some = Message::Sockets {
                sockets: names.collect(),
                last,
                flows: if last {
                    std::mem::take(&mut flows)
                } else {
                    Vec::new()
                },
            };
            let descriptors: Vec<_> = batch.iter().map(|(_, socket)| socket.as_fd()).collect();
            self.send(channel, &some, &descriptors, &[]).await?;
            if last {
                break;
            }
        }
        drop(shared);
        self.expect(channel, Message::Serving).await
    }

    async fn give_later(&self, channel: &mut Channel) -> Result<(), GiveError> {
        loop {
            for worker in 0..self.workers.count() {
                while self.give_some(channel, worker).await?.is_some() {}
                while self.give_flows(channel, worker).await?.is_some() {}
            }
            tokio::select! {
                () = channel.gone() => return Ok(()),
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Gives a batch of a worker's relays; `None` if it has none that can move.
    async fn give_some(
        &self,
        channel: &mut Channel,
        worker: usize,
    ) -> Result<Option<usize>, GiveError> {
        let stopped = Instant::now();
        let relays = self.workers.stop(worker, BATCH).await;
        let count = relays.len();
        if count == 0 {
            return Ok(None);
        }
        let given = self.give_batch(channel, &relays).await;
        let (outcome, kept) = match &given {
            Ok(()) => (Outcome::Moved, None),
            Err(_) => (Outcome::Kept, Some(relays)),
        };
        self.workers.settle(worker, kept).await;
        self.shared.metrics.count(Direction::Out, outcome, count);
        let gap = stopped.elapsed().as_secs_f64();
        self.shared.metrics.gap.observe(gap);
        given.map(|()| Some(count))
    }

    async fn give_batch(&self, channel: &mut Channel, relays: &[Moving]) -> Result<(), GiveError> {
        let mut tail = Vec::new();
        for relay in relays {
            tail.extend_from_slice(&relay.stopped.rx.held);
            tail.extend_from_slice(&relay.stopped.tx.held);
        }
        let sockets = relays.iter().flat_map(|relay| &relay.sockets);
        let descriptors: Vec<_> = sockets.map(AsFd::as_fd).collect();
        let relays = relays.iter().map(|relay| relay.record.clone()).collect();
        self.send(channel, &Message::Relays { relays }, &descriptors, &tail)
            .await?;
        self.commit(channel).await
    }

    /// Serves listeners of datagrams again whose tables were given to a newcomer that may have died: those of
    /// which none is left here.
    async fn open_again(&self, given: Vec<String>, datagrams: &DatagramListeners) {
        let mut left = Vec::new();
        for worker in 0..self.workers.count() {
            left.extend(self.workers.flow_listeners(worker).await);
        }
        let missing = given.into_iter().filter(|name| !left.contains(name));
        self.workers.open_flows(missing, datagrams).await;
    }

    /// Gives a table of a worker's flows; `None` if it has none. Returns its listener, and how many connections.
    async fn give_flows(
        &self,
        channel: &mut Channel,
        worker: usize,
    ) -> Result<Option<(String, usize)>, GiveError> {
        let Some(stopped) = self.workers.stop_flows(worker).await else {
            return Ok(None);
        };
        let since = Instant::now();
        let (listener, count) = (stopped.table.listener.clone(), stopped.table.connections());
        let given = self.give_table(channel, &stopped.table).await;
        let outcome = match &given {
            Ok(()) => {
                stopped.moved();
                Outcome::Moved
            }
            Err(_) => Outcome::Kept,
        };
        self.shared.metrics.count(Direction::Out, outcome, count);
        let gap = since.elapsed().as_secs_f64();
        self.shared.metrics.gap.observe(gap);
        given.map(|()| Some((listener, count)))
    }

    async fn give_table(
        &self,
        channel: &mut Channel,
        table: &MovingFlows,
    ) -> Result<(), GiveError> {
        let all = table.flows.get(..TABLE).unwrap_or(&table.flows);
        let mut descriptors: Vec<_> = table.sockets.iter().map(AsFd::as_fd).collect();
        let mut rest = all;
        loop {
            let (flows, after) = rest.split_at(rest.len().min(FLOWS));
            rest = after;
            let part = Message::Flows {
                listener: table.listener.clone(),
                flows: flows.to_vec(),
                last: rest.is_empty(),
            };
            self.send(channel, &part, &descriptors, &[]).await?;
            descriptors.clear();
            if rest.is_empty() {
                return self.commit(channel).await;
            }
        }
    }

    async fn commit(&self, channel: &mut Channel) -> Result<(), GiveError> {
        self.expect(channel, Message::Taken).await?;
        self.send(channel, &Message::Commit, &[], &[]).await
    }

    async fn send(
        &self,
        channel: &mut Channel,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        tail: &[u8],
    ) -> Result<(), GiveError> {
        let sent = channel.send(message, descriptors, tail);
        Ok(self.within(sent).await??)
    }

    async fn expect(&self, channel: &mut Channel, expected: Message) -> Result<(), GiveError> {
        let message = self.receive(channel).await?.message;
        match message == expected {
            true => Ok(()),
            false => Err(GiveError::unexpected(&message)),
        }
    }

    async fn receive(&self, channel: &mut Channel) -> Result<Received, GiveError> {
        let received = self.within(channel.receive()).await??;
        if let Message::Refused { reason } = received.message {
            return Err(GiveError::Refused(reason));
        }
        Ok(received)
    }

    async fn within<T>(&self, progress: impl Future<Output = T>) -> Result<T, GiveError> {
        let limit = self.shared.params.timeout;
        let progress = timeout(limit, progress).await;
        progress.map_err(|_| GiveError::Late(limit))
    }
}

impl GiveError {
    /// Returns what a failure to receive the first message means.
    fn first(self) -> Self {
        let ended = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        match matches!(&self, Self::Channel(ChannelError::Io(error)) if ended(error)) {
            true => Self::Silent,
            false => self,
        }
    }

    fn is_none_at_all(&self) -> bool {
        matches!(self, Self::Silent | Self::Unready)
    }

    fn unexpected(message: &Message) -> Self {
        Self::Unexpected(format!("{message:?}").chars().take(80).collect())
    }
}
