//! A link that several tasks use at once: one pumps packets, each of the others has a tunnel.
//!
//! ```text
//!   frontends, destinations ── Tunnel, LinkHandle ──▶ Mutex<Link> ◀── pump (see `pump`) ──▶ HTTP/2
//!              ▲                                         │ events
//!              └───────────────── wake ◀─────────────────┘
//! ```
//!
//! Every change of the [`Link`] is followed at once by telling those whom its events concern. The
//! lock is held for one change or one batch of packets, never across an await. What a tunnel's
//! bytes are, and which link a dial goes to, is decided elsewhere.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use knp_proto::{
    ConnectId, DialId, DialRefused, DialTarget, EndReason, Event, Gone, Link, Read, StreamId,
    TunnelId, WriteError,
};
use telemetry::lock;
use tokio::time::{Instant, timeout};

use crate::metrics::LinkMetrics;

/// A link. Clones are the same one.
#[derive(Clone)]
pub(crate) struct LinkHandle(pub(crate) Arc<Shared>);

/// What the tasks of a link share.
pub(crate) struct Shared {
    stream: StreamId,
    metrics: Arc<LinkMetrics>,
    state: Mutex<State>,
}

/// The link, and who waits for what.
pub(crate) struct State {
    pub(crate) link: Link,
    tunnels: HashMap<TunnelId, Waiting>,
    /// What the pump has to pass on.
    pub(crate) news: VecDeque<News>,
    /// The pump's.
    waker: Option<Waker>,
    /// Set once the link is to end.
    pub(crate) closing: Option<&'static str>,
    /// A dial got no answer, and nothing has come since.
    pub(crate) suspect: bool,
    /// Bytes that came and were not returned to the stream's window.
    pub(crate) unreleased: usize,
}

/// Ends a link when it is dropped, so that no task waits for one whose pump is gone.
pub(crate) struct EndOnDrop(pub(crate) LinkHandle);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.0.change(|link| link.end(now()));
    }
}

/// What concerns the owner of a link.
pub(crate) enum News {
    /// The peer asks for a connection.
    Dial(TunnelId, DialTarget),
    /// The peer prefers not to be dialed.
    Draining,
    /// Whether the peer can be expected to answer has changed.
    Alive(bool),
    /// So many answers came to dials that are not under way.
    Unrecognized(u64),
}

/// Who waits for one tunnel, and how far it is.
#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    /// Set once the dial has succeeded, even if the tunnel was over a moment later.
    open: Option<ConnectId>,
    ended: Option<EndReason>,
}

/// Why there is no tunnel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the dial ended: {}", .0.reason())]
    Ended(EndReason),
    /// The dial was not begun.
    #[error(transparent)]
    Refused(#[from] DialRefused),
}

impl LinkHandle {
    /// Shares `link`, whose doings are counted in `metrics`.
    pub(crate) fn new(link: Link, metrics: Arc<LinkMetrics>) -> Self {
        Self(Arc::new(Shared {
            stream: link.stream(),
            metrics,
            state: Mutex::new(State {
                link,
                tunnels: HashMap::new(),
                news: VecDeque::new(),
                waker: None,
                closing: None,
                suspect: false,
                unreleased: 0,
            }),
        }))
    }

    /// Returns which stream it is.
    pub(crate) fn stream(&self) -> StreamId {
        self.0.stream
    }

    /// Returns where its doings are counted.
    pub(crate) fn metrics(&self) -> &LinkMetrics {
        &self.0.metrics
    }

    /// Asks the agent for a connection, which it may take `limit` for. Dropping the future calls the
    /// dial off.
    pub(crate) async fn dial(
        &self,
        random: DialId,
        target: DialTarget,
        limit: Duration,
    ) -> Result<Tunnel, DialError> {
        let mut tunnel = {
            let mut state = self.0.lock();
            let id = state.link.dial(now(), random, target)?;
            state.tunnels.insert(id, Waiting::default());
            self.0.settle(&mut state);
            self.tunnel(id)
        };
        let progress = timeout(limit, poll_fn(|cx| tunnel.poll_progress(cx))).await;
        let progress = progress.unwrap_or_else(|_| {
            self.0.change(|link| link.give_up_dial(tunnel.id));
            Err(EndReason::DialTimeout)
        });
        tunnel.connect_id = progress.map_err(DialError::Ended)?;
        Ok(tunnel)
    }

    /// Returns what the peer asked for by [`News::Dial`].
    pub(crate) fn pending(&self, id: TunnelId, target: DialTarget) -> PendingDial {
        // Known since the event: it may have been called off meanwhile.
        let tunnel = self.tunnel(id);
        PendingDial { tunnel, target }
    }

    fn tunnel(&self, id: TunnelId) -> Tunnel {
        Tunnel {
            shared: Arc::clone(&self.0),
            id,
            connect_id: ConnectId(0),
        }
    }

    /// Asks the server to dial other agents from now on, or the agent to find another server.
    pub(crate) fn drain(&self) {
        self.0.change(Link::drain);
    }

    /// Ends the link and with it all its tunnels. `why` is the text of a server's gRPC status.
    pub(crate) fn close(&self, why: &'static str) {
        let mut state = self.0.lock();
        state.closing.get_or_insert(why);
        state.wake_pump();
    }

    /// Marks the peer as dead after a dial without an answer, until something comes.
    pub(crate) fn suspect(&self) {
        let mut state = self.0.lock();
        if !std::mem::replace(&mut state.suspect, true) {
            state.news.push_back(News::Alive(false));
            state.wake_pump();
        }
    }

    /// Returns the number of tunnels, those being dialed or closed included.
    pub(crate) fn tunnels(&self) -> usize {
        self.0.lock().link.tunnels()
    }

    /// Returns what was odd about the peer so far.
    pub(crate) fn stats(&self) -> knp_proto::LinkStats {
        self.0.lock().link.stats()
    }
}

impl Shared {
    /// A panic of another task leaves the state as the last whole change left it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes the link and tells whom it concerns.
    fn change<R>(&self, change: impl FnOnce(&mut Link) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.link);
        self.settle(&mut state);
        result
    }

    /// Passes on what the last change brought about, and has the pump see to the rest.
    pub(crate) fn settle(&self, state: &mut State) {
        self.settle_in_pump(state);
        let release = state.unreleased >= state.link.withheld() + RELEASE;
        // The last tunnel of a link that has ended ends its clock.
        let last = state.link.tunnels() == 0;
        if release || last || state.link.has_transmit() || !state.news.is_empty() {
            state.wake_pump();
        }
    }

    /// Passes on what the last change brought about; for the pump, which sees to the rest itself.
    pub(crate) fn settle_in_pump(&self, state: &mut State) {
        while let Some(event) = state.link.poll_event() {
            match event {
                Event::Readable(tunnel) | Event::Writable(tunnel) => state.wake(tunnel, |_| {}),
                Event::Established(tunnel, connect_id) => {
                    state.wake(tunnel, |waiting| waiting.open = Some(connect_id));
                }
                Event::Ended(tunnel, reason) => {
                    self.metrics.ended(&reason);
                    state.wake(tunnel, |waiting| waiting.ended = Some(reason));
                }
                Event::Dial(tunnel, target) => {
                    state.tunnels.insert(tunnel, Waiting::default());
                    state.news.push_back(News::Dial(tunnel, target));
                }
                Event::Draining => state.news.push_back(News::Draining),
                // The enum may grow; what is not known does not concern this side.
                _ => {}
            }
        }
    }
}

impl State {
    fn wake(&mut self, id: TunnelId, change: impl FnOnce(&mut Waiting)) {
        // Who has dropped its tunnel is not there any more.
        let Some(waiting) = self.tunnels.get_mut(&id) else {
            return;
        };
        change(waiting);
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    fn wake_pump(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Has the pump polled again when there is something for it. To be called before it looks.
    pub(crate) fn register_pump(&mut self, cx: &Context<'_>) {
        register(&mut self.waker, cx);
    }
}

/// This end of one tunnel. Dropping it closes the tunnel: what was written still goes out, and
/// unless [`Tunnel::finish`] was called the other end hears that something is missing.
pub(crate) struct Tunnel {
    shared: Arc<Shared>,
    id: TunnelId,
    connect_id: ConnectId,
}

/// What a tunnel has for its socket.
#[derive(Debug)]
pub(crate) enum TunnelRead {
    /// Bytes; say with [`Tunnel::consumed`] when they are written.
    Data(Bytes),
    /// No more will come; the other direction goes on.
    End,
    /// The tunnel is over.
    Ended(EndReason),
}

impl Tunnel {
    /// Returns the agent's number for the connection.
    pub(crate) fn connect_id(&self) -> ConnectId {
        self.connect_id
    }

    /// Returns where its link's doings are counted.
    pub(crate) fn metrics(&self) -> &LinkMetrics {
        &self.shared.metrics
    }

    /// Waits for the end of the dial. Cancel-safe.
    fn poll_progress(&self, cx: &Context<'_>) -> Poll<Result<ConnectId, EndReason>> {
        let mut state = self.shared.lock();
        match state.tunnels.get(&self.id).map(|waiting| waiting.open) {
            Some(Some(connect_id)) => Poll::Ready(Ok(connect_id)),
            Some(None) => state.wait(self.id, cx).map(Err),
            None => Poll::Ready(Err(EndReason::LinkLost)),
        }
    }

    /// Returns why the tunnel is over, if it is; else has `cx` woken by whatever changes.
    pub(crate) fn poll_ended(&self, cx: &Context<'_>) -> Poll<EndReason> {
        let mut state = self.shared.lock();
        state.wait(self.id, cx)
    }

    /// Returns at most `max` bytes for the socket; [`TunnelRead::End`] comes again each time.
    pub(crate) fn poll_read(&self, cx: &Context<'_>, max: usize) -> Poll<TunnelRead> {
        let mut state = self.shared.lock();
        match state.link.read(self.id, max) {
            Ok(Read::Data(data)) => Poll::Ready(TunnelRead::Data(data)),
            Ok(Read::End) => Poll::Ready(TunnelRead::End),
            // An end may be told while there was still something to read.
            Ok(Read::Pending) | Err(Gone) => state.wait(self.id, cx).map(TunnelRead::Ended),
        }
    }

    /// Waits until there is space, and returns for how many bytes. Cancel-safe. Never once the
    /// tunnel takes no more; its end is told by the other methods.
    pub(crate) fn poll_capacity(&self, cx: &Context<'_>) -> Poll<usize> {
        let mut state = self.shared.lock();
        match state.link.write_capacity(self.id) {
            0 => {
                drop(state.wait(self.id, cx));
                Poll::Pending
            }
            capacity => Poll::Ready(capacity),
        }
    }

    /// Queues bytes from the socket, no more than there is space for.
    ///
    /// # Errors
    /// See [`WriteError`]; the bytes are lost.
    pub(crate) fn write(&self, data: Bytes) -> Result<(), WriteError> {
        self.shared.change(|link| link.write(self.id, data))
    }

    /// Reports that the socket has taken `len` bytes of what was read.
    pub(crate) fn consumed(&self, len: usize) {
        (self.shared).change(|link| link.consumed(now(), self.id, len));
    }

    /// Reports that the socket will send no more.
    pub(crate) fn finish(&self) {
        self.shared.change(|link| link.finish(now(), self.id));
    }
}

impl State {
    fn wait(&mut self, id: TunnelId, cx: &Context<'_>) -> Poll<EndReason> {
        match self.tunnels.get_mut(&id) {
            Some(waiting) => {
                if let Some(reason) = &waiting.ended {
                    return Poll::Ready(reason.clone());
                }
                register(&mut waiting.waker, cx);
                Poll::Pending
            }
            None => Poll::Ready(EndReason::LocalClosed),
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.tunnels.remove(&self.id);
        // Of one that has finished this is the close, of any other the word that it is cut.
        state.link.close(now(), self.id);
        self.shared.settle(&mut state);
    }
}

/// A connection the peer asked for. Dropping it answers that the dial was canceled.
pub(crate) struct PendingDial {
    tunnel: Tunnel,
    /// Where to.
    pub(crate) target: DialTarget,
}

impl PendingDial {
    /// Waits until the connection is no longer wanted. Cancel-safe.
    pub(crate) async fn canceled(&self) {
        // A dial that is not answered ends in one way only.
        while poll_fn(|cx| self.tunnel.poll_progress(cx)).await.is_ok() {}
    }

    /// Reports that the connection is open.
    ///
    /// # Errors
    /// [`Gone`] when it is no longer wanted.
    pub(crate) fn established(self) -> Result<Tunnel, Gone> {
        let mut tunnel = self.tunnel;
        let mut state = tunnel.shared.lock();
        let connect_id = state.link.dialed(now(), tunnel.id, Ok(()))?;
        if let Some(waiting) = state.tunnels.get_mut(&tunnel.id) {
            waiting.open = Some(connect_id);
        }
        tunnel.shared.settle(&mut state);
        drop(state);
        tunnel.connect_id = connect_id;
        Ok(tunnel)
    }

    /// Reports why there is no connection.
    pub(crate) fn failed(self, text: String) {
        let id = self.tunnel.id;
        (self.tunnel.shared).change(|link| {
            let _ = link.dialed(now(), id, Err(text));
        });
    }
}

/// Bytes of the stream's window that are worth waking the pump for.
const RELEASE: usize = 32 << 10;

/// Has the task woken; one that is known already is not cloned again.
fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

/// The time, by a clock that tests can pause.
pub(crate) fn now() -> std::time::Instant {
    Instant::now().into_std()
}
