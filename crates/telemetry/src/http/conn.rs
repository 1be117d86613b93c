//! One connection: its deadlines, and its slot among the others.
//!
//! ```text
//!     waiting ──head──▶ occupied ──handler──▶ response ──flushed──▶ waiting …
//!        └──probe's head──▶ response ──▶ waiting
//! ```
//!
//! Only one that is waiting may be closed for a new connection. One that answers a probe counts as
//! waiting: its few bytes are with the kernel at once, unless its peer reads nothing.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::bind::Stream;
use super::{HEAD_TIMEOUT, Handler, MAX_RESPONSES, RESPONSE_TIMEOUT, STALL_TIMEOUT};
use crate::lock;

/// Serves one connection until either side ends it, it is evicted, or a deadline passes.
pub(super) async fn serve<H: Handler>(stream: Stream, slot: SlotGuard, handler: Arc<H>) {
    let guard = &slot;
    let slot = &*slot.slot;
    let service = service_fn(|request: Request<Incoming>| async {
        let admitted = guard.admit(handler.is_probe(request.uri().path()));
        let mut response = match admitted {
            true => handler.handle(request).await,
            false => too_many(),
        };
        if !admitted || guard.crowd.crowded.load(Ordering::Relaxed) {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        slot.answered.store(true, Ordering::Relaxed);
        Ok::<_, Infallible>(response)
    });
    let io = TokioIo::new(Watched {
        stream,
        stall: None,
        slot: guard.slot.clone(),
    });
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(io, service)
    );
    let end = tokio::select! {
        end = &mut serving => end,
        () = slot.evicted.notified() => return,
        () = slot.closed.notified() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = end {
        tracing::debug!(error = %crate::chain(&error), "endpoint connection");
    }
}

/// The answer to a request when too many responses are in progress; its connection is closed.
fn too_many() -> Response<Full<Bytes>> {
    let text = b"too many responses in progress\n";
    let mut response = Response::new(Full::new(Bytes::from_static(text)));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// All connections of one server.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    slots: Mutex<Vec<Arc<Slot>>>,
    crowded: AtomicBool,
}

impl Crowd {
    pub(super) fn enter(self: &Arc<Self>) -> SlotGuard {
        let slot = Arc::new(Slot::default());
        lock(&self.slots).push(slot.clone());
        SlotGuard {
            slot,
            crowd: self.clone(),
        }
    }

    /// Closes the connection that has waited longest, and those that are answered from now on.
    pub(super) fn evict(&self) {
        self.crowded.store(true, Ordering::Relaxed);
        let mut slots = lock(&self.slots);
        let waiting = slots.iter().position(|slot| !slot.is_occupied());
        if let Some(waiting) = waiting {
            // Out of the list at once, so that a second eviction finds another one.
            slots.remove(waiting).evicted.notify_one();
        }
    }

    /// Keeps connections alive again.
    pub(super) fn relax(&self) {
        self.crowded.store(false, Ordering::Relaxed);
    }

    /// Ends all connections after the response in progress.
    pub(super) fn close(&self) {
        for slot in lock(&self.slots).iter() {
            slot.closed.notify_one();
        }
    }

    /// Occupies a slot with a response; false when enough others are occupied.
    fn occupy(&self, slot: &Slot) -> bool {
        let slots = lock(&self.slots);
        let occupied = slots.iter().filter(|slot| slot.is_occupied()).count();
        if occupied < MAX_RESPONSES {
            slot.answered.store(false, Ordering::Relaxed);
            *lock(&slot.deadline) = Some(Instant::now() + RESPONSE_TIMEOUT);
        }
        occupied < MAX_RESPONSES
    }

    /// Moves a slot to the end, which makes it the one that began to wait last.
    fn requeue(&self, slot: &Arc<Slot>) {
        let mut slots = lock(&self.slots);
        if let Some(at) = slots.iter().position(|other| Arc::ptr_eq(other, slot)) {
            slots[at..].rotate_left(1);
        }
    }
}

/// A connection's slot in the crowd, freed when dropped.
#[derive(Debug)]
pub(super) struct SlotGuard {
    slot: Arc<Slot>,
    crowd: Arc<Crowd>,
}

impl SlotGuard {
    /// Returns whether a request may be answered. One that is not a probe's then occupies the
    /// connection until the response was written, for [`RESPONSE_TIMEOUT`] at most.
    fn admit(&self, is_probe: bool) -> bool {
        self.crowd.requeue(&self.slot);
        is_probe || self.crowd.occupy(&self.slot)
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        lock(&self.crowd.slots).retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// When the response in progress must have been written; `None` while there is none.
    deadline: Mutex<Option<Instant>>,
    /// The handler is done with it.
    answered: AtomicBool,
    evicted: Notify,
    closed: Notify,
}

impl Slot {
    fn is_occupied(&self) -> bool {
        lock(&self.deadline).is_some()
    }
}

/// A stream that fails when its reader stalls or takes too long for a response, and that notices when a
/// response has been sent.
struct Watched {
    stream: Stream,
    stall: Option<Pin<Box<Sleep>>>,
    slot: Arc<Slot>,
}

impl Watched {
    /// Passes on progress; without any, checks the deadlines.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let deadline = *lock(&self.slot.deadline);
        if written.is_ready() {
            self.stall = None;
            // Progress within the stall limit does not extend the deadline of the response.
            return match deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                true => Poll::Ready(Err(self.late())),
                false => written,
            };
        }
        let stall = self.stall.get_or_insert_with(|| {
            let stalled = Instant::now() + STALL_TIMEOUT;
            let until = deadline.map_or(stalled, |deadline| deadline.min(stalled));
            Box::pin(tokio::time::sleep_until(until))
        });
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(self.late()))
    }

    /// Has the connection reset: after a plain close the kernel would keep megabytes for as long as the
    /// reader stalls.
    fn late(&self) -> io::Error {
        let _ = sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        io::ErrorKind::TimedOut.into()
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called once everything was handed to [`Self::poll_write`], and while the handler works.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        if self.slot.answered.load(Ordering::Relaxed) {
            *lock(&self.slot.deadline) = None;
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// 16 KiB of request line and headers is what common proxies allow; hyper wants 8 KiB at least.
const MAX_HEAD_BYTES: usize = 16 << 10;
