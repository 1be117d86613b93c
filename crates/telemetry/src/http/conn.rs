//! One connection: its deadlines, and its place among the others.
//!
//! ```text
//!     waiting ──head──▶ answering ──response──▶ writing ──flushed──▶ waiting …
//! ```
//!
//! Only one that is waiting may be closed to make room.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::bind::Stream;
use super::{HEAD_TIMEOUT, Handler, STALL_TIMEOUT};

/// Serves one connection until either side ends it, the crowd pushes it out, or a deadline passes.
pub(super) async fn serve<H: Handler>(stream: Stream, slot: Place, handler: Arc<H>) {
    let slot = &slot;
    let service = service_fn(|request| async {
        slot.set(Phase::Answering);
        let mut response = handler.handle(request).await;
        slot.set(Phase::Writing);
        if slot.crowd.crowded.load(Ordering::Relaxed) {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let io = TokioIo::new(Watched {
        stream,
        stall: None,
        slot: slot.slot.clone(),
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

/// All connections of one server.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    slots: Mutex<Vec<Arc<Slot>>>,
    crowded: AtomicBool,
}

impl Crowd {
    pub(super) fn enter(self: &Arc<Self>) -> Place {
        let slot = Arc::new(Slot::default());
        self.slots().push(slot.clone());
        Place {
            slot,
            crowd: self.clone(),
        }
    }

    /// Closes the connection that has waited longest, and keeps none that is answered from now on.
    pub(super) fn push(&self) {
        self.crowded.store(true, Ordering::Relaxed);
        let mut slots = self.slots();
        let waiting = slots
            .iter()
            .position(|slot| *slot.phase() == Phase::Waiting);
        if let Some(waiting) = waiting {
            // Out of the list at once, so that a second push finds another one.
            slots.remove(waiting).evicted.notify_one();
        }
    }

    /// Lets connections be kept again.
    pub(super) fn relax(&self) {
        self.crowded.store(false, Ordering::Relaxed);
    }

    /// Ends all connections after the response in progress.
    pub(super) fn close(&self) {
        for slot in self.slots().iter() {
            slot.closed.notify_one();
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a slot to the end, which makes it the one that began to wait last.
    fn requeue(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        if let Some(at) = slots.iter().position(|other| Arc::ptr_eq(other, slot)) {
            slots[at..].rotate_left(1);
        }
    }
}

/// A connection's place in the crowd, given up when dropped.
#[derive(Debug)]
pub(super) struct Place {
    slot: Arc<Slot>,
    crowd: Arc<Crowd>,
}

impl Place {
    fn set(&self, phase: Phase) {
        *self.slot.phase() = phase;
        if phase == Phase::Answering {
            self.crowd.requeue(&self.slot);
        }
    }
}

impl std::ops::Deref for Place {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd
            .slots()
            .retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    phase: Mutex<Phase>,
    evicted: Notify,
    closed: Notify,
}

impl Slot {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    Answering,
    #[default]
    Waiting,
    Writing,
}

/// A stream that fails when its reader takes nothing for too long, and that notices when a
/// response has gone out.
struct Watched {
    stream: Stream,
    stall: Option<Pin<Box<Sleep>>>,
    slot: Arc<Slot>,
}

impl Watched {
    /// Passes on progress; without any, runs the clock.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL_TIMEOUT)));
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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

    /// Called once everything was handed to [`Self::poll_write`].
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        let mut phase = self.slot.phase();
        if *phase == Phase::Writing {
            *phase = Phase::Waiting;
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// 16 KiB of request line and headers is what common proxies allow; hyper wants 8 KiB at least.
const MAX_HEAD_BYTES: usize = 16 << 10;
