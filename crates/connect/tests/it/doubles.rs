//! A stand-in for what lies behind the frontend, and a client that speaks bytes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use connect::{Dial, Ended, Outcome, Params, Refusal, Request, Stream, serve};
use tokio::io::{
    AsyncReadExt, AsyncWriteExt, DuplexStream, copy, copy_bidirectional, duplex, split,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

/// What a dial does.
pub(crate) enum Plan {
    /// Opens a tunnel that sends back what it is sent.
    Echo,
    /// Opens a tunnel that echoes, once told to.
    EchoWhenTold(Notify),
    /// Opens a tunnel to a socket.
    Connect(SocketAddr),
    /// Never answers.
    Hang,
    /// Refuses.
    Refuse(Refusal),
}

/// Dials by plan and remembers what happened.
pub(crate) struct Double {
    pub(crate) plan: Plan,
    pub(crate) requests: RefCell<Vec<Request>>,
    pub(crate) early: RefCell<Option<Bytes>>,
    pub(crate) called_off: Cell<u32>,
    pub(crate) unused: Cell<u32>,
}

impl Double {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            requests: RefCell::default(),
            early: RefCell::default(),
            called_off: Cell::default(),
            unused: Cell::default(),
        }
    }

    pub(crate) fn targets(&self) -> Vec<String> {
        let requests = self.requests.borrow();
        requests.iter().map(|it| it.target.clone()).collect()
    }
}

/// Counts when it is dropped armed.
pub(crate) struct Guard<'a> {
    count: &'a Cell<u32>,
    armed: bool,
}

impl<'a> Guard<'a> {
    fn new(count: &'a Cell<u32>) -> Self {
        Self { count, armed: true }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() + u32::from(self.armed));
    }
}

impl<'a> Dial for &'a Double {
    type Tunnel = (Option<TcpStream>, Guard<'a>);

    async fn dial(&self, request: &Request) -> Result<Self::Tunnel, Refusal> {
        self.requests.borrow_mut().push(request.clone());
        let mut attempt = Guard::new(&self.called_off);
        let tunnel = match &self.plan {
            Plan::Echo => Ok(None),
            Plan::EchoWhenTold(told) => {
                told.notified().await;
                Ok(None)
            }
            Plan::Connect(addr) => match TcpStream::connect(addr).await {
                Ok(upstream) => Ok(Some(upstream)),
                Err(error) => Err(Refusal::new(502, "connect_failed", error.to_string())),
            },
            Plan::Hang => std::future::pending().await,
            Plan::Refuse(refusal) => Err(refusal.clone()),
        };
        attempt.armed = false;
        tunnel.map(|upstream| (upstream, Guard::new(&self.unused)))
    }

    async fn relay<S>(&self, tunnel: Self::Tunnel, mut stream: S, early: Bytes) -> Ended
    where
        S: Stream,
    {
        let (upstream, mut guard) = tunnel;
        guard.armed = false;
        let first = early.len() as u64;
        *self.early.borrow_mut() = Some(early.clone());
        let (received, sent) = match upstream {
            Some(mut upstream) => {
                upstream.write_all(&early).await.unwrap();
                copy_bidirectional(&mut stream, &mut upstream)
                    .await
                    .unwrap()
            }
            None => {
                stream.write_all(&early).await.unwrap();
                let (mut from, mut to) = split(stream);
                let echoed = copy(&mut from, &mut to).await.unwrap();
                to.shutdown().await.unwrap();
                (echoed, first + echoed)
            }
        };
        Ended {
            received: first + received,
            sent,
            reason: "closed",
        }
    }
}

/// Serves a client that sends `chunks` one by one and then only reads; returns what it read.
pub(crate) async fn talk(dial: &Double, params: &Params, chunks: &[&[u8]]) -> (Outcome, String) {
    let (client, server) = duplex(256 * 1024);
    let speak = async {
        let mut client = client;
        for chunk in chunks {
            client.write_all(chunk).await.unwrap();
            settle().await;
        }
        read_all(&mut client).await
    };
    bounded(async { tokio::join!(serve(server, &dial, params), speak) }).await
}

/// Serves a client that sends `chunks`, waits until everything has been answered, ends its half
/// and reads the rest.
pub(crate) async fn talk_and_end(
    dial: &Double,
    params: &Params,
    chunks: &[&[u8]],
) -> (Outcome, String) {
    let (client, server) = duplex(256 * 1024);
    let speak = async {
        let mut client = client;
        for chunk in chunks {
            client.write_all(chunk).await.unwrap();
            settle().await;
        }
        client.shutdown().await.unwrap();
        read_all(&mut client).await
    };
    bounded(async { tokio::join!(serve(server, &dial, params), speak) }).await
}

/// Ends a test that would not, by the paused clock.
async fn bounded<T>(talk: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(3600);
    timeout(limit, talk).await.unwrap()
}

/// Lets the other half of the task do all that it can.
pub(crate) async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
}

async fn read_all(client: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}
