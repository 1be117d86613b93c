//! The signals a binary acts on.
//!
//! Only names them; what follows is the binary's decision.

use std::io;

use tokio::signal::unix::{self, SignalKind, signal};

/// A signal the process was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: read everything again.
    Reload,
    /// SIGTERM or SIGINT: drain; the second time, cut.
    Stop,
}

/// Receives the signals of this process.
#[derive(Debug)]
pub struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// Starts receiving; from here on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// What the kernel says of the registration.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
        }
    }
}
