//! A stand-in for what lies behind the frontend, and a client that speaks bytes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use connect::{Downstream, End, Exchange, Params, Refusal, Request};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, copy, copy_bidirectional,
    duplex, split,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

/// What a dial does.
pub(crate) enum Plan {
    /// Opens a tunnel that sends back what it is sent.
    Echo,
    /// Opens a tunnel that echoes, once notified.
    EchoWhenNotified(Notify),
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
    pub(crate) canceled: Cell<u32>,
    pub(crate) unused: Cell<u32>,
}

impl Double {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            requests: RefCell::default(),
            early: RefCell::default(),
            canceled: Cell::default(),
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

/// What became of a connection.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) request: Option<Box<Request>>,
    pub(crate) status: Option<u16>,
    pub(crate) other_requests: u32,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// The label: that of the crate, of a refusal, or "closed" for a tunnel that ended.
    pub(crate) end: &'static str,
}

type Tunnel<'a> = (Option<TcpStream>, Guard<'a>);

/// Serves one connection from its first byte to its end, as a program does.
pub(crate) async fn serve<S>(stream: S, dial: &Double, params: &Params) -> Outcome
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = Downstream::new(stream);
    let mut outcome = Outcome {
        request: None,
        status: None,
        other_requests: 0,
        received: 0,
        sent: 0,
        end: "closed",
    };
    match Box::pin(open(&mut stream, dial, params, &mut outcome)).await {
        Ok((tunnel, early)) => {
            (outcome.received, outcome.sent) = relay(dial, tunnel, stream, early).await;
        }
        Err(reason) => outcome.end = reason,
    }
    outcome
}

async fn open<'a, S>(
    stream: &mut Downstream<S>,
    dial: &'a Double,
    params: &Params,
    outcome: &mut Outcome,
) -> Result<(Tunnel<'a>, Bytes), &'static str>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut exchange = Exchange::new(stream, params);
    let opened = step_through(&mut exchange, dial, &mut outcome.request).await;
    outcome.status = exchange.status();
    outcome.other_requests = exchange.other_requests();
    opened
}

async fn step_through<'a, S>(
    exchange: &mut Exchange<'_, S>,
    dial: &'a Double,
    requested: &mut Option<Box<Request>>,
) -> Result<(Tunnel<'a>, Bytes), &'static str>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = &*requested.insert(exchange.request().await.map_err(End::reason)?);
    let dialed = exchange.while_connected(dial.dial(request)).await;
    match dialed.map_err(End::reason)? {
        Ok(tunnel) => {
            let early = exchange.accept().await.map_err(End::reason)?;
            Ok((tunnel, early))
        }
        Err(refusal) => {
            exchange.refuse(&refusal).await;
            Err(refusal.reason)
        }
    }
}

impl Double {
    async fn dial(&self, request: &Request) -> Result<Tunnel<'_>, Refusal> {
        self.requests.borrow_mut().push(request.clone());
        let mut attempt = Guard::new(&self.canceled);
        let tunnel = match &self.plan {
            Plan::Echo => Ok(None),
            Plan::EchoWhenNotified(notify) => {
                notify.notified().await;
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
}

/// Moves bytes until both ends have closed; returns how many came from the client and went to it.
async fn relay<S>(dial: &Double, tunnel: Tunnel<'_>, mut stream: S, early: Bytes) -> (u64, u64)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (upstream, mut guard) = tunnel;
    guard.armed = false;
    let first = early.len() as u64;
    *dial.early.borrow_mut() = Some(early.clone());
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
    (first + received, sent)
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
    bounded(async { tokio::join!(serve(server, dial, params), speak) }).await
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
    bounded(async { tokio::join!(serve(server, dial, params), speak) }).await
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
