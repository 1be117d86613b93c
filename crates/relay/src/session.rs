//! The relay of one connection: both directions and one timer.
//!
//! Each direction ends by itself; the relay ends when both have. A failed read ends the whole
//! relay, since all that was read before has been handed to the kernel. A failed write leaves the
//! other direction to deliver what the failed peer had sent before. A direction that waits for its
//! sink does not read, so a source that is gone is noticed by its socket's error, and the sink gets
//! a while to take what is left. So is a peer that has ended its direction and is gone: the other one
//! may be silent for ever, and what it sends would reach no peer.
//!
//! Between two polls everything is in the sockets, in a pipe or in memory, so there a relay can be
//! stopped, and another one resumed from what it held. Timers that run for a stalled or gone peer
//! start anew then.
//!
//! Does not close the sockets: they are the caller's, who closes them when the relay has ended, and
//! so passes on the end of the direction that ended last, or the reset: where a peer failed, the
//! other's socket is set to reset its connection when it is closed. One that got the end of
//! its direction before is not: it has everything, and the kernel resets what it still sends.

use std::future::Future;
use std::io;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::{Clock, Moved, Timers};
use crate::half::Half;
use crate::outcome::{Direction, Failure, Meter, Outcome, Side};
use crate::pace::{Pace, SinkState, round_trip};
use crate::pool::Pool;
use crate::reset::{RESET_LIMIT, reset_when_sent};
use crate::socket::Socket;
use crate::stopped::Stopped;

/// Relays until both directions are closed.
///
/// A future; dropping it stops at once and gives back what it borrowed. Bytes are counted as they
/// are handed to the receiving socket.
pub struct Relay<'a, M: Meter> {
    downstream: &'a Socket,
    upstream: &'a Socket,
    meter: &'a M,
    pool: Rc<Pool>,
    rx: Half,
    tx: Half,
    failed: Option<Failure>,
    clock: Option<Box<Clock>>,
    pace: Option<Box<Paced>>,
    /// Looks after the source of a direction that has stalled once, or is over before the other; downstream's,
    /// upstream's.
    watches: Option<Box<[Option<Watch<'a>>; 2]>>,
    ending: Option<Box<Ending<'a>>>,
}

/// From upstream to a downstream that may be slower, and how many bytes may wait unread in the socket of
/// the one and unsent in that of the other.
#[derive(Debug)]
struct Paced {
    pace: Pace,
    unread: RangeInclusive<u32>,
    max_unsent: u32,
}

/// A peer has failed; the other one is about to be reset.
struct Ending<'a> {
    outcome: Outcome,
    sending: Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// Notices that the source of a direction is gone, which reading would report if the sink of a stalled one
/// accepted what was read before, and which nothing reports once it has ended; and that a pipe is held for long,
/// which others may need.
struct Watch<'a> {
    gone: Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>,
    /// Runs once the source is gone: time for the sink to take what the source had sent, or to end as well.
    grace: Option<Pin<Box<Sleep>>>,
    /// How often bytes have moved since.
    progress: u64,
    /// When what waits in a pipe is taken out of it, if nothing has moved after that `progress`.
    patience: Option<(u64, Pin<Box<Sleep>>)>,
}

/// How long a pipe may be held by a direction whose sink takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time for the end of a direction whose sink is gone: mostly it is on its way, and all is in order.
const END_LIMIT: Duration = Duration::from_secs(1);

impl<'a, M: Meter> Relay<'a, M> {
    /// Prepares a relay between two connected sockets of the current runtime.
    #[must_use]
    pub fn new(
        downstream: &'a Socket,
        upstream: &'a Socket,
        pool: Rc<Pool>,
        meter: &'a M,
        timers: Timers,
    ) -> Self {
        Self {
            downstream,
            upstream,
            meter,
            pool,
            rx: Half::new(Direction::Rx),
            tx: Half::new(Direction::Tx),
            failed: None,
            clock: Clock::start(timers),
            pace: None,
            watches: None,
            ending: None,
        }
    }

    /// Prepares a relay that goes on where another one with the same connections was stopped. Accepts
    /// any `stopped`, whose bytes wait in memory and count in the pool, as those taken out of pipes.
    #[must_use]
    pub fn resume(
        downstream: &'a Socket,
        upstream: &'a Socket,
        pool: Rc<Pool>,
        meter: &'a M,
        timers: Timers,
        stopped: Stopped,
    ) -> Self {
        let mut relay = Self::new(downstream, upstream, pool, meter, timers);
        relay.rx = Half::resume(Direction::Rx, stopped.rx, &relay.pool);
        relay.tx = Half::resume(Direction::Tx, stopped.tx, &relay.pool);
        if let Some(clock) = &mut relay.clock {
            clock.resume(stopped.idle);
        }
        relay
    }

    /// Stops a relay that has not ended, and returns all that is needed to [`resume`](Self::resume) it
    /// besides its sockets, whose options are as before it was [`paced`](Self::paced). It must not be
    /// polled any more: it would end without having moved anything.
    ///
    /// `None` if it has to go on, and be polled: a peer failed, and the other one is about to be reset.
    /// So it is when a pipe cannot be read, since part of its bytes may be gone.
    pub fn stop(&mut self) -> Option<Stopped> {
        // One that failed, or that the end of the relay left without an end of its own.
        let cut = |half: &Half| half.finished() && !half.end_passed();
        if cut(&self.rx) || cut(&self.tx) {
            return None;
        }
        for half in [&mut self.rx, &mut self.tx] {
            if let Err(failure) = half.unload(&self.pool) {
                half.abandon(&self.pool);
                self.failed = Some(failure);
                return None;
            }
        }
        if let Some(paced) = self.pace.take().filter(|paced| paced.pace.is_below_max()) {
            paced.bound(&mut self.tx, [self.upstream, self.downstream], u32::MAX);
        }
        let clock = self.clock.take();
        Some(Stopped {
            rx: self.rx.stop(&self.pool),
            tx: self.tx.stop(&self.pool),
            idle: clock.map(|clock| clock.idle()).unwrap_or_default(),
        })
    }

    /// While downstream is slower than upstream, has less wait between them than the `unread` bytes of
    /// upstream's socket (`SO_RCVBUF`) and what downstream's may hold unsent (`TCP_NOTSENT_LOWAT`; no
    /// less without such a limit). Does nothing if `unread` is 0.
    #[must_use]
    pub fn paced(mut self, unread: u32) -> Self {
        if unread > 0 {
            let unsent = SockRef::from(self.downstream).tcp_notsent_lowat();
            let max_unsent = unsent.unwrap_or_default();
            // Into a window below a segment nothing is sent until a timer says so.
            let segment = SockRef::from(self.upstream).tcp_mss().unwrap_or_default();
            let paced = Box::new(Paced {
                pace: Pace::new(Instant::now().into_std(), unread.max(max_unsent)),
                unread: unread.min(4 * segment)..=unread,
                max_unsent,
            });
            let sockets = [self.upstream, self.downstream];
            paced.bound(&mut self.tx, sockets, paced.pace.bytes());
            self.pace = Some(paced);
        }
        self
    }

    /// Moves what can be moved; ready when there is no more to do but to reset a peer.
    fn poll_relayed(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let moved = Moved::new(self.meter);
        for direction in [Direction::Rx, Direction::Tx] {
            self.drive(cx, direction, &moved);
        }
        let both_ended = self.rx.finished() && self.tx.finished();
        if let Some(failure) = self.failed.take_if(|failure| failure.reading || both_ended) {
            let Failure { side, error, .. } = failure;
            return self.pass_on(cx, Outcome::Reset { side, error }, RESET_LIMIT);
        }
        if both_ended {
            return Poll::Ready(Outcome::Closed);
        }
        for direction in [Direction::Rx, Direction::Tx] {
            if let Poll::Ready(gone) = self.look_after(cx, direction) {
                return self.pass_on(cx, gone, Duration::ZERO);
            }
        }
        match &mut self.clock {
            None => Poll::Pending,
            Some(clock) => clock.poll_expired(cx, moved.bytes.get()),
        }
    }

    /// Ends the relay when the source of a stalled direction has been gone for long, or that of one that is over,
    /// which is the other's sink, for a while.
    fn look_after(&mut self, cx: &mut Context<'_>, direction: Direction) -> Poll<Outcome> {
        let (half, source, side) = match direction {
            Direction::Rx => (&mut self.rx, self.downstream, Side::Downstream),
            Direction::Tx => (&mut self.tx, self.upstream, Side::Upstream),
        };
        let over = half.end_passed();
        if !over && (half.finished() || !half.stalled()) {
            if let Some(watches) = &mut self.watches
                && let Some(watch) = &mut watches[direction as usize]
            {
                watch.patience.take_if(|(_, sleep)| sleep.is_elapsed());
            }
            return Poll::Pending;
        }
        let watches = self.watches.get_or_insert_default();
        let watch = watches[direction as usize].get_or_insert_with(|| Watch {
            gone: Box::pin(source.ready(Interest::ERROR)),
            grace: None,
            progress: 0,
            patience: None,
        });
        while half.in_pipe() > 0 {
            let progress = watch.progress;
            let from_now = || (progress, Box::pin(sleep_until(Instant::now() + PATIENCE)));
            let (before, patience) = watch.patience.get_or_insert_with(from_now);
            if patience.as_mut().poll(cx).is_pending() {
                break;
            }
            if *before == progress
                && self.pool.may_unload(half.in_pipe())
                && let Err(Failure { side, error, .. }) = half.unload(&self.pool)
            {
                return Poll::Ready(Outcome::Reset { side, error });
            }
            watch.patience = None;
        }
        if watch.grace.is_none() && watch.gone.as_mut().poll(cx).is_ready() {
            let limit = if over { END_LIMIT } else { RESET_LIMIT };
            watch.grace = Some(Box::pin(sleep_until(Instant::now() + limit)));
        }
        let Some(grace) = &mut watch.grace else {
            return Poll::Pending;
        };
        grace.as_mut().poll(cx).map(|()| Outcome::Reset {
            side,
            error: io::ErrorKind::ConnectionReset.into(),
        })
    }

    /// Has the peer that did not fail reset, once it was sent what there is for it.
    fn pass_on(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Outcome,
        limit: Duration,
    ) -> Poll<Outcome> {
        let (toward, survivor) = match &outcome {
            Outcome::Reset {
                side: Side::Downstream,
                ..
            } => (&self.rx, self.upstream),
            Outcome::Reset {
                side: Side::Upstream,
                ..
            } => (&self.tx, self.downstream),
            Outcome::Closed | Outcome::IdleTimeout | Outcome::MaxAge => {
                return Poll::Ready(outcome);
            }
        };
        if toward.end_passed() {
            return Poll::Ready(outcome);
        }
        self.rx.abandon(&self.pool);
        self.tx.abandon(&self.pool);
        let sending = Box::pin(reset_when_sent(survivor, limit));
        self.ending = Some(Box::new(Ending { outcome, sending }));
        self.poll_ending(cx)
    }

    /// Waits for the last bytes, within the limits of the relay.
    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(mut ending) = self.ending.take() else {
            return Poll::Pending;
        };
        let expired = |clock: &mut Box<Clock>| clock.poll_expired(cx, 0).is_ready();
        let over = self.clock.as_mut().is_some_and(expired);
        if !over && ending.sending.as_mut().poll(cx).is_pending() {
            self.ending = Some(ending);
            return Poll::Pending;
        }
        Poll::Ready(ending.outcome)
    }

    /// Drives one direction and records its failure.
    fn drive(&mut self, cx: &mut Context<'_>, direction: Direction, moved: &Moved<'_, M>) {
        let (half, other, source, sink) = match direction {
            Direction::Rx => (&mut self.rx, &self.tx, self.downstream, self.upstream),
            Direction::Tx => (&mut self.tx, &self.rx, self.upstream, self.downstream),
        };
        if half.finished() {
            return;
        }
        // The end that comes behind a failed write is none, only what a reset leaves; except behind
        // EPIPE: the peer's end had come before its reset (Linux, tcp_reset()).
        let whole = |failure: &Failure| failure.error.kind() == io::ErrorKind::BrokenPipe;
        let needs_end = half.is_shared() && self.failed.is_none();
        let last = other.finished() && !self.failed.as_ref().is_some_and(whole) && !needs_end;
        let before = moved.bytes.get();
        let polled = half.poll(cx, source, sink, &self.pool, moved, last);
        if moved.bytes.get() > before
            && let Some(watches) = &mut self.watches
            && let Some(watch) = &mut watches[direction as usize]
        {
            watch.progress += 1;
        }
        if let (Direction::Tx, Some(paced)) = (direction, &mut self.pace) {
            paced.moved(half, [source, sink], moved.bytes.get() - before);
        }
        if let Poll::Ready(Err(failure)) = polled {
            half.abandon(&self.pool);
            // The first failure is the cause; a failed read only follows a failed write.
            let ends_all = failure.reading;
            let first = self.failed.get_or_insert(failure);
            first.reading |= ends_all;
        }
    }
}

impl Paced {
    fn moved(&mut self, half: &mut Half, sockets: [&Socket; 2], bytes: u64) {
        let now = Instant::now().into_std();
        let state = match half.stalled() {
            true => SinkState::Full,
            false => SinkState::Dry,
        };
        if let Some(waiting) = self
            .pace
            .moved(now, bytes, state, || round_trip(sockets[1]))
        {
            self.bound(half, sockets, waiting);
        }
    }

    /// Has at most `waiting` bytes wait in each of both sockets, within the limits of each.
    fn bound(&self, half: &mut Half, [source, sink]: [&Socket; 2], waiting: u32) {
        let unsent = waiting.min(self.max_unsent);
        if self.max_unsent > 0 {
            // If the kernel refuses, what was set before stays.
            let _ = SockRef::from(sink).set_tcp_notsent_lowat(unsent);
        }
        let unread = waiting.clamp(*self.unread.start(), *self.unread.end());
        let is_less = unsent < self.max_unsent;
        half.bound(source, unread, if is_less { unsent } else { 0 });
    }
}

impl<M: Meter> Future for Relay<'_, M> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.ending {
            None => self.poll_relayed(cx),
            Some(_) => self.poll_ending(cx),
        }
    }
}

impl<M: Meter> Drop for Relay<'_, M> {
    fn drop(&mut self) {
        self.rx.release(&self.pool);
        self.tx.release(&self.pool);
    }
}
