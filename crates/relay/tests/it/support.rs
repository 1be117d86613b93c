//! A relay between two real loopback connections, and the peers that play with it.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use relay::{
    Direction, Meter, Outcome, Peer, Pool, PoolParams, Relay, Socket, Timers, relay_streams,
};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) rx: Cell<u64>,
    pub(crate) tx: Cell<u64>,
    pub(crate) copied: Cell<u64>,
}

impl Meter for Counts {
    fn relayed(&self, direction: Direction, bytes: u64, copied: bool) {
        let cell = match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        };
        cell.set(cell.get() + bytes);
        if copied {
            self.copied.set(self.copied.get() + bytes);
        }
    }
}

/// A connected pair: what a peer holds, and what the relay holds.
pub(crate) async fn pair() -> (TcpStream, Socket) {
    let (peer, own) = streams().await;
    (peer, own.into_std().unwrap().try_into().unwrap())
}

/// As [`pair`], for a relay of streams.
pub(crate) async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (peer, accepted) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (peer.unwrap(), accepted.unwrap().0)
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// `Relay`, with pipes.
    Splice,
    /// `Relay`, without pipes.
    Copy,
    /// `relay_streams`.
    Streams,
}

pub(crate) const ENGINES: [Engine; 3] = [Engine::Splice, Engine::Copy, Engine::Streams];

pub(crate) struct Case {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    /// Downstream's and upstream's.
    sockets: RefCell<Option<(Socket, Socket)>>,
    engine: Engine,
    pub(crate) pool: Rc<Pool>,
    pub(crate) counts: Counts,
}

impl Case {
    pub(crate) async fn new(engine: Engine) -> Self {
        let params = match engine {
            Engine::Splice => PoolParams::for_workers(1),
            Engine::Copy | Engine::Streams => PoolParams::COPYING,
        };
        Self::with_pool(engine, params).await
    }

    pub(crate) async fn with_pool(engine: Engine, params: PoolParams) -> Self {
        let (client, downstream) = pair().await;
        let (server, upstream) = pair().await;
        Self {
            client,
            server,
            sockets: RefCell::new(Some((downstream, upstream))),
            engine,
            pool: Rc::new(Pool::new(params)),
            counts: Counts::default(),
        }
    }
}

/// Relays once, and closes the sockets at the end as a proxy does.
pub(crate) fn relay(case: &Case, timers: Timers) -> Pin<Box<dyn Future<Output = Outcome> + '_>> {
    let (downstream, upstream) = case.sockets.take().unwrap();
    Box::pin(run(
        case.engine,
        downstream,
        upstream,
        &case.pool,
        &case.counts,
        timers,
    ))
}

async fn run(
    engine: Engine,
    downstream: Socket,
    upstream: Socket,
    pool: &Rc<Pool>,
    counts: &Counts,
    timers: Timers,
) -> Outcome {
    match engine {
        Engine::Splice | Engine::Copy => {
            Relay::new(&downstream, &upstream, Rc::clone(pool), counts, timers).await
        }
        Engine::Streams => {
            let mut sockets = [downstream, upstream].map(|socket| socket.into_tokio().unwrap());
            let [down, up] = sockets.each_mut().map(peer);
            relay_streams(down, up, Bytes::new(), pool, counts, timers).await
        }
    }
}

pub(crate) fn peer(stream: &mut TcpStream) -> Peer<'_, TcpStream> {
    Peer {
        stream,
        socket: |stream| Some(stream.as_fd()),
    }
}

/// Runs the relay beside a script that plays both peers, closes its sockets when it has ended, as a
/// proxy does, and returns the relay's outcome.
pub(crate) async fn play<F: AsyncFnOnce(TcpStream, TcpStream)>(
    case: Case,
    script: F,
) -> (Outcome, Case) {
    play_counted(case, async |client, server, _| script(client, server).await).await
}

/// As [`play`], with a script that looks at what was relayed so far.
pub(crate) async fn play_counted<F: AsyncFnOnce(TcpStream, TcpStream, &Counts)>(
    mut case: Case,
    script: F,
) -> (Outcome, Case) {
    let (other_client, _) = pair().await;
    let (other_server, _) = pair().await;
    let client = std::mem::replace(&mut case.client, other_client);
    let server = std::mem::replace(&mut case.server, other_server);
    let relayed = relay(&case, Timers::default());
    let (outcome, ()) = tokio::join!(relayed, script(client, server, &case.counts));
    (outcome, case)
}

/// Bytes that differ from position to position, so that a lost or doubled chunk shows.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 9)) as u8)
        .collect()
}
