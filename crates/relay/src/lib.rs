//! Relays bytes between two connected TCP sockets without copying them where the kernel allows.
//!
//! ```text
//!     downstream ──splice──▶ pipe ──splice──▶ upstream
//!     downstream ◀──splice── pipe ◀──splice── upstream
//! ```
//!
//! One [`Pool`] belongs to one worker thread and holds everything that is not the property of a
//! single connection: the pipes and one scratch buffer. A connection that moves nothing holds no
//! pipe and no buffer. Knows nothing of preambles, routes or metrics; the caller counts through
//! [`Meter`] and decides what the [`Outcome`] is called in its logs.
#![forbid(unsafe_code)]

mod half;
mod linger;
mod outcome;
mod pool;
mod reset;
mod session;

pub use half::not_ready;
pub use linger::linger;
pub use outcome::{Direction, Meter, Outcome, Side};
pub use pool::{Pool, PoolParams};
pub use reset::{RESET_LIMIT, reset_on_close, reset_when_sent};
pub use session::{Relay, Timers};
