//! Relays between two byte streams of any kind by copying: TLS, pipes, Unix sockets.
//!
//! ```text
//!     downstream ──read──▶ scratch ──write──▶ upstream
//!     downstream ◀─write── scratch ◀──read─── upstream
//! ```
//!
//! The rules are those of [`Relay`](crate::Relay): each direction ends by itself, a failed read ends
//! both, and a failed write leaves the other direction to deliver what the failed peer had sent. An
//! end of stream is passed on by shutting the other stream down, which TLS turns into its closing
//! alert; where something is missing, the stream gets no such end and its socket is reset. Bytes
//! that a stream does not accept at once are kept in a buffer of exactly their size, and nothing
//! more is read until they are gone; meanwhile the source's socket is looked at now and then, as it is
//! once the source has ended before the other peer.
//!
//! Does not close the streams: they are the caller's.

use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::clock::{Clock, Moved, Timers};
use crate::outcome::{Direction, Failure, Meter, Outcome, Side};
use crate::pool::Pool;
use crate::reset::{RESET_LIMIT, is_gone, reset_on_close, reset_when_sent};

/// Bytes of one read: four TLS records.
const READ_BYTES: usize = 64 * 1024;

/// Steps of one direction before it yields to other tasks.
const BUDGET_STEPS: usize = 8;

/// Time between looks at the socket of a source that is not read, or has ended.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

/// One peer of a stream relay.
#[derive(Debug)]
pub struct Peer<'a, S> {
    /// The stream to it.
    pub stream: &'a mut S,
    /// Returns the socket under the stream, whose connection a reset ends; `None` where there is
    /// none.
    pub socket: fn(&S) -> Option<BorrowedFd<'_>>,
}

impl<S> Peer<'_, S> {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        (self.socket)(self.stream)
    }
}

/// Relays until both directions have ended.
///
/// `early` was read from downstream before and is delivered first. When a peer has failed, the
/// other one's socket is set to reset its connection on close, behind what was read for it;
/// flushing and sending that take at most [`RESET_LIMIT`] each. An idle relay holds no buffer.
///
/// Dropping the future, or an end by a limit, sets the upstream socket to reset its connection.
pub async fn relay_streams<D, U, M>(
    downstream: Peer<'_, D>,
    upstream: Peer<'_, U>,
    early: Bytes,
    pool: &Pool,
    meter: &M,
    timers: Timers,
) -> Outcome
where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    M: Meter + ?Sized,
{
    let mut relay = StreamRelay {
        downstream,
        upstream,
        pool,
        meter,
        rx: Half::new(Direction::Rx, early),
        tx: Half::new(Direction::Tx, Bytes::new()),
        failed: None,
        clock: Clock::start(timers),
        cut: true,
    };
    let outcome = poll_fn(|cx| relay.poll(cx)).await;
    relay.cut = matches!(outcome, Outcome::IdleTimeout | Outcome::MaxAge);
    if let Outcome::Reset { side, .. } = outcome {
        // On the heap: relaying, which lasts, does not need it.
        Box::pin(relay.reset_other(side)).await;
    }
    outcome
}

struct StreamRelay<'a, D, U, M: ?Sized> {
    downstream: Peer<'a, D>,
    upstream: Peer<'a, U>,
    pool: &'a Pool,
    meter: &'a M,
    rx: Half,
    tx: Half,
    failed: Option<Failure>,
    clock: Option<Box<Clock>>,
    /// It is being ended from outside.
    cut: bool,
}

impl<D, U, M> StreamRelay<'_, D, U, M>
where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    M: Meter + ?Sized,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let moved = Moved::new(self.meter);
        let (down, up) = (&mut *self.downstream.stream, &mut *self.upstream.stream);
        let rx = self.rx.poll(cx, down, up, self.pool, &moved);
        self.tx.cut |= fails_unfinished(&rx);
        let tx = self.tx.poll(cx, up, down, self.pool, &moved);
        self.rx.cut |= fails_unfinished(&tx);
        for (half, polled) in [(&mut self.rx, rx), (&mut self.tx, tx)] {
            if let Poll::Ready(Err(failure)) = polled {
                half.state = State::Done;
                half.held = Bytes::new();
                // The first failure is the cause; a failed read only follows a failed write.
                let reading = failure.reading;
                self.failed.get_or_insert(failure).reading |= reading;
            }
        }
        let both_done = self.rx.is_done() && self.tx.is_done();
        if let Some(failure) = self.failed.take_if(|failed| failed.reading || both_done) {
            let Failure { side, error, .. } = failure;
            return Poll::Ready(Outcome::Reset { side, error });
        }
        if both_done {
            return Poll::Ready(Outcome::Closed);
        }
        // An end that was passed on toward a source makes it hang up once its own end has come.
        let (down, up) = (
            (self.downstream.socket(), self.tx.end_passed),
            (self.upstream.socket(), self.rx.end_passed),
        );
        for (half, (socket, shut)) in [(&mut self.rx, down), (&mut self.tx, up)] {
            if half.poll_source_lost(cx, socket, shut).is_ready() {
                let error = io::ErrorKind::ConnectionReset.into();
                let Failure { side, error, .. } = half.direction.read_failed(error);
                return Poll::Ready(Outcome::Reset { side, error });
            }
        }
        match &mut self.clock {
            Some(clock) => clock.poll_expired(cx, moved.bytes.get()),
            None => Poll::Pending,
        }
    }

    /// Resets the peer of the one that failed, once it was sent what there is for it.
    async fn reset_other(&mut self, failed: Side) {
        match failed {
            Side::Downstream => reset(&mut self.upstream, self.rx.end_passed).await,
            Side::Upstream => reset(&mut self.downstream, self.tx.end_passed).await,
        }
    }
}

/// Resets a peer; one that got its `whole` direction is left to the kernel, which resets what it
/// still sends.
async fn reset<S: AsyncWrite + Unpin>(peer: &mut Peer<'_, S>, whole: bool) {
    if whole {
        return;
    }
    if let Some(socket) = peer.socket() {
        reset_on_close(&socket);
    }
    // TLS may hold bytes that were written to it.
    let _ = timeout(RESET_LIMIT, peer.stream.flush()).await;
    if let Some(socket) = peer.socket() {
        reset_when_sent(&socket, RESET_LIMIT).await;
    }
}

impl<D, U, M: ?Sized> Drop for StreamRelay<'_, D, U, M> {
    fn drop(&mut self) {
        if self.cut
            && let Some(socket) = self.upstream.socket()
        {
            reset_on_close(&socket);
        }
    }
}

/// Returns whether the end of stream that is read behind this failure is none, only what a reset
/// leaves. EPIPE means that the peer's end had come before its reset (Linux, tcp_reset()).
fn fails_unfinished(polled: &Poll<Result<(), Failure>>) -> bool {
    match polled {
        Poll::Ready(Err(failure)) => failure.error.kind() != io::ErrorKind::BrokenPipe,
        Poll::Ready(Ok(())) | Poll::Pending => false,
    }
}

/// One direction.
struct Half {
    direction: Direction,
    /// Read and not yet written.
    held: Bytes,
    state: State,
    /// The end of what is read is none: something is missing.
    cut: bool,
    /// The end was passed on to the sink.
    end_passed: bool,
    /// The sink may buffer bytes that were written to it.
    unflushed: bool,
    /// Exists while bytes are held, and once the end was passed on.
    watch: Option<Box<Watch>>,
}

/// Notices that the source of a direction is gone, which reading would report if the sink of a stalled one
/// accepted what was read before, and which nothing reports once it has ended.
struct Watch {
    sleep: Pin<Box<Sleep>>,
    gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More may come.
    Open,
    /// All has come; the sink is to be shut down.
    Shutting,
    /// Over.
    Done,
}

impl Half {
    fn new(direction: Direction, held: Bytes) -> Self {
        Self {
            direction,
            held,
            state: State::Open,
            cut: false,
            end_passed: false,
            unflushed: false,
            watch: None,
        }
    }

    fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Moves what can be moved now; ready once the end was passed on, or with the failure that ended
    /// this direction.
    fn poll<R, W, M>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut R,
        sink: &mut W,
        pool: &Pool,
        meter: &M,
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
        M: Meter,
    {
        for _ in 0..BUDGET_STEPS {
            match self.state {
                State::Done => return Poll::Ready(Ok(())),
                State::Open => {
                    let moved = pool.with_scratch(READ_BYTES, |scratch| {
                        self.poll_step(cx, source, sink, scratch, meter)
                    });
                    ready!(moved)?;
                }
                State::Shutting => {
                    let shut = ready!(Pin::new(&mut *sink).poll_shutdown(cx));
                    self.state = State::Done;
                    self.end_passed = true;
                    shut.map_err(|error| self.direction.write_failed(error))?;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what is held, then reads and writes once.
    fn poll_step<R, W, M>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut R,
        sink: &mut W,
        scratch: &mut [u8],
        meter: &M,
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
        M: Meter,
    {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut *sink).poll_write(cx, &self.held));
            let written = self.count(written, meter)?;
            self.held.advance(written);
        }
        let mut buf = ReadBuf::new(scratch);
        let read = Pin::new(source).poll_read(cx, &mut buf);
        if read.is_pending() && self.unflushed {
            let flushed = ready!(Pin::new(&mut *sink).poll_flush(cx));
            flushed.map_err(|error| self.direction.write_failed(error))?;
            self.unflushed = false;
        }
        ready!(read).map_err(|error| self.direction.read_failed(error))?;
        let mut rest = buf.filled();
        if rest.is_empty() {
            self.state = if self.cut {
                State::Done
            } else {
                State::Shutting
            };
        }
        while !rest.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut *sink).poll_write(cx, rest) else {
                self.held = Bytes::copy_from_slice(rest);
                return Poll::Pending;
            };
            rest = &rest[self.count(written, meter)?..];
        }
        Poll::Ready(Ok(()))
    }

    /// Ready once the source of a stalled direction has been gone for [`RESET_LIMIT`], in which the
    /// sink may accept what the source had sent; or that of one that is over, which is the other's sink, for
    /// a while. `shut`: the write side toward it is closed.
    fn poll_source_lost(
        &mut self,
        cx: &mut Context<'_>,
        source: Option<BorrowedFd<'_>>,
        shut: bool,
    ) -> Poll<()> {
        if self.held.is_empty() && !self.end_passed {
            self.watch = None;
            return Poll::Pending;
        }
        let watch = self.watch.get_or_insert_with(|| {
            Box::new(Watch {
                sleep: Box::pin(sleep(WATCH_PERIOD)),
                gone: false,
            })
        });
        loop {
            ready!(watch.sleep.as_mut().poll(cx));
            if watch.gone {
                return Poll::Ready(());
            }
            watch.gone = source.is_some_and(|source| is_gone(source, shut));
            // Of one that is over, the other direction ends mostly in order by then.
            let pause = match watch.gone && !self.end_passed {
                true => RESET_LIMIT,
                false => WATCH_PERIOD,
            };
            watch.sleep.as_mut().reset(Instant::now() + pause);
        }
    }

    fn count<M: Meter>(&mut self, written: io::Result<usize>, meter: &M) -> Result<usize, Failure> {
        let written = match written {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            other => other,
        }
        .map_err(|error| self.direction.write_failed(error))?;
        self.unflushed = true;
        meter.relayed(self.direction, written as u64, true);
        Ok(written)
    }
}
