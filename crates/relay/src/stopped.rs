//! What is left of a stopped relay besides its sockets: all that another process needs to go on.
//!
//! ```text
//!     Relay::stop ─▶ Stopped + both sockets ─▶ (another process) ─▶ Relay::resume
//! ```
//!
//! Plain data. Does not know how it is encoded or how the descriptors travel.

use std::time::Duration;

/// A stopped relay without its sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// From downstream to upstream.
    pub rx: StoppedHalf,
    /// From upstream to downstream.
    pub tx: StoppedHalf,
    /// Time since a byte last moved; zero without an idle limit.
    pub idle: Duration,
}

/// One direction of a stopped relay. An end is passed on in the poll that reads it, so it is either with
/// the source or with the sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoppedHalf {
    /// Bytes read from the source that the sink has not taken: at most a pipe's capacity. None with
    /// `end_passed`; ignored then, since nothing can be sent behind an end.
    pub held: Vec<u8>,
    /// The sink has received everything and the end behind it: this direction is over.
    pub end_passed: bool,
}
