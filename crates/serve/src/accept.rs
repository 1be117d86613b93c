//! The accept loop of one listener on one worker.
//!
//! ```text
//!     serving ─▶ accept, hand over, …            errors of the peer: next; of ours: pause, count
//!     unready ─▶ the same, unless another process listens at the address: then that gets the new ones
//!     closing ─▶ refuse new, accept what is under way, meet the other workers, empty the queue, leave
//! ```
//!
//! Never ends by itself and never spins: when descriptors or memory run out it waits and counts.
//! What happens to an accepted connection is the caller's.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use telemetry::metrics::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout_at};

use crate::closing::{Closing, Member};
use crate::drain::{Drain, Phase};
use crate::listener::{WorkerSocket, refuse_new};
use crate::siblings::Siblings;
use crate::tcp::unmapped;

/// First and longest pause after an accept that failed for want of resources.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Accepted in a row before connections already open get their turn.
const BATCH: usize = 32;

/// How long handshakes under way may take to complete once new ones are refused. A client that
/// was dropped in that time tries again after a second (RFC 6298 §2.1), and then after two more: so it
/// is less than the first of them, and the sockets are closed by then.
const SETTLE: Duration = Duration::from_millis(800);

/// What the accept loops of a process share.
#[derive(Clone, Debug)]
pub struct Accepting {
    /// The phase of the process.
    pub drain: Drain,
    /// Met by every loop before any of them closes its socket.
    pub closing: Closing,
    /// Times a loop paused for want of resources.
    pub paused: Counter,
}

/// Runs one accept loop for each socket, with whatever the caller keeps for its listener, until the
/// process no longer accepts. Dropping the future ends the loops.
///
/// # Errors
/// When a loop could not start or ended by a defect; the others are ended then.
pub async fn accept_all<L: 'static>(
    accepting: &Accepting,
    sockets: Vec<(WorkerSocket, L)>,
    accepted: impl Fn(TcpStream, SocketAddr, &L) + Clone + 'static,
) -> io::Result<()> {
    let mut loops = JoinSet::new();
    for (socket, listener) in sockets {
        let (accepting, accepted) = (accepting.clone(), accepted.clone());
        let member = accepting.closing.join();
        loops.spawn_local(async move {
            accept_loop(socket, member, &accepting, |stream, peer| {
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

/// Accepts until the process drains, and then until nothing is left to accept.
async fn accept_loop(
    socket: WorkerSocket,
    member: Member,
    accepting: &Accepting,
    mut accepted: impl FnMut(TcpStream, SocketAddr),
) -> io::Result<()> {
    let WorkerSocket { socket, siblings } = socket;
    let drain = &accepting.drain;
    // Takes no descriptor of its own: siblings accept already, and may have taken the last one.
    let listener = TcpListener::from_std(socket)?;
    let pauses = &mut Pauses {
        next: PAUSE,
        paused: &accepting.paused,
    };
    let closing = drain.reached(Phase::Closing);
    let Some(siblings) = siblings else {
        accept_until(&listener, closing, pauses, &mut accepted).await;
        return Ok(()); // the queue stays with the service manager, for whoever comes next
    };
    let unready = async {
        tokio::select! {
            () = drain.reached(Phase::Unready) => {}
            never = siblings.watch(&listener) => match never {},
        }
    };
    accept_until(&listener, unready, pauses, &mut accepted).await;
    pass_over(&siblings, &listener);
    accept_until(&listener, closing, pauses, &mut accepted).await;
    pass_over(&siblings, &listener); // somebody may have come meanwhile, or gone
    if let Err(error) = refuse_new(&listener) {
        tracing::warn!(%error, "connections that arrive while the listener closes are reset");
    }
    let settled = timeout_at(Instant::now() + SETTLE, drain.reached(Phase::Cut));
    accept_until(&listener, settled, pauses, &mut accepted).await;
    member.meet().await;
    let socket = listener.into_std()?;
    empty(&socket, pauses, &mut accepted).await;
    siblings.leave(socket);
    Ok(())
}

/// Accepts what is in the queue of a socket that nothing new comes to.
async fn empty(
    socket: &std::net::TcpListener,
    pauses: &mut Pauses<'_>,
    accepted: &mut impl FnMut(TcpStream, SocketAddr),
) {
    // Asked of the kernel itself: what the runtime knows of the queue may be a moment old.
    loop {
        let next = socket.accept().and_then(|(stream, peer)| {
            stream.set_nonblocking(true)?;
            Ok((TcpStream::from_std(stream)?, peer))
        });
        match next {
            Ok((stream, peer)) => accepted(stream, unmapped(peer)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if Pauses::needed(&error) => pauses.pause(&error).await,
            Err(_) => {} // of the peer
        }
        yield_now().await;
    }
}

fn pass_over(siblings: &Siblings, listener: &TcpListener) {
    if let Err(error) = siblings.pass_over(listener) {
        tracing::warn!(%error, "another process at the address, if there is one, does not get all new connections");
    }
}

async fn accept_until<T>(
    listener: &TcpListener,
    end: impl Future<Output = T>,
    pauses: &mut Pauses<'_>,
    accepted: &mut impl FnMut(TcpStream, SocketAddr),
) {
    let mut end = pin!(end);
    loop {
        let mut batch = 0;
        let failed = poll_fn(|cx| {
            if end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            while batch < BATCH {
                match listener.poll_accept(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok((stream, peer))) => {
                        batch += 1;
                        pauses.next = PAUSE;
                        accepted(stream, unmapped(peer));
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(error)),
                }
            }
            batch = 0;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        let Some(error) = failed else { return };
        if Pauses::needed(&error) {
            tokio::select! {
                biased;
                _ = &mut end => return,
                () = pauses.pause(&error) => {}
            }
        }
    }
}

/// The growing pause after failures that are not the peer's.
struct Pauses<'a> {
    next: Duration,
    paused: &'a Counter,
}

impl Pauses<'_> {
    /// Tells whether `error` is one that accepting again at once would only repeat. Errors of the
    /// connection itself are not (accept(2): treat network errors of the new socket like EAGAIN).
    fn needed(error: &io::Error) -> bool {
        let of_the_peer = matches!(
            Errno::from_io_error(error),
            Some(
                Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::INTR
                    | Errno::NETDOWN
                    | Errno::NOPROTOOPT
                    | Errno::HOSTDOWN
                    | Errno::NONET
                    | Errno::HOSTUNREACH
                    | Errno::OPNOTSUPP
                    | Errno::NETUNREACH
                    | Errno::TIMEDOUT
                    | Errno::CONNRESET
            )
        );
        !of_the_peer
    }

    async fn pause(&mut self, error: &io::Error) {
        self.paused.inc();
        if self.next == PAUSE {
            tracing::warn!(%error, "accepting pauses");
        }
        sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
    }
}
