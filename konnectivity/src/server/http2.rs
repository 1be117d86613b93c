//! HTTP/2 for API servers: a connection's bytes, and a task's share of it for each stream.
//!
//! ```text
//!   socket ──▶ scratch ──▶ Connection ──▶ Event::Request ──▶ a future for each stream
//!   socket ◀── writev ◀── output ◀── send, end ◀── Stream ◀──┘
//! ```
//!
//! One future serves a connection with all its streams, so that what one wake-up brings is read,
//! carried out and answered at once. What the protocol is, `http2_proto` knows; what requests
//! mean, the owner. There is no buffer here: what is read goes into the worker's scratch memory.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use connect::Stream as Io;
use futures_util::stream::{FuturesUnordered, Stream as _};
use http2_proto::{
    Connection, ConnectionError, ErrorCode, Event, Params, Read, Request, StreamEnd, StreamId,
};
use tokio::time::timeout;

use crate::pump::{Pings, Watch};
use crate::relay::Scratch;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum End {
    #[error("the client closed the connection")]
    Closed,
    /// The client broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ConnectionError),
    #[error("the client did not answer a ping in time")]
    Silent,
    #[error("the socket")]
    Socket(#[from] io::Error),
}

/// A connection and its streams' futures.
pub(super) struct Server<'a, S, B> {
    io: S,
    shared: Rc<Shared>,
    streams: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    /// Makes the future of a stream.
    begin: B,
    scratch: Scratch,
    watch: Watch,
    /// Set once nothing comes any more; the streams see it by themselves.
    end: Option<End>,
    /// Whether the socket may hold bytes that were written to it: TLS does.
    unflushed: bool,
}

/// What a connection and its streams have together.
struct Shared {
    core: RefCell<Connection>,
    /// Who waits, by stream.
    wakers: RefCell<Vec<(StreamId, Waker)>>,
    pong: Cell<bool>,
}

impl<'a, S, B, F> Server<'a, S, B>
where
    S: Io,
    B: FnMut(Stream, Request) -> F,
    F: Future<Output = ()> + 'a,
{
    /// Makes the server of a connection. What `begin` makes of a request is polled to its end.
    pub(super) fn new(io: S, params: Params, scratch: Scratch, watch: Watch, begin: B) -> Self {
        Self {
            io,
            shared: Rc::new(Shared {
                core: RefCell::new(Connection::new(params)),
                wakers: RefCell::default(),
                pong: Cell::new(false),
            }),
            streams: FuturesUnordered::new(),
            begin,
            scratch,
            watch,
            end: None,
            unflushed: false,
        }
    }

    /// Waits until the client has said that it speaks HTTP/2. Cancel-safe.
    pub(super) async fn begun(&mut self) -> Result<(), End> {
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

    /// Serves the connection until it ends, or `cut` is ready and there are no streams.
    pub(super) async fn run(mut self, cut: impl Future) {
        let mut cut = std::pin::pin!(cut);
        let end = poll_fn(|cx| {
            if let Poll::Ready(end) = self.poll(cx) {
                return Poll::Ready(Some(end));
            }
            // Streams see for themselves that they are to be cut.
            match self.streams.is_empty() {
                true => cut.as_mut().poll(cx).map(|_| None),
                false => Poll::Pending,
            }
        });
        match end.await {
            Some(end @ (End::Socket(_) | End::Silent)) => {
                return tracing::debug!(%end, "frontend connection failed");
            }
            Some(end) => tracing::debug!(%end, "frontend connection closed"),
            None => self.shared.core.borrow_mut().go_away(),
        }
        // What was said last has a moment to get out.
        let flushed = timeout(FLUSH_TIMEOUT, poll_fn(|cx| self.poll_close(cx)));
        drop(flushed.await);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..BATCH {
            let read = self.poll_read(cx);
            let told = self.tell();
            self.poll_watch(cx);
            while let Poll::Ready(Some(())) = Pin::new(&mut self.streams).poll_next(cx) {}
            let wrote = match self.poll_write(cx) {
                Poll::Ready(Ok(wrote)) => wrote,
                Poll::Ready(Err(error)) => {
                    self.lost(End::Socket(error));
                    true
                }
                Poll::Pending => false,
            };
            if self.streams.is_empty()
                && let Some(end) = self.end.take()
            {
                return Poll::Ready(end);
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
        let socket = Pin::new(&mut self.io);
        match ready!(self.scratch.poll_read(cx, socket, READ)) {
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

    fn poll_watch(&mut self, cx: &mut Context<'_>) {
        let mut pings = &*self.shared;
        if self.end.is_none() && self.watch.poll(cx, Some(&mut pings), false).is_ready() {
            self.lost(End::Silent);
        }
    }

    /// Writes what the socket takes; returns whether it took something.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if matches!(self.end, Some(End::Closed | End::Silent | End::Socket(_))) {
            return Poll::Pending;
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
                Poll::Pending => break,
            };
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

    /// Writes what is left, and closes the socket.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while ready!(self.poll_write(cx))? {}
        if self.shared.core.borrow().wants_write() || self.unflushed {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// The connection is of no more use.
    fn lost(&mut self, end: End) {
        self.shared.core.borrow_mut().handle_end();
        self.end = Some(end);
    }
}

impl Shared {
    fn wake(&self, id: StreamId) {
        let wakers = self.wakers.borrow();
        if let Ok(at) = wakers.binary_search_by_key(&id, |(id, _)| *id)
            && let Some((_, waker)) = wakers.get(at)
        {
            waker.wake_by_ref();
        }
    }
}

impl Pings for &Shared {
    fn ask(&mut self) {
        self.pong.set(false);
        self.core.borrow_mut().ping();
    }

    fn poll_answer(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        match self.pong.take() {
            true => Poll::Ready(Ok(())),
            // The connection is polled again when there is one.
            false => Poll::Pending,
        }
    }
}

/// One stream of a connection. Dropping it resets the stream unless it was ended.
pub(super) struct Stream {
    shared: Rc<Shared>,
    id: StreamId,
}

impl Stream {
    /// Answers the request; `end` says that nothing follows.
    pub(super) fn respond(&self, fields: &[(&[u8], &[u8])], end: bool) {
        self.shared.core.borrow_mut().respond(self.id, fields, end);
    }

    /// Waits until more can be sent. Cancel-safe.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), StreamEnd>> {
        let window = self.shared.core.borrow_mut().capacity(self.id);
        match window {
            Ok(0) => self.wait(cx),
            Ok(_) => Poll::Ready(Ok(())),
            Err(end) => Poll::Ready(Err(end)),
        }
    }

    /// Waits for bytes, or for their end. Cancel-safe.
    pub(super) fn poll_read(&self, cx: &Context<'_>) -> Poll<Result<Read, StreamEnd>> {
        let read = self.shared.core.borrow_mut().read(self.id);
        match read.transpose() {
            Some(read) => Poll::Ready(read),
            None => self.wait(cx),
        }
    }

    /// Waits until the stream is over before its time; it never is otherwise. Cancel-safe.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<StreamEnd> {
        let end = self.shared.core.borrow().end_of(self.id);
        match end {
            Some(end) => Poll::Ready(end),
            None => self.wait(cx),
        }
    }

    /// Releases bytes that were read.
    pub(super) fn consumed(&self, bytes: usize) {
        self.shared.core.borrow_mut().consumed(self.id, bytes);
    }

    /// Sends bytes, more than the window if need be: they wait.
    pub(super) fn send(&self, head: &[u8], payload: Bytes) -> Result<(), StreamEnd> {
        self.shared.core.borrow_mut().send(self.id, head, payload)
    }

    /// Ends the stream in order.
    pub(super) fn end(&self, trailers: &[(&[u8], &[u8])]) {
        self.shared.core.borrow_mut().end(self.id, trailers);
    }

    /// Ends the stream now.
    pub(super) fn reset(&self, code: ErrorCode) {
        self.shared.core.borrow_mut().reset(self.id, code);
    }

    /// Has the task polled again when something changes about the stream.
    fn wait<T>(&self, cx: &Context<'_>) -> Poll<T> {
        let mut wakers = self.shared.wakers.borrow_mut();
        match wakers.binary_search_by_key(&self.id, |(id, _)| *id) {
            Ok(at) => {
                if let Some((_, waker)) = wakers.get_mut(at) {
                    waker.clone_from(cx.waker());
                }
            }
            Err(at) => wakers.insert(at, (self.id, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.core.borrow_mut().release(self.id);
        let mut wakers = self.shared.wakers.borrow_mut();
        wakers.retain(|(id, _)| *id != self.id);
        if wakers.is_empty() {
            *wakers = Vec::new();
        }
    }
}

/// Rounds in a row.
const BATCH: usize = 16;
/// Bytes read at once, if they are there: the more, the fewer messages are cut in two.
const READ: usize = 128 << 10;
/// Slices of one write: the frames of some packets.
const SLICES: usize = 64;
/// How long a client may take to read what was said last.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
