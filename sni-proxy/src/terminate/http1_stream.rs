//! What hyper does not bound in HTTP/1.1, or answers in its own words, below it.
//!
//! ```text
//!     idle ─first byte─▶ head ─whole─▶ request ─answered─▶ idle
//!                          │ not in time: 408                  a write that makes no progress: the end
//!                          └ refused by hyper: the same status, as a Kubernetes Status
//! ```
//!
//! How long a connection may be idle, or upgraded, is not known here. A head that has begun in the same bytes as the end of the
//! request before it is bounded only when more of it comes.

use std::fmt;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::exchange::RequestCount;
use super::status;

/// A client that takes nothing of its answer for this long is given up; what Envoy grants a stream by default, and
/// long enough for a person who reads a log through a pager.
pub(crate) const WRITE_STALL: Duration = Duration::from_secs(300);
/// Time for a refusal to be written and its client to close.
const REFUSAL_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of a refused client's that are discarded.
const LINGER_BYTES: usize = 64 * 1024;

/// What the owner of a connection learns of it and decides about it.
#[derive(Debug)]
pub(crate) struct HttpState {
    /// Time for a head, from its first byte.
    pub(super) head_limit: Duration,
    refused: AtomicU16,
    reset: AtomicBool,
    silent: AtomicBool,
}

impl HttpState {
    pub(crate) fn new(head_limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            head_limit,
            refused: AtomicU16::default(),
            reset: AtomicBool::default(),
            silent: AtomicBool::default(),
        })
    }

    /// Returns whether the client has not begun in time.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Returns the status of a refused head.
    pub(crate) fn refused(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.refused.load(Ordering::Relaxed)).ok()
    }

    /// Records the status of a head that is refused.
    pub(super) fn refuse(&self, status: StatusCode) {
        self.refused.store(status.as_u16(), Ordering::Relaxed);
    }

    /// Lets the socket be reset when it is closed: an answer that is cut must not look whole.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }
}

/// A client's connection below hyper.
pub(crate) struct Http1Stream<S> {
    stream: S,
    params: Http1Params<S>,
    /// When the first byte of a head came.
    head_since: Option<Instant>,
    /// Requests that had begun when this was looked at last, and when all was flushed last.
    seen: u32,
    flushed: u32,
    head_timer: Timer,
    /// Since when a write makes no progress.
    blocked_since: Option<Instant>,
    write_timer: Timer,
    refusal: Option<Box<Refusal>>,
}

/// What a connection is served with.
pub(crate) struct Http1Params<S> {
    pub(crate) count: Arc<RequestCount>,
    pub(crate) state: Arc<HttpState>,
    /// A header of each answer.
    pub(crate) hsts: Option<HeaderValue>,
    /// When the first byte must have come.
    pub(crate) begins_by: Instant,
    /// Makes closing reset the connection.
    pub(crate) reset_on_close: fn(&S),
}

impl<S> fmt::Debug for Http1Stream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http1Stream").finish_non_exhaustive()
    }
}

/// An answer to a head that hyper has not read, or has refused.
struct Refusal {
    text: Vec<u8>,
    written: usize,
    shut_down: bool,
    discarded: usize,
    limit: Pin<Box<Sleep>>,
}

/// A timer that is armed only while something waits, and moved only when it fires too early.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    pub(super) fn has_passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1Stream<S> {
    pub(crate) fn new(stream: S, params: Http1Params<S>) -> Self {
        Self {
            stream,
            params,
            head_since: None,
            seen: 0,
            flushed: 0,
            head_timer: Timer::default(),
            blocked_since: None,
            write_timer: Timer::default(),
            refusal: None,
        }
    }

    /// Returns whether no answer is under way: what hyper writes then is its own.
    fn is_quiet(&self) -> bool {
        let count = &self.params.count;
        count.is_idle() && count.begun() == self.flushed
    }

    fn refuse(&mut self, status: StatusCode) {
        self.params.state.refuse(status);
        let limit = Instant::now() + REFUSAL_LIMIT;
        self.refusal = Some(Box::new(Refusal {
            text: status::of_head(status).to_http1(self.params.hsts.as_ref()),
            written: 0,
            shut_down: false,
            discarded: 0,
            limit: Box::pin(sleep_until(limit)),
        }));
    }

    /// Writes the refusal, and lets the client read it: closing with unread bytes would reset the connection and
    /// may destroy it on its way (RFC 9112 section 9.6).
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(refusal) = self.refusal.as_mut() else {
            return Poll::Ready(Ok(()));
        };
        if refusal.limit.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut stream = Pin::new(&mut self.stream);
        while let Some(rest @ [_, ..]) = refusal.text.get(refusal.written..) {
            refusal.written += match ready!(stream.as_mut().poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => written,
            };
        }
        if !refusal.shut_down {
            ready!(stream.as_mut().poll_shutdown(cx))?;
            refusal.shut_down = true;
        }
        while refusal.discarded < LINGER_BYTES {
            let mut scratch = [MaybeUninit::uninit(); 1024];
            let mut buf = ReadBuf::uninit(&mut scratch);
            let read = ready!(stream.as_mut().poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                break;
            }
            refusal.discarded += buf.filled().len();
        }
        refusal.discarded = LINGER_BYTES;
        Poll::Ready(Ok(()))
    }

    /// Takes a write of hyper's for the refusal that it is, if it is one.
    fn take_refusal(&mut self, bytes: &[u8]) -> bool {
        if self.refusal.is_none() && self.is_quiet() {
            // HTTP/1.1 400 Bad Request
            let status = bytes
                .get(9..12)
                .and_then(|code| StatusCode::from_bytes(code).ok());
            self.refuse(status.unwrap_or(StatusCode::BAD_REQUEST));
        }
        self.refusal.is_some()
    }

    /// Bounds the time in which a write makes no progress.
    fn progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // An upgraded one is bounded like a relay.
        if polled.is_ready() || self.params.count.is_upgraded() {
            self.blocked_since = None;
            return polled;
        }
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        if self.write_timer.has_passed(cx, since + WRITE_STALL) {
            self.params.state.reset();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Http1Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        if own.refusal.is_some() {
            return own.poll_refusal(cx);
        }
        let before = into.filled().len();
        let read = Pin::new(&mut own.stream).poll_read(cx, into);
        let begun = own.params.count.begun();
        if begun != own.seen {
            (own.seen, own.head_since) = (begun, None);
            own.head_timer = Timer::default();
        }
        if !own.params.count.is_idle() {
            return read;
        }
        match read {
            Poll::Ready(read) => {
                if into.filled().len() > before && own.head_since.is_none() {
                    own.head_since = Some(Instant::now());
                }
                Poll::Ready(read)
            }
            Poll::Pending => {
                let Some(since) = own.head_since else {
                    if begun > 0 || !own.head_timer.has_passed(cx, own.params.begins_by) {
                        return Poll::Pending;
                    }
                    own.params.state.silent.store(true, Ordering::Relaxed);
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                };
                if !own
                    .head_timer
                    .has_passed(cx, since + own.params.state.head_limit)
                {
                    return Poll::Pending;
                }
                own.refuse(StatusCode::REQUEST_TIMEOUT);
                own.poll_refusal(cx)
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Http1Stream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        if own.take_refusal(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut own.stream).poll_write(cx, bytes);
        own.progress(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        if own.take_refusal(slices.first().map_or(&[], |first| first)) {
            return Poll::Ready(Ok(slices.iter().map(|own| own.len()).sum()));
        }
        let written = Pin::new(&mut own.stream).poll_write_vectored(cx, slices);
        own.progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        if own.refusal.is_some() {
            return own.poll_refusal(cx);
        }
        let flushed = Pin::new(&mut own.stream).poll_flush(cx);
        if flushed.is_ready() && own.params.count.is_idle() {
            own.flushed = own.params.count.begun();
        }
        own.progress(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        if own.refusal.is_some() {
            return own.poll_refusal(cx);
        }
        let shut_down = Pin::new(&mut own.stream).poll_shutdown(cx);
        own.progress(cx, shut_down)
    }
}

impl<S> Drop for Http1Stream<S> {
    fn drop(&mut self) {
        if self.params.state.is_reset() {
            (self.params.reset_on_close)(&self.stream);
        }
    }
}

#[cfg(test)]
mod tests;
