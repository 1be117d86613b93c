//! The side that is replaced: gives listeners and relays to a newcomer.
//!
//! Holds nothing for it: a newcomer that dies or stops is given up after a while without progress, and what it
//! has not been told to serve goes on here.

use std::future::pending;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telemetry::{chain, lock};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::channel::{Channel, ChannelError, Received};
use super::flows::MovingFlows;
use super::metrics::{Fate, Way};
use super::wire::{BATCH, FLOWS, Message, SocketRecord, TABLE, VERSIONS};
use super::{HandoverSocket, Moving, OpenFlows, Shared};
use crate::accept::{Accepting, Gate};
use crate::drain::Phase;
use crate::listener::SharedSocket;
use crate::worker::Asker;

/// How often connections that were not established are looked for.
const LOOK: Duration = Duration::from_millis(50);

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
    #[error("it speaks versions {0} to {1}")]
    Version(u32, u32),
    #[error("it says {0} out of turn")]
    Turn(String),
}

impl Giver {
    /// Waits for newcomers, one after the other, and gives the first that takes it all there is. Never
    /// completes.
    pub(super) async fn run(
        self,
        socket: &HandoverSocket,
        sockets: Vec<SharedSocket>,
        open: &OpenFlows,
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
                    self.shared.metrics.ended(Way::Out, false);
                    self.accepting.set(Gate::Open);
                    self.open_again(tables, open).await;
                    let error = chain(&error).to_string();
                    tracing::warn!(error, "nothing more is handed over; this process goes on");
                    sleep(LOOK).await;
                }
            }
        };
        tokio::join!(closing, giving);
    }

    /// Gives everything to one newcomer; completes if that fails, and when the newcomer is gone afterwards. Until
    /// all is given, the listeners of tables of flows that are given are in `tables`.
    async fn give(
        &self,
        stream: UnixStream,
        sockets: &Mutex<Vec<SharedSocket>>,
        tables: &mut Vec<String>,
    ) -> Result<(), GiveError> {
        let begun = Instant::now();
        let mut channel = Channel::new(stream).map_err(ChannelError::from)?;
        let hello = self.receive(&mut channel).await?.message;
        let Message::Hello { lowest, highest } = hello else {
            return Err(GiveError::turn(&hello));
        };
        let [own_lowest, own_highest] = VERSIONS;
        let version = own_highest.min(highest);
        if version < own_lowest.max(lowest) {
            let reason = format!("versions {own_lowest} to {own_highest} are spoken here");
            let refused = Message::Refused { reason };
            self.send(&mut channel, &refused, &[], &[]).await?;
            return Err(GiveError::Version(lowest, highest));
        }
        let agreed = Message::Agreed { version };
        self.send(&mut channel, &agreed, &[], &[]).await?;
        tracing::info!("handing over to another process");

        let shared: Vec<_> = lock(sockets)
            .iter()
            .filter_map(SharedSocket::share)
            .collect();
        let mut batches = shared.chunks(SOCKETS).peekable();
        let mut flows = Vec::new();
        for worker in 0..self.workers.count() {
            flows.extend(self.workers.flow_listeners(worker).await);
        }
        if batches.peek().is_none() {
            let (sockets, last) = (Vec::new(), true);
            let flows = std::mem::take(&mut flows);
            let none = Message::Sockets {
                sockets,
                last,
                flows,
            };
            self.send(&mut channel, &none, &[], &[]).await?;
        }
        while let Some(batch) = batches.next() {
            let names = batch.iter().map(|(listener, _)| SocketRecord {
                listener: listener.clone(),
            });
            let (sockets, last) = (names.collect(), batches.peek().is_none());
            let descriptors: Vec<_> = batch.iter().map(|(_, socket)| socket.as_fd()).collect();
            let flows = match last {
                true => std::mem::take(&mut flows),
                false => Vec::new(),
            };
            let some = Message::Sockets {
                sockets,
                last,
                flows,
            };
            self.send(&mut channel, &some, &descriptors, &[]).await?;
        }
        drop(shared);
        self.expect(&mut channel, Message::Serving).await?;
        self.accepting.set(Gate::Paused);

        let mut moved = 0;
        for worker in 0..self.workers.count() {
            while let Some(now) = self.give_some(&mut channel, worker).await? {
                moved += now;
            }
        }
        for worker in 0..self.workers.count() {
            while let Some((listener, now)) = self.give_flows(&mut channel, worker).await? {
                moved += now;
                tables.push(listener);
            }
        }
        self.send(&mut channel, &Message::Settled, &[], &[]).await?;
        tables.clear();
        self.accepting.set(Gate::Left);
        lock(sockets).clear();
        self.shared.state.hand_over();
        self.shared.metrics.ended(Way::Out, true);
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
        // What was not established follows.
        loop {
            for worker in 0..self.workers.count() {
                while self.give_some(&mut channel, worker).await?.is_some() {}
                while self.give_flows(&mut channel, worker).await?.is_some() {}
            }
            sleep(LOOK).await;
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
        let (fate, kept) = match &given {
            Ok(()) => (Fate::Moved, None),
            Err(_) => (Fate::Kept, Some(relays)),
        };
        self.workers.settle(worker, kept).await;
        self.shared.metrics.count(Way::Out, fate, count);
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
    async fn open_again(&self, given: Vec<String>, open: &OpenFlows) {
        let mut left = Vec::new();
        for worker in 0..self.workers.count() {
            left.extend(self.workers.flow_listeners(worker).await);
        }
        let missing = given.into_iter().filter(|name| !left.contains(name));
        self.workers.open_flows(missing, open).await;
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
        let fate = match &given {
            Ok(()) => {
                stopped.moved();
                Fate::Moved
            }
            Err(_) => Fate::Kept,
        };
        self.shared.metrics.count(Way::Out, fate, count);
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
            false => Err(GiveError::turn(&message)),
        }
    }

    async fn receive(&self, channel: &mut Channel) -> Result<Received, GiveError> {
        Ok(self.within(channel.receive()).await??)
    }

    async fn within<T>(&self, progress: impl Future<Output = T>) -> Result<T, GiveError> {
        let limit = self.shared.params.timeout;
        let progress = timeout(limit, progress).await;
        progress.map_err(|_| GiveError::Late(limit))
    }
}

impl GiveError {
    fn turn(message: &Message) -> Self {
        Self::Turn(format!("{message:?}").chars().take(80).collect())
    }
}
