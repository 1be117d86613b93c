//! One line per connection, or per request of one, written off the data path.
//!
//! ```text
//!     write() ──format──▶ thread's buffer ──copy──▶ bounded queue ──▶ one thread ──▶ stdout
//!                                          └── full: dropped and counted
//! ```
//!
//! The queue holds at most [`MAX_LINES`] lines and [`MAX_BYTES`] bytes of them. A reader of stdout
//! that stalls costs lines, never connections. Nothing is sampled or rotated here.

mod format;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::lines::Lines;
pub use crate::lines::{MAX_BYTES, MAX_LINES};
use crate::metrics::{Kind, Registry};
pub use settings::AccessLogFormat as AccessFormat;

/// What is known about a connection when it has ended. Fields are written in this order.
#[derive(Clone, Copy, Debug)]
pub struct AccessRecord<'a> {
    /// When the connection ended.
    pub time: SystemTime,
    /// The listener's name.
    pub listener: &'a str,
    /// The listener's protocol.
    pub protocol: &'a str,
    /// The TCP peer.
    pub peer: SocketAddr,
    /// The client behind the peer, after a load balancer's PROXY header; the peer otherwise.
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
    /// Bytes from downstream.
    pub rx_bytes: u64,
    /// Bytes to downstream.
    pub tx_bytes: u64,
    /// From accept to close; written in milliseconds, as `duration_ms`.
    pub duration: Duration,
    /// Why it ended, from a closed set.
    pub reason: &'static str,
}

/// What is known about a request of a connection when its answer has ended. Fields are written in this order.
#[derive(Clone, Copy, Debug)]
pub struct RequestRecord<'a> {
    /// When the answer ended.
    pub time: SystemTime,
    /// The listener's name.
    pub listener: &'a str,
    /// What the client speaks.
    pub protocol: &'a str,
    /// The client, as in the record of its connection.
    pub client: SocketAddr,
    /// The TLS server name, as sent.
    pub server_name: Option<&'a str>,
    /// The cluster that was chosen.
    pub cluster: Option<&'a str>,
    /// The endpoint that was asked.
    pub endpoint: Option<&'a str>,
    /// The method.
    pub method: &'a str,
    /// The path without its query, at most its first bytes.
    pub path: &'a str,
    /// The status that it was answered with; written as 0 when there was no answer.
    pub status: Option<u16>,
    /// Bytes of the request's body.
    pub rx_bytes: u64,
    /// Bytes of the answer's body.
    pub tx_bytes: u64,
    /// From the request's head to the end of the answer; written in milliseconds, as `duration_ms`.
    pub duration: Duration,
}

/// Where lines go.
pub enum Sink {
    /// The process's standard output, unbuffered.
    Stdout,
    /// Anything else that takes bytes; used from one thread.
    Writer(Box<dyn Write + Send>),
}

/// The access log. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct AccessLog {
    running: Option<Arc<Running>>,
}

#[derive(Debug)]
struct Running {
    json: bool,
    lines: Lines,
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
        let sink: Box<dyn Write + Send> = match sink {
            // Not `Stdout`: that scans for line ends and holds back what follows the last one.
            Sink::Stdout => Box::new(std::fs::File::from(
                io::stdout().as_fd().try_clone_to_owned()?,
            )),
            Sink::Writer(writer) => writer,
        };
        let running = Running {
            json: format == AccessFormat::Json,
            lines: Lines::start("access-log", sink)?,
        };
        Ok(Self {
            running: Some(Arc::new(running)),
        })
    }

    /// Hands a line to the writing thread. Never waits: when the queue is full the line is dropped
    /// and counted.
    pub fn write(&self, record: &AccessRecord<'_>) {
        self.line(|line, json| format::line(line, record, json));
    }

    /// Hands the line of a request over, likewise.
    pub fn write_request(&self, record: &RequestRecord<'_>) {
        self.line(|line, json| format::request(line, record, json));
    }

    fn line(&self, write: impl FnOnce(&mut String, bool) -> fmt::Result) {
        let Some(running) = &self.running else { return };
        let handed = LINE.try_with(|line| {
            let mut line = line.borrow_mut();
            line.clear();
            let written = write(&mut line, running.json);
            debug_assert!(written.is_ok(), "a String takes everything");
            line.push('\n');
            running.lines.hand_over(line.as_bytes());
            // A header of 64 KiB in one line must not stay with every worker for ever.
            line.shrink_to(KEPT_BYTES);
        });
        if handed.is_err() {
            // The thread is ending and has no buffer any more.
            running.lines.drop_line();
        }
    }

    /// Tells whether lines are written at all, for callers that would have to prepare a record.
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Returns how many lines were dropped, because the queue was full, the sink failed, or the
    /// log was closed.
    pub fn dropped(&self) -> u64 {
        self.running
            .as_ref()
            .map_or(0, |running| running.lines.dropped())
    }

    /// Registers `rhizome_access_log_dropped_total`.
    ///
    /// # Panics
    /// When it is registered already.
    pub fn register(&self, registry: &Registry) {
        let log = self.clone();
        let name = "rhizome_access_log_dropped_total";
        let help = "Access-log lines that were dropped rather than waited for.";
        registry.collect(move |out| out.value(name, help, Kind::Counter, log.dropped()));
    }

    /// Ends the log: what was handed over is written, what comes later is dropped. Waits for that
    /// until `limit`, blocking its thread, and returns whether everything went out in time.
    pub fn close(&self, limit: Duration) -> bool {
        let Some(running) = &self.running else {
            return true;
        };
        running.lines.close(limit)
    }
}

thread_local! {
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What a thread's buffer keeps between lines; an ordinary line has 300 to 500 bytes.
const KEPT_BYTES: usize = 4096;

#[cfg(test)]
mod tests;
