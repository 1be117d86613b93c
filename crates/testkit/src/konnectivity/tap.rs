//! A socket that can be frozen, as SIGSTOP freezes a process's, and that counts HTTP/2 pings.
//!
//! ```text
//!  kernel ──▶ Tap: frozen? ──▶ frame heads: PING? ──▶ HTTP/2
//! ```

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::background::locked;

/// What is known about a tapped socket, and its switches.
#[derive(Debug, Default)]
pub(super) struct Control {
    state: Mutex<State>,
    /// Told of each ping; the owner of the connection may end it.
    pub(super) pinged: Notify,
    /// Told when the connection is to be dropped without a word.
    pub(super) cut: Notify,
}

#[derive(Debug, Default)]
struct State {
    frozen: bool,
    deaf: bool,
    waiting: Vec<Waker>,
    pings: usize,
    strikes: usize,
    last_ping: Option<Instant>,
}

impl Control {
    pub(super) fn freeze(&self, frozen: bool) {
        let mut state = locked(&self.state);
        state.frozen = frozen;
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Reads nothing, or goes on; what is written goes out.
    pub(super) fn deafen(&self, deaf: bool) {
        let mut state = locked(&self.state);
        state.deaf = deaf;
        state.waiting.drain(..).for_each(Waker::wake);
    }

    pub(super) fn pings(&self) -> usize {
        locked(&self.state).pings
    }

    /// Returns how many pings came sooner than a minimum after the one before.
    pub(super) fn strikes(&self) -> usize {
        locked(&self.state).strikes
    }

    /// Waits until it is not frozen, and keeps it so for as long as what is returned lives: who
    /// freezes it knows that nothing is read or written any more.
    fn open(&self, cx: &Context<'_>) -> Poll<MutexGuard<'_, State>> {
        let mut state = locked(&self.state);
        if !state.frozen {
            return Poll::Ready(state);
        }
        state.waiting.push(cx.waker().clone());
        Poll::Pending
    }
}

impl State {
    fn ping(&mut self, minimum: Duration) {
        let now = Instant::now();
        let soon = |last| now.duration_since(last) < minimum;
        self.strikes += usize::from(self.last_ping.is_some_and(soon));
        self.last_ping = Some(now);
        self.pings += 1;
    }
}

#[derive(Debug)]
pub(super) struct Tap<S> {
    inner: S,
    control: Arc<Control>,
    heads: Heads,
    minimum: Duration,
}

impl<S> Tap<S> {
    /// `preface`: bytes that come before the first frame, 24 from a client and none from a server.
    pub(super) fn new(
        inner: S,
        control: Control,
        preface: usize,
        minimum: Duration,
    ) -> (Self, Arc<Control>) {
        let control = Arc::new(control);
        let tap = Self {
            inner,
            control: Arc::clone(&control),
            heads: Heads {
                skip: preface,
                head: Vec::new(),
            },
            minimum,
        };
        (tap, control)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tap<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let control = Arc::clone(&self.control);
        let mut open = ready!(control.open(cx));
        if open.deaf {
            open.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let this = &mut *self;
        for _ in 0..this.heads.pings(&buf.filled()[before..]) {
            open.ping(this.minimum);
            this.control.pinged.notify_one();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tap<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let control = Arc::clone(&self.control);
        let _open = ready!(control.open(cx));
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let control = Arc::clone(&self.control);
        let _open = ready!(control.open(cx));
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let control = Arc::clone(&self.control);
        let _open = ready!(control.open(cx));
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Follows the heads of HTTP/2 frames (RFC 9113 §4.1: length 3, type 1, flags 1, stream 4).
#[derive(Debug)]
struct Heads {
    skip: usize,
    head: Vec<u8>,
}

impl Heads {
    /// Returns how many PING frames without ACK begin in `bytes`.
    fn pings(&mut self, mut bytes: &[u8]) -> usize {
        let mut pings = 0;
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return pings;
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(9 - self.head.len()));
            self.head.extend_from_slice(piece);
            bytes = rest;
            if let [a, b, c, kind, flags, ..] = self.head[..]
                && self.head.len() == 9
            {
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                pings += usize::from(kind == 6 && flags & 1 == 0);
                self.head.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_found_in_split_frames() {
        let mut bytes = vec![0; 24];
        bytes.extend([0, 0, 2, 0, 0, 0, 0, 0, 1, 6, 6]);
        bytes.extend([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend([0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        for size in 1..bytes.len() {
            let mut heads = Heads {
                skip: 24,
                head: Vec::new(),
            };
            let found: usize = bytes.chunks(size).map(|piece| heads.pings(piece)).sum();
            assert_eq!(found, 2, "pieces of {size}");
        }
    }
}
