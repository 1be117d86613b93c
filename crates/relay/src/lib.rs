//! Relays bytes between two connected peers until both directions have ended.
//!
//! ```text
//!     downstream ──splice──▶ pipe ──splice──▶ upstream        Relay: two TCP sockets
//!     downstream ◀──splice── pipe ◀──splice── upstream
//!
//!     downstream ──read──▶ scratch ──write──▶ upstream        relay_streams: anything else, such as TLS
//!     downstream ◀─write── scratch ◀──read─── upstream
//! ```
//!
//! One [`Pool`] belongs to one worker thread and holds everything that is not the property of a
//! single connection: the pipes and one scratch buffer. A connection that moves nothing holds no
//! pipe and no buffer. Knows nothing of preambles, routes or metrics; the caller counts through
//! [`Meter`] and decides what the [`Outcome`] is called in its logs.
#![forbid(unsafe_code)]

mod clock;
mod half;
mod linger;
mod outcome;
mod pace;
mod pool;
mod reset;
mod session;
mod socket;
mod stopped;
mod stream;

pub use clock::Timers;
pub use linger::linger;
pub use outcome::{Direction, Meter, Outcome, Side};
pub use pace::{MIN_BYTES, Pace, SinkState, round_trip};
pub use pool::{Pool, PoolParams};
pub use reset::{RESET_LIMIT, is_gone, is_writable, reset_on_close, reset_when_sent};
pub use session::Relay;
pub use socket::Socket;
pub use stopped::{Stopped, StoppedHalf};
pub use stream::{Peer, relay_streams};
