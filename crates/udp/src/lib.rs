//! UDP in batches: sockets that receive many datagrams in one call, and runs of datagrams that are
//! sent in one.
//!
//! ```text
//!   recvmmsg, UDP_GRO ─▶ Inbox ─▶ runs of datagrams ─▶ their protocol
//!   sendmsg, UDP_SEGMENT ◀─ Outbox ◀─ datagrams to one receiver ◀─┘
//! ```
//!
//! Knows nothing of what datagrams mean. Waits for nothing but readiness: what the kernel does not
//! take now is lost and counted.
#![forbid(unsafe_code)]

mod open;
mod outbox;
mod socket;

pub use open::{BufferSizes, bind, connect, granted};
pub use outbox::{Outbox, Tally};
pub use socket::{Datagrams, Inbox, MtuDiscovery, Offloads, Options, Run};
