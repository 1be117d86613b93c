//! WireGuard listeners: where datagrams go, who gets answers, and what is dropped.
//!
//! ```text
//!     fake client ─▶ gateway ─wrapped─▶ fake server, which says what it saw and answers
//! ```
//!
//! The datagrams have WireGuard's form and nothing else of it: a gateway sees no more.

mod abuse;
mod changes;
mod drops;
mod handover;
mod limits;
pub(crate) mod peers;
mod routes;
mod sizes;
mod strangers;
