//! Lines that must not be waited for: a bounded queue and one thread that writes them.
//!
//! ```text
//!     any thread ── hand over, or drop and count ─▶ queue ─▶ one thread ─▶ sink
//! ```
//!
//! The reader of the other end may stall for any time, which costs only lines. Knows nothing of their
//! content.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::lock;

/// The most lines that wait to be written.
pub const MAX_LINES: usize = 4096;
/// The most bytes that wait to be written.
pub const MAX_BYTES: usize = 4 << 20;

/// The queue and its writing thread.
#[derive(Debug)]
pub(crate) struct Lines {
    queue: SyncSender<Message>,
    state: Arc<State>,
    /// Hung up by the writing thread when it ends.
    done: Mutex<Receiver<()>>,
}

#[derive(Debug, Default)]
struct State {
    closing: AtomicBool,
    queued_bytes: AtomicUsize,
    dropped: AtomicU64,
}

enum Message {
    Line(Box<[u8]>),
    /// Says nothing; wakes a thread that waits, so that it sees `closing`.
    Wake,
}

impl Lines {
    /// Starts the writing thread.
    pub(crate) fn start(name: &str, mut sink: Box<dyn Write + Send>) -> io::Result<Self> {
        let (queue, lines) = mpsc::sync_channel(MAX_LINES);
        let (alive, done) = mpsc::sync_channel::<()>(0);
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                write_lines(&lines, &mut sink, &shared);
                drop(alive);
            })?;
        Ok(Self {
            queue,
            state,
            done: Mutex::new(done),
        })
    }

    /// Hands a line over, or drops and counts it. Never waits.
    pub(crate) fn hand_over(&self, line: &[u8]) {
        let state = &self.state;
        let queued = state.queued_bytes.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        let refused = queued > MAX_BYTES
            || state.closing.load(Ordering::Acquire)
            || matches!(
                self.queue.try_send(Message::Line(line.into())),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            );
        if refused {
            state.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            self.drop_line();
        }
    }

    /// Counts a line that was not even handed over.
    pub(crate) fn drop_line(&self) {
        self.state.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many lines were dropped, because the queue was full, the sink failed, or the
    /// writing had been ended.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.state.queued_bytes.load(Ordering::Relaxed)
    }

    /// Ends the writing: what was handed over is written, what comes later is dropped. Waits for
    /// that until `limit`, blocking its thread, and returns whether everything went out in time.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        self.state.closing.store(true, Ordering::Release);
        // A full queue needs no waking: the thread looks when it has emptied it.
        let _ = self.queue.try_send(Message::Wake);
        let done = lock(&self.done);
        done.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}

/// The writing thread: gathers what is there, writes it, and waits for more, until the log is
/// closed or no writer is left.
fn write_lines(lines: &Receiver<Message>, sink: &mut dyn Write, state: &State) {
    let mut batch = Vec::new();
    while let Ok(first) = lines.recv() {
        let mut next = Some(first);
        let mut count = 0;
        while let Some(message) = next {
            if let Message::Line(line) = message {
                batch.extend_from_slice(&line);
                count += 1;
            }
            next = if batch.len() < BATCH_BYTES {
                lines.try_recv().ok()
            } else {
                None
            };
        }
        let written = sink.write_all(&batch).and_then(|()| sink.flush());
        if written.is_err() {
            state.dropped.fetch_add(count, Ordering::Relaxed);
        }
        state.queued_bytes.fetch_sub(batch.len(), Ordering::Relaxed);
        batch.clear();
        batch.shrink_to(BATCH_BYTES);
        if state.closing.load(Ordering::Acquire) {
            return write_rest(lines, sink, state);
        }
    }
}

/// Writes what is left after closing.
fn write_rest(lines: &Receiver<Message>, sink: &mut dyn Write, state: &State) {
    for message in lines.try_iter() {
        let Message::Line(line) = message else {
            continue;
        };
        if sink.write_all(&line).is_err() {
            state.dropped.fetch_add(1, Ordering::Relaxed);
        }
        state.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
    }
    let _ = sink.flush();
}

/// What one write gathers at most, before the line that passes it.
const BATCH_BYTES: usize = 64 << 10;
/// The writing thread calls nothing deep.
const STACK_BYTES: usize = 128 << 10;
