//! The accept loop of one listener on one worker.
//!
//! ```text
//!     serving ─▶ accept, hand over, …            on errors: backoff, count
//!     unready ─▶ the same; another process that listens at the address gets new connections
//!     closing ─▶ refuse new, accept what is under way, meet the other loops, empty the queue, leave
//! ```
//!
//! Never ends by itself and never spins: when descriptors or memory run out, it pauses and counts.
//! What happens to an accepted connection is the caller's.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use telemetry::AcceptBackoff;
use telemetry::metrics::Counter;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::drain::{Drain, Phase};
use crate::listener::{WorkerSocket, refuse_new};
use crate::reuse_port::ReusePortGroup;
use crate::tcp::unmapped;

/// Accepted in a row before connections already open are polled.
const BATCH: usize = 32;

/// How long handshakes under way may take to complete once new ones are refused. A client whose SYN
/// was dropped in that time tries again after a second (RFC 6298 §2.1), and then after two more: so it
/// is less than the first of them, and the sockets are closed by then.
const SETTLE: Duration = Duration::from_millis(800);

/// Connections accepted at most from a queue that another process may have: some for the time of a handover.
const LEFT_MOST: usize = 256;

/// Whether the accept loops of a process accept, besides what its phase says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// They do.
    Open,
    /// Another process accepts at the same sockets, and may yet fail.
    Paused,
    /// It has them; they are closed here.
    Left,
}

/// What the accept loops of a process share.
#[derive(Clone, Debug)]
pub struct Accepting {
    /// The phase of the process.
    pub drain: Drain,
    /// Each loop has a receiver; none closes its socket before all have dropped theirs.
    barrier: watch::Sender<()>,
    gate: watch::Sender<Gate>,
    paused: Counter,
}

impl Accepting {
    /// Creates the state of a process in service; `paused` counts pauses for want of resources.
    pub fn new(drain: Drain, paused: Counter) -> Self {
        Self {
            drain,
            barrier: watch::Sender::default(),
            gate: watch::Sender::new(Gate::Open),
            paused,
        }
    }

    pub(crate) fn set(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }
}

/// Runs one accept loop for each socket, with whatever the caller keeps for its listener, until the
/// process no longer accepts. Dropping the future ends the loops.
///
/// `S` is the type of sockets of the runtime that the caller wants: tokio's, or the relay's.
///
/// # Errors
/// When a loop could not start or ended by a defect; the others are ended then.
pub async fn accept_all<S, L: 'static>(
    accepting: &Accepting,
    sockets: Vec<(WorkerSocket, L)>,
    accepted: impl Fn(S, SocketAddr, &L) + Clone + 'static,
) -> io::Result<()>
where
    S: TryFrom<TcpStream, Error = io::Error> + 'static,
{
    let mut loops = JoinSet::new();
    for (socket, listener) in sockets {
        let (drain, accepted) = (accepting.drain.clone(), accepted.clone());
        let (barrier, member) = (accepting.barrier.clone(), accepting.barrier.subscribe());
        let gate = accepting.gate.subscribe();
        let pauses = Pauses {
            gate: gate.clone(),
            listener: socket
                .local_addr()
                .map_or_else(|_| String::new(), |at| at.to_string()),
            backoff: AcceptBackoff::default(),
            paused: accepting.paused.clone(),
        };
        loops.spawn_local(async move {
            let all_settled = async {
                drop(member);
                barrier.closed().await;
            };
            accept_loop(socket, all_settled, &drain, pauses, |stream, peer| {
                accepted(stream, peer, &listener);
            })
            .await
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Accepts until the process drains, and then until nothing is left to accept; `all_settled` waits for the
/// other loops. Once another process has the sockets, it accepts what is queued and closes its own descriptor.
async fn accept_loop<S>(
    socket: WorkerSocket,
    all_settled: impl Future<Output = ()>,
    drain: &Drain,
    mut pauses: Pauses,
    mut accepted: impl FnMut(S, SocketAddr),
) -> io::Result<()>
where
    S: TryFrom<TcpStream, Error = io::Error>,
{
    let WorkerSocket { socket, group, .. } = socket;
    let (pauses, accepted) = (&mut pauses, &mut accepted);
    // Needs no descriptor of its own: other loops accept already, and may have used the last one.
    #[expect(
        deprecated,
        reason = "sound for a socket that is owned; its replacement is unsafe code"
    )]
    let listener = AsyncFd::with_interest(socket, Interest::READABLE)?;
    let mut gate = pauses.gate.clone();
    let serving = serve_until_closed(
        &listener,
        group.as_deref(),
        all_settled,
        drain,
        (&mut *pauses, &mut *accepted),
    );
    let has_left = tokio::select! {
        () = serving => false,
        Ok(_) = gate.wait_for(|gate| *gate == Gate::Left) => true,
    };
    match group {
        Some(_) if has_left => {
            // Of a listener that the other process does not have, connections have come here until now.
            let socket = listener.into_inner();
            let _ = timeout(SETTLE, empty(&socket, pauses, accepted, LEFT_MOST)).await;
        }
        Some(group) => {
            let socket = listener.into_inner();
            empty(&socket, pauses, accepted, usize::MAX).await;
            group.leave(socket);
        }
        // The queue stays with the service manager, for the next process.
        None => drop(listener),
    }
    if has_left {
        drain.reached(Phase::Closing).await;
    }
    Ok(())
}

/// Accepts until what is left is the queue of a socket that receives no new connections.
async fn serve_until_closed<S>(
    listener: &AsyncFd<TcpListener>,
    group: Option<&ReusePortGroup>,
    all_settled: impl Future<Output = ()>,
    drain: &Drain,
    (pauses, accepted): (&mut Pauses, &mut impl FnMut(S, SocketAddr)),
) where
    S: TryFrom<TcpStream, Error = io::Error>,
{
    let closing = drain.reached(Phase::Closing);
    let Some(group) = group else {
        return accept_until(listener, closing, pauses, accepted).await;
    };
    let unready = async {
        tokio::select! {
            () = drain.reached(Phase::Unready) => {}
            never = group.watch(listener.get_ref()) => match never {},
        }
    };
    accept_until(listener, unready, pauses, accepted).await;
    pass_over(group, listener.get_ref());
    accept_until(listener, closing, pauses, accepted).await;
    // Another process that has this very socket would be refused as well.
    let shared = group.is_shared();
    if !shared {
        pass_over(group, listener.get_ref()); // another process may have started meanwhile, or ended
        if let Err(error) = refuse_new(listener.get_ref()) {
            tracing::warn!(%error, "connections that arrive while the listener closes are reset");
        }
    }
    let settled = timeout_at(Instant::now() + SETTLE, drain.reached(Phase::Cut));
    accept_until(listener, settled, pauses, accepted).await;
    all_settled.await;
}

/// Accepts what is in the queue of a socket that receives no new connections, or `most` of it.
async fn empty<S>(
    socket: &TcpListener,
    pauses: &mut Pauses,
    accepted: &mut impl FnMut(S, SocketAddr),
    most: usize,
) where
    S: TryFrom<TcpStream, Error = io::Error>,
{
    // Asks the kernel: the runtime's readiness may be a moment old.
    for _ in 0..most {
        match accept(socket) {
            Ok((stream, peer)) => accepted(stream, peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                if let Some(pause) = pauses.failed(&error) {
                    sleep(pause).await;
                }
            }
        }
        yield_now().await;
    }
}

/// Accepts one connection, if there is one. The runtime reports it before its first read or write, unless the
/// kernel is asked.
fn accept<S>(listener: &TcpListener) -> io::Result<(S, SocketAddr)>
where
    S: TryFrom<TcpStream, Error = io::Error>,
{
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (stream, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.ok_or(Errno::CONNABORTED)?.try_into()?;
    Ok((S::try_from(stream.into())?, unmapped(peer)))
}

fn pass_over(group: &ReusePortGroup, listener: &TcpListener) {
    if let Err(error) = group.pass_over(listener) {
        tracing::warn!(%error, "another process at the address, if there is one, does not get all new connections");
    }
}

async fn accept_until<S, T>(
    listener: &AsyncFd<TcpListener>,
    end: impl Future<Output = T>,
    pauses: &mut Pauses,
    accepted: &mut impl FnMut(S, SocketAddr),
) where
    S: TryFrom<TcpStream, Error = io::Error>,
{
    let mut end = pin!(end);
    let mut gate = pauses.gate.clone();
    loop {
        tokio::select! {
            biased;
            _ = &mut end => return,
            _ = gate.wait_for(|gate| *gate == Gate::Open) => {}
        }
        let mut batch = 0;
        let mut closed = pin!(gate.changed());
        let failed = poll_fn(|cx| {
            if end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Next::End);
            }
            if closed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Next::Look);
            }
            while batch < BATCH {
                let mut ready = match ready!(listener.poll_read_ready(cx)) {
                    Ok(ready) => ready,
                    Err(error) => return Poll::Ready(Next::Failed(error)),
                };
                // It stays ready until none is left.
                match ready.try_io(|listener| accept(listener.get_ref())) {
                    Err(_would_block) => {}
                    Ok(Ok((stream, peer))) => {
                        batch += 1;
                        pauses.backoff.accepted();
                        accepted(stream, peer);
                    }
                    Ok(Err(error)) => return Poll::Ready(Next::Failed(error)),
                }
            }
            batch = 0;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        let error = match failed {
            Next::End => return,
            Next::Look => continue,
            Next::Failed(error) => error,
        };
        if let Some(pause) = pauses.failed(&error) {
            tokio::select! {
                biased;
                _ = &mut end => return,
                () = sleep(pause) => {}
            }
        }
    }
}

/// Why accepting stopped.
enum Next {
    End,
    /// The gate has changed.
    Look,
    Failed(io::Error),
}

/// The pauses of one accept loop.
struct Pauses {
    gate: watch::Receiver<Gate>,
    listener: String,
    backoff: AcceptBackoff,
    paused: Counter,
}

impl Pauses {
    fn failed(&mut self, error: &io::Error) -> Option<Duration> {
        let pause = self.backoff.failed(&self.listener, error);
        if pause.is_some() {
            self.paused.inc();
        }
        pause
    }
}
