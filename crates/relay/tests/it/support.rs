//! A relay between two real loopback connections, and the peers that play with it.

use std::cell::Cell;
use std::rc::Rc;

use relay::{Direction, Meter, Outcome, Pool, PoolParams, Relay, Timers};
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
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (peer, accepted) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (peer.unwrap(), accepted.unwrap().0)
}

pub(crate) struct Case {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    pub(crate) downstream: TcpStream,
    pub(crate) upstream: TcpStream,
    pub(crate) pool: Rc<Pool>,
    pub(crate) counts: Counts,
}

impl Case {
    pub(crate) async fn new(params: PoolParams) -> Self {
        let (client, downstream) = pair().await;
        let (server, upstream) = pair().await;
        let pool = Rc::new(Pool::new(params));
        Self {
            client,
            server,
            downstream,
            upstream,
            pool,
            counts: Counts::default(),
        }
    }
}

pub(crate) fn relay<'a>(case: &'a Case, timers: Timers) -> Relay<'a, Counts> {
    Relay::new(
        &case.downstream,
        &case.upstream,
        Rc::clone(&case.pool),
        &case.counts,
        timers,
    )
}

/// Runs the relay beside a script that plays both peers, closes its sockets when it has ended, as a
/// proxy does, and returns what the relay said.
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
    let (other_client, other_downstream) = pair().await;
    let (other_server, other_upstream) = pair().await;
    let client = std::mem::replace(&mut case.client, other_client);
    let server = std::mem::replace(&mut case.server, other_server);
    let downstream = std::mem::replace(&mut case.downstream, other_downstream);
    let upstream = std::mem::replace(&mut case.upstream, other_upstream);
    let pool = Rc::clone(&case.pool);
    let counts = &case.counts;
    let relayed = async move {
        let timers = Timers::default();
        Relay::new(&downstream, &upstream, pool, counts, timers).await
    };
    let (outcome, ()) = tokio::join!(relayed, script(client, server, counts));
    (outcome, case)
}

/// Octets that differ from position to position, so that a lost or doubled chunk shows.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 9)) as u8)
        .collect()
}

/// Both ways of moving bulk.
pub(crate) fn both() -> [PoolParams; 2] {
    [PoolParams::for_workers(1), PoolParams::COPYING]
}
