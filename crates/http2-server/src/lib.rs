//! A server's end of one connection: its bytes, and a future for each of its streams.
//!
//! ```text
//!   socket ──▶ Host ──▶ Connection ──▶ Event::Request ──▶ a future for each stream
//!   socket ◀── writev ◀── output ◀── send, end ◀── Stream ◀──┘
//! ```
//!
//! One future serves a connection with all its streams, so that what one wake-up brings is read,
//! carried out and answered at once. There is no buffer here: what is read goes where the host
//! says. Clocks are the host's, and what the protocol is, `http2_proto` knows.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, Stream as _};
use http2_proto::{
    Connection, ConnectionError, ErrorCode, Event, Params, Read, Request, StreamEnd, StreamId,
};
use tokio::io::AsyncWrite;

/// What a server of connections over `S` needs.
pub trait Host<S> {
    /// Reads once; no bytes are the end of the connection. Cancel-safe.
    ///
    /// # Errors
    /// Those of the connection.
    fn poll_read(&mut self, cx: &mut Context<'_>, io: &mut S) -> Poll<io::Result<Bytes>>;

    /// Ready once the client is to be given up: because it is silent, say.
    fn poll_given_up(&mut self, cx: &mut Context<'_>, peer: &Peer<'_>) -> Poll<()>;

    /// The socket, which had taken nothing more, does so again: its peer has taken something, though it may say nothing.
    /// Of what is in the kernel at the end of all that is written nothing is heard.
    fn unblocked(&mut self) {}
}

/// A client, as its server's host sees it.
#[derive(Debug)]
pub struct Peer<'a>(&'a Shared);

impl Peer<'_> {
    /// Asks for a sign of life.
    pub fn ping(&self) {
        self.0.pong.set(false);
        self.0.core.borrow_mut().ping();
    }

    /// Returns whether there was an answer since it was asked for, once.
    #[must_use]
    pub fn take_pong(&self) -> bool {
        self.0.pong.take()
    }

    /// Returns the number of the block of headers of which a part has come; it wraps.
    #[must_use]
    pub fn unfinished_block(&self) -> Option<u32> {
        self.0.core.borrow().unfinished_block()
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// The client closed it.
    #[error("the client closed the connection")]
    Closed,
    /// The host has given up the client.
    #[error("the client was given up")]
    GivenUp,
    /// This side has left, and all streams have ended.
    #[error("the connection was shut down")]
    Left,
    /// The client broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ConnectionError),
    /// Reading or writing failed.
    #[error("the socket")]
    Socket(#[from] io::Error),
}

/// A connection and its streams' futures.
pub struct Server<'a, S, H, B> {
    io: S,
    host: H,
    shared: Rc<Shared>,
    streams: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    /// Makes the future of a stream.
    begin: B,
    /// Set once nothing comes any more; the streams see it by themselves.
    end: Option<End>,
    /// Nothing can be written any more.
    gone: bool,
    /// Whether the socket may hold bytes that were written to it: TLS does.
    unflushed: bool,
    /// The socket takes nothing more for now.
    blocked: bool,
    /// Bytes that came after the connection was closed.
    dropped: usize,
}

/// What a connection and its streams have together.
#[derive(Debug)]
struct Shared {
    core: RefCell<Connection>,
    /// Who waits, by stream.
    wakers: RefCell<Vec<(StreamId, Wakers)>>,
    pong: Cell<bool>,
    /// Who serves the connection, and whether it does so now.
    task: RefCell<Option<Waker>>,
    serves: Cell<bool>,
}

/// Who waits for a stream.
#[derive(Debug, Default)]
struct Wakers {
    reader: Option<Waker>,
    owner: Option<Waker>,
}

impl<S, H, B> std::fmt::Debug for Server<'_, S, H, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl<'a, S, H, B, F> Server<'a, S, H, B>
where
    S: AsyncWrite + Unpin,
    H: Host<S>,
    B: FnMut(Stream, Request) -> F,
    F: Future<Output = ()> + 'a,
{
    /// Makes the server of a connection. What `begin` makes of a request is polled to its end.
    pub fn new(io: S, params: Params, host: H, begin: B) -> Self {
        Self {
            io,
            host,
            shared: Rc::new(Shared {
                core: RefCell::new(Connection::new(params)),
                wakers: RefCell::default(),
                pong: Cell::new(false),
                task: RefCell::default(),
                serves: Cell::new(false),
            }),
            streams: FuturesUnordered::new(),
            begin,
            end: None,
            gone: false,
            unflushed: false,
            blocked: false,
            dropped: 0,
        }
    }

    /// Waits until the client has said that it speaks HTTP/2. Cancel-safe.
    ///
    /// # Errors
    /// [`End`] when the connection has ended before.
    pub async fn begun(&mut self) -> Result<(), End> {
        poll_fn(|cx| {
            let polled = self.poll(cx);
            let begun = self.shared.core.borrow().is_begun();
            match polled {
                Poll::Ready(end) if begun => {
                    self.end = Some(end);
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(end) => Poll::Ready(Err(end)),
                Poll::Pending if begun => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Returns the host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns whether there are no streams.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Accepts no more streams than the client has begun when it hears of this: see [`Connection::leave`].
    pub fn leave(&mut self) {
        self.shared.core.borrow_mut().leave();
    }

    /// Accepts no more streams.
    pub fn go_away(&mut self) {
        self.shared.core.borrow_mut().go_away();
    }

    /// Serves the connection until it ends; its streams have ended by then. Cancel-safe.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.shared.serve_by(cx.waker());
        let polled = self.poll_rounds(cx);
        self.shared.serves.set(false);
        polled
    }

    fn poll_rounds(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..BATCH {
            let read = self.poll_read(cx);
            let mut told = self.tell();
            let peer = Peer(&self.shared);
            if self.end.is_none() && self.host.poll_given_up(cx, &peer).is_ready() {
                self.lost(End::GivenUp);
                // Its streams hear of it in the next round.
                told = true;
            }
            while let Poll::Ready(Some(())) = Pin::new(&mut self.streams).poll_next(cx) {}
            let wrote = match self.poll_write(cx) {
                Poll::Ready(Ok(wrote)) => wrote,
                Poll::Ready(Err(error)) => {
                    self.lost(End::Socket(error));
                    true
                }
                Poll::Pending => false,
            };
            if self.streams.is_empty() {
                if let Some(end) = self.end.take() {
                    return Poll::Ready(end);
                }
                if self.shared.core.borrow().is_finished() {
                    return Poll::Ready(End::Left);
                }
            }
            if read.is_pending() && !told && !wrote {
                return Poll::Pending;
            }
        }
        // Other connections run first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads and understands what is there, once.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.end.is_some() {
            return Poll::Pending;
        }
        match ready!(self.host.poll_read(cx, &mut self.io)) {
            Ok(bytes) if bytes.is_empty() => self.lost(End::Closed),
            Ok(bytes) => {
                let handled = self.shared.core.borrow_mut().handle_input(bytes);
                self.end = handled.err().map(End::Protocol);
            }
            Err(error) => self.lost(End::Socket(error)),
        }
        Poll::Ready(())
    }

    /// Passes on what has happened; returns whether something has.
    fn tell(&mut self) -> bool {
        let mut told = false;
        loop {
            let Some(event) = self.shared.core.borrow_mut().poll_event() else {
                return told;
            };
            told = true;
            match event {
                Event::Changed(id) => self.shared.wake(id),
                Event::Pong => self.shared.pong.set(true),
                Event::Request(id, request) => {
                    let shared = Rc::clone(&self.shared);
                    let future = (self.begin)(Stream { shared, id }, request);
                    self.streams.push(Box::pin(future));
                }
            }
        }
    }

    /// Writes what the socket takes; returns whether it took something.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.gone {
            return Poll::Ready(Ok(false));
        }
        let mut core = self.shared.core.borrow_mut();
        let mut wrote = false;
        loop {
            let output = core.transmit();
            if output.is_empty() {
                break;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = output.slices(&mut slices);
            let slices = slices.get(..count).unwrap_or_default();
            let all: usize = slices.iter().map(|slice| slice.len()).sum();
            let len = match Pin::new(&mut self.io).poll_write_vectored(cx, slices) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(len)) => len,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.blocked = true;
                    break;
                }
            };
            if std::mem::take(&mut self.blocked) {
                self.host.unblocked();
            }
            core.written(len);
            (wrote, self.unflushed) = (true, true);
            if len == all && !core.wants_write() {
                // Streams may have more, which goes better together.
                break;
            }
        }
        drop(core);
        if self.unflushed && Pin::new(&mut self.io).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        Poll::Ready(Ok(wrote))
    }

    /// Writes what is left, and ends what this side sends. Cancel-safe.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while ready!(self.poll_write(cx))? {}
        if !self.gone && (self.shared.core.borrow().wants_write() || self.unflushed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// Waits until the client has closed a connection on which nothing is written any more. One that is closed ahead
    /// of that could lose what the client has not read, the reason among it; not for one that goes on sending much.
    /// Cancel-safe.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..BATCH {
            match ready!(self.host.poll_read(cx, &mut self.io)) {
                Ok(bytes) if !bytes.is_empty() && !self.gone && self.dropped < MAX_DROPPED => {
                    self.dropped += bytes.len();
                }
                Ok(_) | Err(_) => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The connection is of no more use.
    fn lost(&mut self, end: End) {
        self.shared.core.borrow_mut().handle_end();
        self.gone = true;
        self.end = Some(end);
    }
}

impl Shared {
    /// What streams change from now on is seen by the task that serves the connection.
    fn serve_by(&self, waker: &Waker) {
        let mut task = self.task.borrow_mut();
        match &mut *task {
            Some(task) => task.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
        self.serves.set(true);
    }

    /// Changes the connection on behalf of a stream, and has that written.
    fn change<T>(&self, change: impl FnOnce(&mut Connection) -> T) -> T {
        let mut core = self.core.borrow_mut();
        let changed = change(&mut core);
        if !self.serves.get() && core.has_output() {
            let task = self.task.borrow();
            task.iter().for_each(Waker::wake_by_ref);
        }
        changed
    }

    fn wake(&self, id: StreamId) {
        let wakers = self.wakers.borrow();
        if let Ok(at) = wakers.binary_search_by_key(&id, |(id, _)| *id)
            && let Some((_, own)) = wakers.get(at)
        {
            let both = own.reader.iter().chain(&own.owner);
            both.for_each(Waker::wake_by_ref);
        }
    }

    /// Has the task polled again when something changes about the stream.
    fn wait<T>(
        &self,
        id: StreamId,
        cx: &Context<'_>,
        who: fn(&mut Wakers) -> &mut Option<Waker>,
    ) -> Poll<T> {
        let mut wakers = self.wakers.borrow_mut();
        let at = match wakers.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => at,
            Err(at) => {
                wakers.insert(at, (id, Wakers::default()));
                at
            }
        };
        if let Some((_, own)) = wakers.get_mut(at) {
            match who(own) {
                Some(waker) => waker.clone_from(cx.waker()),
                waker @ None => *waker = Some(cx.waker().clone()),
            }
        }
        Poll::Pending
    }

    fn poll_read(
        &self,
        id: StreamId,
        cx: &Context<'_>,
        who: fn(&mut Wakers) -> &mut Option<Waker>,
    ) -> Poll<Result<Read, StreamEnd>> {
        let read = self.core.borrow_mut().read(id);
        match read.transpose() {
            Some(read) => Poll::Ready(read),
            None => self.wait(id, cx, who),
        }
    }
}

/// One stream of a connection. Dropping it resets the stream unless it was ended.
#[derive(Debug)]
pub struct Stream {
    shared: Rc<Shared>,
    id: StreamId,
}

impl Stream {
    /// Returns what reads the stream in another task.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader {
            shared: Rc::clone(&self.shared),
            id: self.id,
        }
    }

    /// Answers the request; `end` says that nothing follows.
    pub fn respond(&self, fields: &[(&[u8], &[u8])], end: bool) {
        self.shared
            .change(|core| core.respond(self.id, fields, end));
    }

    /// Waits until more can be sent. Cancel-safe.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), StreamEnd>> {
        let window = self.shared.core.borrow_mut().capacity(self.id);
        match window {
            Ok(0) => self.wait(cx),
            Ok(_) => Poll::Ready(Ok(())),
            Err(end) => Poll::Ready(Err(end)),
        }
    }

    /// Waits for bytes, or for their end. Cancel-safe.
    pub fn poll_read(&self, cx: &Context<'_>) -> Poll<Result<Read, StreamEnd>> {
        self.shared.poll_read(self.id, cx, |own| &mut own.owner)
    }

    /// Waits until the stream is over before its time; it never is otherwise. Cancel-safe.
    pub fn poll_end(&self, cx: &Context<'_>) -> Poll<StreamEnd> {
        let end = self.shared.core.borrow().end_of(self.id);
        match end {
            Some(end) => Poll::Ready(end),
            None => self.wait(cx),
        }
    }

    /// Releases bytes that were read.
    pub fn consumed(&self, bytes: usize) {
        self.shared.change(|core| core.consumed(self.id, bytes));
    }

    /// Sends bytes, more than the window if need be: they wait.
    ///
    /// # Errors
    /// [`StreamEnd`] when the stream is over.
    pub fn send(&self, head: &[u8], payload: Bytes) -> Result<(), StreamEnd> {
        self.shared.change(|core| core.send(self.id, head, payload))
    }

    /// Ends the stream in order.
    pub fn end(&self, trailers: &[(&[u8], &[u8])]) {
        self.shared.change(|core| core.end(self.id, trailers));
    }

    /// Waits until a stream that was ended in order is on its way as a whole. Cancel-safe.
    pub fn poll_sent(&self, cx: &Context<'_>) -> Poll<Result<(), StreamEnd>> {
        let sent = self.shared.change(|core| core.is_sent(self.id));
        match sent {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => self.wait(cx),
            Err(end) => Poll::Ready(Err(end)),
        }
    }

    /// Ends the stream now.
    pub fn reset(&self, code: ErrorCode) {
        self.shared.change(|core| core.reset(self.id, code));
    }

    fn wait<T>(&self, cx: &Context<'_>) -> Poll<T> {
        self.shared.wait(self.id, cx, |own| &mut own.owner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.change(|core| core.release(self.id));
        let mut wakers = self.shared.wakers.borrow_mut();
        if let Ok(at) = wakers.binary_search_by_key(&self.id, |(id, _)| *id) {
            // A reader sees the end.
            let (_, own) = wakers.remove(at);
            own.reader.iter().for_each(Waker::wake_by_ref);
        }
        if wakers.is_empty() {
            *wakers = Vec::new();
        }
    }
}

/// What a client sends on a stream. Dropped, it drops the rest; it ends with its [`Stream`].
#[derive(Debug)]
pub struct Reader {
    shared: Rc<Shared>,
    id: StreamId,
}

impl Reader {
    /// Waits for bytes, which the client may send as many of again, or for their end. Cancel-safe.
    pub fn poll_read(&self, cx: &Context<'_>) -> Poll<Result<Read, StreamEnd>> {
        let read = ready!(self.shared.poll_read(self.id, cx, |own| &mut own.reader))?;
        if let Read::Data(bytes) = &read {
            let len = bytes.len();
            self.shared.change(|core| core.consumed(self.id, len));
        }
        Poll::Ready(Ok(read))
    }

    /// Returns whether nothing more can be read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.shared.core.borrow().is_read(self.id)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.change(|core| core.stop_reading(self.id));
        let mut wakers = self.shared.wakers.borrow_mut();
        if let Ok(at) = wakers.binary_search_by_key(&self.id, |(id, _)| *id)
            && let Some((_, own)) = wakers.get_mut(at)
        {
            own.reader = None;
            if own.owner.is_none() {
                wakers.remove(at);
            }
        }
    }
}

/// Rounds in a row.
const BATCH: usize = 16;
/// Bytes that a client may still send when it has been told that the connection ends.
const MAX_DROPPED: usize = 256 << 10;
/// Slices of one write: the frames of some packets.
const SLICES: usize = 64;

#[cfg(test)]
mod tests;
