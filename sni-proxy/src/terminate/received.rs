//! Answers of one pooled connection, read ahead of clients that stopped reading.
//!
//! ```text
//!     h2, frame by frame ──▶ a client that reads
//!                └─ every 256 KiB ─▶ ahead, in one piece ─▶ once it reads again
//! ```
//!
//! h2 holds what is unread as it came: a frame of few bytes takes some hundred, and a connection with many of
//! them is ended, for all its streams. Nothing is read beyond a stream's window, which stays used until its client
//! takes the bytes.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use slab::Slab;

/// Bytes of a connection after which it is looked for clients that stopped reading; a turn of its task reads at
/// most twice as many. In frames of one byte both take half of what h2 permits (`CONNECTION_WINDOW`).
const PERIOD: u64 = 256 * 1024;
/// Bytes that are taken at a time, as a frame of HTTP/2 has by default.
const PIECE: usize = 16 * 1024;

/// The answers whose streams are open.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    open: RefCell<Slab<Rc<RefCell<Received>>>>,
    /// Bytes that the connection had received when this was done last.
    gathered: Cell<u64>,
}

impl Answers {
    /// Adds an answer.
    pub(crate) fn add(self: &Rc<Self>, stream: RecvStream) -> Listed {
        let received = Rc::new(RefCell::new(Received {
            stream,
            ahead: Vec::new(),
            taken: Bytes::new(),
            waiting: None,
            read: 0,
        }));
        Listed {
            key: self.open.borrow_mut().insert(Rc::clone(&received)),
            received,
            of: Rc::clone(self),
        }
    }

    /// Reads ahead for clients that stopped reading, if the connection has received enough since.
    pub(crate) fn gather(&self, received: u64) {
        if received < self.gathered.get() + PERIOD {
            return;
        }
        self.gathered.set(received);
        for (_, own) in self.open.borrow().iter() {
            own.borrow_mut().gather();
        }
    }
}

/// An answer that is among the open ones until this is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    received: Rc<RefCell<Received>>,
    key: usize,
    of: Rc<Answers>,
}

impl Deref for Listed {
    type Target = RefCell<Received>;

    fn deref(&self) -> &RefCell<Received> {
        &self.received
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        drop(self.of.open.borrow_mut().try_remove(self.key));
    }
}

/// A stream of a server's, and what was read ahead of it.
#[derive(Debug)]
pub(crate) struct Received {
    stream: RecvStream,
    ahead: Vec<u8>,
    /// Of what was read ahead, what its client takes now.
    taken: Bytes,
    /// The client's task, while it waits for more.
    waiting: Option<Waker>,
    /// Bytes that the client took since this was looked at last.
    read: usize,
}

impl Received {
    /// Returns the next bytes, and lets the server send as many more.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if self.taken.is_empty() && !self.ahead.is_empty() {
            self.taken = std::mem::take(&mut self.ahead).into();
        }
        let data = if self.taken.is_empty() {
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => data,
                Poll::Ready(other) => return Poll::Ready(other),
                Poll::Pending => {
                    self.waiting = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        } else {
            self.taken.split_to(PIECE.min(self.taken.len()))
        };
        self.waiting = None;
        self.read += data.len();
        let _ = self.stream.flow_control().release_capacity(data.len());
        Poll::Ready(Some(Ok(data)))
    }

    pub(crate) fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<http::HeaderMap>, h2::Error>> {
        self.stream.poll_trailers(cx)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.taken.is_empty() && self.stream.is_end_stream()
    }

    fn gather(&mut self) {
        // One that reads much is not copied; in small frames few can, within a period.
        if std::mem::take(&mut self.read) >= PIECE {
            return;
        }
        let used = self.stream.flow_control().used_capacity();
        let unread = used.saturating_sub(self.ahead.len() + self.taken.len());
        if unread == 0 {
            return;
        }
        self.ahead.reserve_exact(unread);
        let mut cx = Context::from_waker(self.waiting.as_ref().unwrap_or(Waker::noop()));
        // Its end, and an error, are there again when the client asks.
        while let Poll::Ready(Some(Ok(data))) = self.stream.poll_data(&mut cx) {
            self.ahead.extend_from_slice(&data);
        }
    }
}
