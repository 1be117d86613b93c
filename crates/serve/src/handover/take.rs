//! The side that replaces: takes listeners and relays from the process that serves.
//!
//! Fails softly: where nothing serves, or what serves does not talk, the process starts as if there were no
//! handover.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use socket2::{SockRef, Type};
use telemetry::chain;
use tokio::time::{Instant, sleep, timeout};

use super::channel::{Channel, ChannelError, Received};
use super::flows::{DatagramListeners, MovingFlows};
use super::metrics::{Direction, Outcome};
use super::wire::{Message, RelayRecord, VERSIONS, WireError, check_flows, split_held};
use super::{HandoverSocket, Moving, Shared};
use crate::drain::{Drain, Phase};
use crate::reuse_port::ReusePortGroup;
use crate::worker::Asker;

/// How far a process is between two others.
#[derive(Debug, Default)]
pub(super) struct HandoverState(AtomicU8);

/// A listening socket of the process that serves.
#[derive(Debug)]
pub struct TakenSocket {
    pub(crate) listener: String,
    pub(crate) socket: TcpListener,
}

/// A handover that has begun.
#[derive(Debug)]
pub(super) struct Taking {
    shared: Arc<Shared>,
    channel: Channel,
    begun: Instant,
    /// The listener of each table of flows that is to come.
    pub(super) announced: Vec<String>,
    /// The listener of each that came from where it is here.
    came: Vec<String>,
    /// Tables given to workers.
    tables: usize,
}

#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it hands nothing over: {0}")]
    Refused(String),
    #[error("no progress for {0:?}")]
    Late(Duration),
    #[error("this process was told to stop")]
    Stopping,
    #[error("it sent {0}, which was not expected")]
    Unexpected(String),
}

/// Time for what the other process sent before a channel was shut, or its end, to be noticed.
const SHUT_LIMIT: Duration = Duration::from_secs(1);

/// How often a process that is not ready asks the one that serves.
const ASK: Duration = Duration::from_secs(1);

/// How often it looks whether it is.
const LOOK: Duration = Duration::from_millis(50);

const TAKING: u8 = 1;
const HANDED_OVER: u8 = 2;

impl HandoverState {
    /// Returns whether this process is the one that serves.
    ///
    /// # Errors
    /// Why not, for probes.
    pub(super) fn ready(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) {
            TAKING => Err("taking over".to_owned()),
            HANDED_OVER => Err("handed over".to_owned()),
            _ => Ok(()),
        }
    }

    pub(super) fn hand_over(&self) {
        self.0.store(HANDED_OVER, Ordering::Relaxed);
    }

    fn take(&self, taking: bool) {
        self.0.store(u8::from(taking) * TAKING, Ordering::Relaxed);
    }
}

async fn begin(
    path: &Path,
    limit: Duration,
    unready: bool,
) -> Result<(Channel, Vec<TakenSocket>, Vec<String>), TakeError> {
    let mut channel = Channel::connect(path).await.map_err(ChannelError::from)?;
    let [lowest, highest] = VERSIONS;
    let hello = Message::Hello {
        lowest,
        highest,
        unready,
    };
    within(limit, channel.send(&hello, &[], &[])).await??;
    let answer = within(limit, channel.receive()).await??.message;
    if let Message::Refused { reason } = answer {
        return Err(TakeError::Refused(reason));
    }
    let is_known = |version| (lowest..=highest).contains(&version);
    if !matches!(answer, Message::Agreed { version } if is_known(version)) {
        return Err(TakeError::unexpected(&answer));
    }
    let (mut sockets, mut announced) = (Vec::new(), Vec::new());
    loop {
        let received = within(limit, channel.receive()).await??;
        let Message::Sockets {
            sockets: names,
            last,
            flows,
        } = received.message
        else {
            return Err(TakeError::unexpected(&received.message));
        };
        announced.extend(flows);
        for (name, socket) in names.into_iter().zip(received.descriptors) {
            if SockRef::from(&socket).is_listener().unwrap_or(false) {
                sockets.push(TakenSocket {
                    listener: name.listener,
                    socket: socket.into(),
                });
            }
        }
        if last {
            return Ok((channel, sockets, announced));
        }
    }
}

impl Taking {
    /// Asks the process that serves for its listening sockets; `None` if there is none, or it does not hand over.
    /// While there is one that is ready, waits until this one is.
    pub(super) async fn begin(shared: &Arc<Shared>) -> Option<(Self, Vec<TakenSocket>)> {
        let params = &shared.params;
        let mut report = Instant::now();
        while let Err(why) = (shared.conditions.take)() {
            let asked = Instant::now();
            match Self::ask(shared, true).await {
                Ok(begun) => return Some(begun),
                Err(error) if error.is_absent() => return None,
                // Whatever it says: it may serve, and this process could not.
                Err(error) if asked >= report => {
                    let error = chain(&error).to_string();
                    tracing::warn!(why, error, "not ready: the other process goes on serving");
                    report = asked + params.timeout;
                }
                Err(_) => {}
            }
            while (shared.conditions.take)().is_err() && asked.elapsed() < ASK {
                sleep(LOOK).await;
            }
        }
        match Self::ask(shared, false).await {
            Ok(begun) => Some(begun),
            Err(error) if error.is_absent() => None,
            Err(error) => {
                shared.metrics.ended(Direction::In, false);
                tracing::warn!(error = %chain(&error), "nothing is taken over from the other process");
                None
            }
        }
    }

    async fn ask(
        shared: &Arc<Shared>,
        unready: bool,
    ) -> Result<(Self, Vec<TakenSocket>), TakeError> {
        let (begun, params) = (Instant::now(), &shared.params);
        let (channel, sockets, announced) = begin(&params.socket, params.timeout, unready).await?;
        tracing::info!(sockets = sockets.len(), "taking over from another process");
        shared.state.take(true);
        let taking = Self {
            shared: Arc::clone(shared),
            channel,
            begun,
            announced,
            came: Vec::new(),
            tables: 0,
        };
        Ok((taking, sockets))
    }

    /// Takes the relays, once this process accepts connections, and then leaves its own socket to newcomers.
    /// Completes when the other process is gone.
    pub(super) async fn run(
        mut self,
        workers: &Asker,
        groups: &[Weak<ReusePortGroup>],
        socket: &HandoverSocket,
        datagrams: &DatagramListeners,
        drain: &Drain,
    ) {
        let shared = Arc::clone(&self.shared);
        let mut settled = false;
        let publish = || socket.publish(&shared.params);
        let settle = || {
            for group in groups.iter().filter_map(Weak::upgrade) {
                group.share(false);
            }
            shared.state.take(false);
        };
        let both = (publish, settle);
        let ended = self
            .take_all(workers, both, &mut settled, datagrams, drain)
            .await;
        let stopping = matches!(ended, Err(TakeError::Stopping));
        let error = ended.map_or_else(|error| chain(&error).to_string(), |()| String::new());
        // The other process learns of it before it gives up more.
        let channel = self.channel.refuse(error.clone());
        for group in groups.iter().filter_map(Weak::upgrade) {
            group.share_until_closed(&channel);
        }
        drop(channel);
        if stopping {
            tracing::info!("nothing more is taken over, since this process stops");
        } else if !settled {
            open_rest(workers, datagrams, &self.announced, &self.came).await;
            shared.metrics.ended(Direction::In, false);
            tracing::warn!(%error, "the rest is not taken over; this process serves what it has");
            socket.publish(&shared.params);
            shared.state.take(false);
        }
    }

    async fn take_all(
        &mut self,
        workers: &Asker,
        (publish, settle): (impl Fn(), impl Fn()),
        settled: &mut bool,
        datagrams: &DatagramListeners,
        drain: &Drain,
    ) -> Result<(), TakeError> {
        let limit = self.shared.params.timeout;
        let mut next = 0;
        within(limit, self.channel.send(&Message::Serving, &[], &[])).await??;
        let mut moved = 0;
        loop {
            let receiving = async {
                match *settled {
                    false => Ok(within(limit, self.channel.receive()).await??),
                    true => Ok(self.channel.receive().await?),
                }
            };
            let received = tokio::select! {
                biased;
                () = drain.reached(Phase::Unready) => Err(TakeError::Stopping),
                received = receiving => received,
            }?;
            let Received {
                message,
                descriptors,
                tail,
            } = received;
            if let Message::Relays { relays } = message {
                let relays = relays_of(relays, descriptors, &tail)?;
                moved += self.take_batch(relays, workers, &mut next).await?;
                continue;
            }
            if let Message::Flows { .. } = message {
                let received = Received {
                    message,
                    descriptors,
                    tail,
                };
                moved += self.take_table(received, workers, datagrams).await?;
                continue;
            }
            if message != Message::Settled || *settled {
                return Err(TakeError::unexpected(&message));
            }
            publish();
            within(limit, self.channel.send(&Message::Taken, &[], &[])).await??;
            // Only now the other one leaves; until then it may yet go on with the same sockets.
            *settled = true;
            open_rest(workers, datagrams, &self.announced, &self.came).await;
            settle();
            self.shared.metrics.ended(Direction::In, true);
            let seconds = self.begun.elapsed().as_secs_f64();
            self.shared.metrics.seconds.observe(seconds);
            tracing::info!(connections = moved, seconds, "took over");
        }
    }

    /// Takes a batch of relays once the other process gives it up.
    async fn take_batch(
        &mut self,
        relays: Vec<Moving>,
        workers: &Asker,
        next: &mut usize,
    ) -> Result<usize, TakeError> {
        let count = relays.len();
        self.commit().await?;
        let many = workers.count().max(1);
        let mut of_worker: Vec<Vec<Moving>> = (0..many).map(|_| Vec::new()).collect();
        for relay in relays {
            if let Some(all) = of_worker.get_mut(*next % many) {
                all.push(relay);
            }
            *next = next.wrapping_add(1);
        }
        let mut lost = 0;
        for (worker, relays) in of_worker.into_iter().enumerate() {
            lost += workers.take(worker, relays).await;
        }
        self.shared
            .metrics
            .count(Direction::In, Outcome::Lost, lost);
        self.shared
            .metrics
            .count(Direction::In, Outcome::Moved, count - lost);
        Ok(count - lost)
    }

    /// Takes a table of flows whose first part was received, as [`Taking::take_batch`] has it. It goes to one worker.
    async fn take_table(
        &mut self,
        mut received: Received,
        workers: &Asker,
        datagrams: &DatagramListeners,
    ) -> Result<usize, TakeError> {
        let (mut sockets, mut all) = (None, Vec::new());
        let listener = loop {
            let Received {
                message,
                descriptors,
                tail,
            } = received;
            let Message::Flows {
                listener,
                flows,
                last,
            } = message
            else {
                return Err(TakeError::unexpected(&message));
            };
            let before = sockets.as_ref().map(|_| all.len());
            let checked = check_flows(&flows, before, descriptors.len(), &tail);
            checked.map_err(ChannelError::from)?;
            all.extend(flows);
            if sockets.is_none() {
                sockets = Some(datagram_sockets(descriptors)?);
            }
            if last {
                break listener;
            }
            received = within(self.shared.params.timeout, self.channel.receive()).await??;
        };
        let sockets = sockets.ok_or_else(|| ChannelError::from(WireError::Flows(0, 0, 0)))?;
        self.commit().await?;
        let table = MovingFlows {
            listener: listener.clone(),
            sockets,
            flows: all,
        };
        // One from elsewhere is served too, and new sockets are opened where its listener is now.
        let is_here = datagrams.has(&table);
        let count = table.connections();
        if is_here || !table.flows.is_empty() {
            let worker = self.tables % workers.count().max(1);
            workers.take_flows(worker, table).await;
            self.tables += 1;
        }
        if is_here {
            self.came.push(listener);
        }
        self.shared
            .metrics
            .count(Direction::In, Outcome::Moved, count);
        Ok(count)
    }

    /// Waits until the other process gives up what it sent, which it says or does not: then it goes on with it.
    async fn commit(&mut self) -> Result<(), TakeError> {
        let taken = within(
            self.shared.params.timeout,
            self.channel.send(&Message::Taken, &[], &[]),
        );
        taken.await??;
        let committed = match within(self.shared.params.timeout, self.channel.receive()).await {
            Ok(received) => received,
            Err(late) => {
                // From here on the other one is told that it comes too late. It may have come before: that or
                // the end is there now, but the runtime may not know it yet.
                self.channel.shut();
                match timeout(SHUT_LIMIT, self.channel.receive()).await {
                    Ok(received) => received,
                    Err(_) => return Err(late),
                }
            }
        };
        let committed = committed?.message;
        if committed != Message::Commit {
            return Err(TakeError::unexpected(&committed));
        }
        Ok(())
    }
}

/// Serves listeners of datagrams anew of which no table came, with as many sockets as were to come.
async fn open_rest(
    workers: &Asker,
    datagrams: &DatagramListeners,
    announced: &[String],
    came: &[String],
) {
    let missing = announced.iter().filter(|name| !came.contains(name));
    workers.open_flows(missing.cloned(), datagrams).await;
}

/// Returns the two sockets of a table of flows.
fn datagram_sockets(descriptors: Vec<OwnedFd>) -> Result<[UdpSocket; 2], ChannelError> {
    let is_udp = |socket: &OwnedFd| {
        let socket = SockRef::from(socket);
        let ip = socket.local_addr().is_ok_and(|at| at.as_socket().is_some());
        ip && socket.r#type().is_ok_and(|kind| kind == Type::DGRAM)
    };
    let count = descriptors.len();
    let sockets: Vec<UdpSocket> = descriptors
        .into_iter()
        .filter(is_udp)
        .map(UdpSocket::from)
        .collect();
    let sockets = <[UdpSocket; 2]>::try_from(sockets);
    Ok(sockets.map_err(|_| WireError::Flows(0, 0, count))?)
}

/// Puts the relays of a message together.
fn relays_of(
    records: Vec<RelayRecord>,
    descriptors: Vec<OwnedFd>,
    tail: &[u8],
) -> Result<Vec<Moving>, ChannelError> {
    let held = split_held(&records, descriptors.len(), tail)?;
    let mut descriptors = descriptors.into_iter();
    let relays = records.into_iter().zip(&held).map(|(record, held)| {
        let sockets = [descriptors.next()?, descriptors.next()?];
        Some(Moving::new(record, sockets, *held))
    });
    let relays: Option<_> = relays.collect();
    Ok(relays.ok_or(WireError::Descriptors(held.len(), 0))?)
}

async fn within<T>(limit: Duration, progress: impl Future<Output = T>) -> Result<T, TakeError> {
    let progress = timeout(limit, progress).await;
    progress.map_err(|_| TakeError::Late(limit))
}

impl TakeError {
    /// Returns whether no process listens at the socket.
    fn is_absent(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let is = |error: &io::Error| [ConnectionRefused, NotFound].contains(&error.kind());
        matches!(self, Self::Channel(ChannelError::Io(error)) if is(error))
    }

    fn unexpected(message: &Message) -> Self {
        Self::Unexpected(format!("{message:?}").chars().take(80).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use relay::PoolParams;
    use route::TcpOptions;
    use telemetry::Registry;
    use testkit::tempdir::TempDir;
    use tokio::net::UnixListener;

    use super::super::wire::SocketRecord;
    use super::super::{HandoverConditions, HandoverMetrics, HandoverParams};
    use super::*;
    use crate::drain::DrainParams;
    use crate::listener::{ListenerParams, bind_rest};
    use crate::worker::Workers;

    /// Gives a listening socket, and closes the channel once the newcomer serves.
    async fn die_while_giving(path: &Path, socket: TcpListener) {
        let listener = UnixListener::bind(path).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut channel = Channel::new(stream).unwrap();
        let hello = channel.receive().await.unwrap().message;
        assert!(matches!(hello, Message::Hello { .. }), "{hello:?}");
        let agreed = Message::Agreed { version: 1 };
        channel.send(&agreed, &[], &[]).await.unwrap();
        let listener = "test".to_owned();
        let sockets = Message::Sockets {
            sockets: vec![SocketRecord { listener }],
            last: true,
            flows: Vec::new(),
        };
        let descriptors = [socket.as_fd()];
        channel.send(&sockets, &descriptors, &[]).await.unwrap();
        let serving = channel.receive().await.unwrap().message;
        assert_eq!(serving, Message::Serving);
    }

    #[tokio::test]
    async fn sockets_are_own_once_the_giver_has_died() {
        let directory = TempDir::new("take").unwrap();
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(directory.path(), own).unwrap();
        let params = HandoverParams {
            socket: directory.join("handover.sock"),
            timeout: Duration::from_secs(60),
            exit: false,
            notify: None,
        };
        let path = params.socket.clone();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let giver = tokio::spawn(async move { die_while_giving(&path, socket).await });
        while !params.socket.exists() {
            tokio::task::yield_now().await;
        }
        let metrics = HandoverMetrics::new(&Registry::new());
        let shared = Arc::new(Shared {
            params,
            state: HandoverState::default(),
            metrics,
            conditions: HandoverConditions::default(),
        });
        let here = HandoverSocket::bind(&shared.params.socket).unwrap();
        let (taking, taken) = Taking::begin(&shared).await.unwrap();
        let listeners = [ListenerParams {
            name: "test".to_owned(),
            address,
            tcp: TcpOptions::default(),
        }];
        let bound = bind_rest(&listeners, 1, Vec::new(), taken).unwrap();
        let groups = bound.to_share(&listeners).unwrap().groups;
        let group = groups[0].upgrade().unwrap();
        assert!(group.is_shared());

        let drain = Drain::new(DrainParams::default());
        let pool = PoolParams::for_workers(1);
        let run = async |_, ()| Ok(());
        let workers = Workers::prepare("test", 1, pool, &drain, run).unwrap();
        let datagrams = DatagramListeners::default();
        let (asker, datagrams) = (workers.asker(), &datagrams);
        taking.run(&asker, &groups, &here, datagrams, &drain).await;
        giver.await.unwrap();
        assert!(!group.is_shared());
        assert_eq!(shared.state.ready(), Ok(()));
    }
}
