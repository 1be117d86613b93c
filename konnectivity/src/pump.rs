//! Pumps packets between a link and its HTTP/2 stream, and keeps watch over the connection.
//!
//! ```text
//!   PacketReceiver ──▶ Link::handle_packet ──▶ events ──▶ tunnels' tasks
//!   PacketSender ◀── Link::poll_transmit ◀── what tunnels' tasks wrote, fairly
//!   PingPong ◀──▶ peer: no answer in time ──▶ the link ends
//! ```
//!
//! One future per link does all of it, so that one wake-up moves whole batches. What dials and
//! drains mean is told to the owner.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use knp_proto::{LinkError, Packet};
use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::fair_share::Flow;
use crate::grpc::{PacketReceiver, PacketSender, StreamError};
use crate::link::{EndOnDrop, LinkHandle, News, State, now};
use crate::metrics::{GrpcCode, Held};

/// What a pump works with.
pub(crate) struct Pump {
    link: LinkHandle,
    sender: PacketSender,
    receiver: PacketReceiver,
    /// The connection's, unless another stream of it has taken them.
    pings: Option<PingPong>,
    watch: Watch,
    timer: Timer,
    /// The connection's, for what packets cost beyond their bytes.
    flow: Rc<Flow>,
    /// Read, and not yet the link's.
    packets: VecDeque<Packet>,
    /// Held while slow sockets keep the stream's window from the peer.
    blocked: Option<Held>,
    /// Answers to unknown dials that were counted.
    unrecognized: u64,
}

/// How soon a peer that has vanished is noticed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    /// Time between pings.
    pub(crate) interval: Duration,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LinkEnd {
    /// This side ended it.
    #[error("closed: {0}")]
    Closed(&'static str),
    #[error("the peer ended the stream: {}", .0.as_deref().unwrap_or("no status"))]
    Finished(Option<String>),
    /// The peer misbehaves.
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the peer did not answer a ping in time")]
    Silent,
    /// The stream broke.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl LinkEnd {
    /// Returns the label for metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Closed(_) => "closed",
            Self::Finished(_) => "finished",
            Self::Link(LinkError::Garbage) => "garbage",
            Self::Link(_) => "violation",
            Self::Silent => "silent",
            Self::Stream(_) => "stream",
        }
    }
}

impl Pump {
    /// Makes the pump of a link whose stream has begun.
    pub(crate) fn new(
        link: LinkHandle,
        sender: PacketSender,
        receiver: PacketReceiver,
        pings: Option<PingPong>,
        liveness: Liveness,
        flow: Rc<Flow>,
    ) -> Self {
        Self {
            link,
            sender,
            receiver,
            pings,
            watch: Watch::new(liveness),
            timer: Timer::default(),
            flow,
            packets: VecDeque::new(),
            blocked: None,
            unrecognized: 0,
        }
    }

    /// Pumps until the link ends, tells `owner` what concerns it, and ends all tunnels. Dropping
    /// the future ends the link as well, without a word to the peer.
    pub(crate) async fn run(mut self, mut owner: impl FnMut(News)) -> LinkEnd {
        let ended = EndOnDrop(self.link.clone());
        let end = poll_fn(|cx| self.poll(cx, &mut owner)).await;
        drop(ended);
        if self.link.tunnels() > 0 {
            spawn_local(linger(self.link.clone()));
        }
        self.finish(&end);
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>, owner: &mut impl FnMut(News)) -> Poll<LinkEnd> {
        for _ in 0..BATCH {
            // First of all: whatever changes from here on has this polled again.
            self.link.0.lock().register_pump(cx);
            let received = match self.receive(cx) {
                Ok(received) => received,
                Err(end) => return Poll::Ready(end),
            };
            if received {
                self.watch.heard();
            }
            if let Err(error) = self.release() {
                return Poll::Ready(error.into());
            }
            if let Err(error) = self.transmit(cx) {
                return Poll::Ready(error.into());
            }
            let suspect = self.link.0.lock().suspect;
            let silent = self.watch.poll(cx, self.pings.as_mut(), suspect);
            if silent.is_ready() {
                return Poll::Ready(LinkEnd::Silent);
            }
            let due = {
                let mut state = self.link.0.lock();
                if let Some(closing) = state.closing {
                    return Poll::Ready(LinkEnd::Closed(closing));
                }
                if std::mem::take(&mut self.watch.news) && std::mem::take(&mut state.suspect) {
                    state.news.push_back(News::Alive(true));
                }
                state.link.poll_timeout()
            };
            self.tell(owner);
            let expired = self.timer.poll(cx, due.map(Instant::from_std)).is_ready();
            if expired {
                let mut state = self.link.0.lock();
                state.link.handle_timeout(now());
                self.link.0.settle_in_pump(&mut state);
            } else if !received {
                return Poll::Pending;
            }
        }
        // Other links and tunnels run first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads what is there; returns whether there was something.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, LinkEnd> {
        let len = match self.receiver.poll_packets(cx, &mut self.packets) {
            Poll::Ready(Ok(Some(len))) => len,
            Poll::Ready(Ok(None)) => return Err(LinkEnd::Finished(self.receiver.status())),
            Poll::Ready(Err(error)) => return Err(error.into()),
            Poll::Pending => return Ok(false),
        };
        let now = now();
        let mut state = self.link.0.lock();
        let state: &mut State = &mut state;
        state.unreleased += len;
        self.flow.charge(self.packets.len() * PACKET_COST);
        while let Some(packet) = self.packets.pop_front() {
            self.link.metrics().received.packet(packet.kind());
            state.link.handle_packet(now, packet)?;
        }
        let unrecognized = state.link.stats().unrecognized_responses;
        let more = unrecognized - std::mem::replace(&mut self.unrecognized, unrecognized);
        if more > 0 {
            state.news.push_back(News::Unrecognized(more));
        }
        self.link.0.settle_in_pump(state);
        Ok(true)
    }

    /// Returns to the stream's window what slow sockets do not withhold.
    fn release(&mut self) -> Result<(), StreamError> {
        let mut state = self.link.0.lock();
        let held_up = state.link.is_held_up();
        self.blocked = held_up.then(|| {
            let held = self.blocked.take();
            held.unwrap_or_else(|| self.link.metrics().blocked())
        });
        let release = state.unreleased.saturating_sub(state.link.withheld());
        state.unreleased -= release;
        let withheld = state.unreleased > 0;
        drop(state);
        // Also nothing: HTTP/2 keeps an update back while the peer has twice as much, and looks
        // again only when it is asked.
        match release > 0 || withheld {
            true => self.receiver.release(release),
            false => Ok(()),
        }
    }

    /// Sends what the stream takes.
    fn transmit(&mut self, cx: &mut Context<'_>) -> Result<(), StreamError> {
        let now = now();
        loop {
            if !self.link.0.lock().link.has_transmit() {
                return self.sender.flush();
            }
            match self.sender.poll_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
            let mut state = self.link.0.lock();
            let kind = self
                .sender
                .transmit(|buf| state.link.poll_transmit(now, buf))?;
            self.link.0.settle_in_pump(&mut state);
            drop(state);
            match kind {
                Some(kind) => self.link.metrics().sent.packet(kind),
                None => return self.sender.flush(),
            }
        }
    }

    fn tell(&self, owner: &mut impl FnMut(News)) {
        loop {
            // Not held while the owner is told: it may dial, or start a task that does.
            let Some(news) = self.link.0.lock().news.pop_front() else {
                return;
            };
            owner(news);
        }
    }

    fn finish(self, end: &LinkEnd) {
        let metrics = self.link.metrics();
        match end {
            LinkEnd::Closed(text) => return self.sender.end(GrpcCode::UNAVAILABLE, text),
            LinkEnd::Finished(_) => return self.sender.end(GrpcCode::OK, ""),
            LinkEnd::Link(_) => {}
            LinkEnd::Silent => metrics.liveness_failure(),
            LinkEnd::Stream(error) => metrics.received.error(error.code(), None),
        }
        self.sender.reset();
    }
}

/// Gives up the sockets that do not take in time what there was for them at the end of `link`; ends once
/// no tunnel is left.
async fn linger(link: LinkHandle) {
    let mut timer = Timer::default();
    let poll = |cx: &mut Context<'_>| loop {
        let mut state = link.0.lock();
        state.register_pump(cx);
        let Some(due) = state.link.poll_timeout() else {
            return Poll::Ready(());
        };
        ready!(timer.poll(cx, Some(Instant::from_std(due))));
        state.link.handle_timeout(now());
        link.0.settle_in_pump(&mut state);
    };
    poll_fn(poll).await;
}

/// A timer that is set anew only when it would ring too late.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    fn poll(&mut self, cx: &mut Context<'_>, due: Option<Instant>) -> Poll<()> {
        let Some(due) = due else { return Poll::Pending };
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due || sleep.is_elapsed() {
            sleep.as_mut().reset(due);
        }
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        if Instant::now() >= due {
            return Poll::Ready(());
        }
        // It was set for something that did not have to wait for it.
        sleep.as_mut().reset(due);
        sleep.as_mut().poll(cx)
    }
}

/// How a peer is asked for a sign of life.
pub(crate) trait Pings {
    /// Asks.
    fn ask(&mut self);

    /// Waits for the answer; an error when the connection is over.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ()>>;
}

impl Pings for PingPong {
    fn ask(&mut self) {
        // Refused only while another one is under way.
        drop(self.send_ping(Ping::opaque()));
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.poll_pong(cx).map(|pong| pong.map(drop).map_err(drop))
    }
}

/// Pings the peer, and tells when it does not answer.
pub(crate) struct Watch {
    liveness: Liveness,
    sleep: Pin<Box<Sleep>>,
    /// A ping waits for its answer.
    asked: bool,
    heard: Instant,
    /// Something came since this was looked at last.
    news: bool,
}

impl Watch {
    pub(crate) fn new(liveness: Liveness) -> Self {
        let now = Instant::now();
        Self {
            liveness,
            sleep: Box::pin(sleep_until(now + liveness.interval)),
            asked: false,
            heard: now,
            news: false,
        }
    }

    /// Something came, which is as good as an answer.
    fn heard(&mut self) {
        self.heard = Instant::now();
        self.news = true;
    }

    /// Ready once the peer is to be given up. `suspect` has it asked right away.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        pings: Option<&mut impl Pings>,
        mut suspect: bool,
    ) -> Poll<()> {
        let Some(pings) = pings else {
            return Poll::Pending;
        };
        loop {
            if self.asked {
                match pings.poll_answer(cx) {
                    Poll::Ready(Ok(())) => {
                        self.heard();
                        self.asked = false;
                        let at = self.heard + self.liveness.interval;
                        self.sleep.as_mut().reset(at);
                        suspect = false;
                        continue;
                    }
                    // The stream's end tells why.
                    Poll::Ready(Err(())) => return Poll::Pending,
                    Poll::Pending => {}
                }
            } else if suspect {
                self.ask(pings);
                continue;
            }
            ready!(self.sleep.as_mut().poll(cx));
            let silent = self.heard.elapsed();
            if !self.asked {
                self.ask(pings);
            } else if silent >= self.liveness.timeout {
                return Poll::Ready(());
            } else {
                // Data came since, though the answer is still behind it.
                let at = self.heard + self.liveness.timeout;
                self.sleep.as_mut().reset(at);
            }
        }
    }

    fn ask(&mut self, pings: &mut impl Pings) {
        pings.ask();
        self.asked = true;
        let now = Instant::now();
        self.sleep.as_mut().reset(now + self.liveness.timeout);
    }
}

/// What a packet costs, in bytes of large ones.
const PACKET_COST: usize = 256;
/// Batches in a row.
const BATCH: usize = 16;

#[cfg(test)]
mod tests;
