//! One line per connection, written off the data path.
//!
//! ```text
//!     write() ──format──▶ thread's buffer ──copy──▶ bounded queue ──▶ one thread ──▶ stdout
//!                                          └── full: dropped and counted
//! ```
//!
//! The queue holds at most [`MAX_LINES`] lines and [`MAX_BYTES`] octets of them. A reader of stdout
//! that stalls costs lines, never connections. Nothing is sampled or rotated here.

mod format;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::metrics::{Kind, Registry};

/// The most lines that wait to be written.
pub const MAX_LINES: usize = 4096;
/// The most octets that wait to be written.
pub const MAX_BYTES: usize = 4 << 20;

/// How access-log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// One JSON object per line; what is absent is `null`.
    Json,
    /// Not at all.
    #[default]
    Off,
    /// `name=value` pairs; what is absent is `-`.
    Text,
}

/// What is known about a connection when it has ended. Fields are written in this order.
#[derive(Clone, Copy, Debug)]
pub struct AccessRecord<'a> {
    /// When the connection ended.
    pub time: SystemTime,
    /// The listener's name.
    pub listener: &'a str,
    /// The listener's protocol.
    pub protocol: &'a str,
    /// Who connected.
    pub peer: SocketAddr,
    /// Who that was for, after a load balancer's PROXY header; the peer otherwise.
    pub client: SocketAddr,
    /// The TLS server name, as sent.
    pub server_name: Option<&'a str>,
    /// The offered application protocols, as sent, joined by commas.
    pub alpn: Option<&'a str>,
    /// The destination in a node proxy's PROXY header.
    pub destination: Option<SocketAddr>,
    /// The destination in a CONNECT request's header, as sent.
    pub connect: Option<&'a str>,
    /// The cluster that was chosen.
    pub cluster: Option<&'a str>,
    /// The endpoint that was connected.
    pub endpoint: Option<SocketAddr>,
    /// Octets from downstream.
    pub rx_bytes: u64,
    /// Octets to downstream.
    pub tx_bytes: u64,
    /// From accept to close; written in milliseconds, as `duration_ms`.
    pub duration: Duration,
    /// Why it ended, from a closed set.
    pub reason: &'static str,
}

/// Where lines go.
pub enum Sink {
    /// The process's standard output, unbuffered.
    Stdout,
    /// Anything else that takes octets; used from one thread.
    Writer(Box<dyn Write + Send>),
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "Stdout",
            Self::Writer(_) => "Writer",
        })
    }
}

/// The access log. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct AccessLog {
    running: Option<Arc<Running>>,
}

#[derive(Debug)]
struct Running {
    json: bool,
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

impl AccessLog {
    /// Starts the log. With [`AccessFormat::Off`] there is no thread, and writing costs a branch.
    ///
    /// # Errors
    /// When standard output cannot be duplicated or the thread cannot be started.
    pub fn new(format: AccessFormat, sink: Sink) -> io::Result<Self> {
        if format == AccessFormat::Off {
            return Ok(Self { running: None });
        }
        let mut sink: Box<dyn Write + Send> = match sink {
            // Not `Stdout`: that scans for line ends and holds back what follows the last one.
            Sink::Stdout => Box::new(std::fs::File::from(
                io::stdout().as_fd().try_clone_to_owned()?,
            )),
            Sink::Writer(writer) => writer,
        };
        let (queue, lines) = mpsc::sync_channel(MAX_LINES);
        let (alive, done) = mpsc::sync_channel::<()>(0);
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::Builder::new()
            .name("access-log".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                write_lines(&lines, &mut sink, &shared);
                drop(alive);
            })?;
        let json = format == AccessFormat::Json;
        let running = Running {
            json,
            queue,
            state,
            done: Mutex::new(done),
        };
        Ok(Self {
            running: Some(Arc::new(running)),
        })
    }

    /// Hands a line to the writing thread. Never waits: when the queue is full the line is dropped
    /// and counted.
    pub fn write(&self, record: &AccessRecord<'_>) {
        let Some(running) = &self.running else { return };
        let handed = LINE.try_with(|line| {
            let mut line = line.borrow_mut();
            line.clear();
            if running.json {
                format::json(&mut line, record);
            } else {
                format::text(&mut line, record);
            }
            line.push('\n');
            running.hand_over(line.as_bytes());
            // A header of 64 KiB in one line must not stay with every worker for ever.
            line.shrink_to(KEPT_BYTES);
        });
        if handed.is_err() {
            // The thread is ending and has no buffer any more.
            running.state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells whether lines are written at all, for callers that would have to prepare a record.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Returns how many lines were dropped, because the queue was full, the sink failed, or the
    /// log was closed.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.running
            .as_ref()
            .map_or(0, |running| running.state.dropped.load(Ordering::Relaxed))
    }

    /// Registers `rhizome_access_log_dropped_total`.
    ///
    /// # Panics
    /// When it is registered already.
    pub fn register(&self, registry: &Registry) {
        let log = self.clone();
        let help = "Access-log lines that were dropped rather than waited for.";
        registry.collect(move |out| {
            out.family(
                "rhizome_access_log_dropped_total",
                help,
                Kind::Counter,
                |family| {
                    family.sample(&[], log.dropped());
                },
            );
        });
    }

    /// Ends the log: what was handed over is written, what comes later is dropped. Waits for that
    /// until `limit`, blocking its thread, and returns whether everything went out in time.
    pub fn close(&self, limit: Duration) -> bool {
        let Some(running) = &self.running else {
            return true;
        };
        running.state.closing.store(true, Ordering::Release);
        // A full queue needs no waking: the thread looks when it has emptied it.
        let _ = running.queue.try_send(Message::Wake);
        let done = running.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Running {
    fn hand_over(&self, line: &[u8]) {
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
            state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The writing thread: gathers what is there, writes it, and waits for more, until the log is
/// closed or nobody can write to it any more.
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

thread_local! {
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What a thread's buffer keeps between lines; an ordinary line has 300 to 500 octets.
const KEPT_BYTES: usize = 4096;
/// What one write gathers at most, before the line that passes it.
const BATCH_BYTES: usize = 64 << 10;
/// The writing thread calls nothing deep.
const STACK_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests;
