//! The server's side of HTTP/2 (RFC 9113) for very many connections that are idle: bytes in,
//! requests and their data out, and the other way round.
//!
//! ```text
//!   bytes ──▶ Reader ──▶ frames ──▶ Connection ──▶ Event::Request, Event::Changed ──▶ read
//!                                        │                                             consumed
//!   bytes ◀── output ◀── transmit ◀─────┴──────────────────────── respond, send, end, reset
//! ```
//!
//! A [`Connection`] holds memory only for bytes that wait: one on which nothing happens has no
//! buffer, in either direction. Payloads are neither copied on their way in, when they are worth
//! it, nor on their way out. What a peer can make it hold is bounded by [`Params`].
//!
//! What it leaves to others: sockets and clocks, so also pings in good time. It does not compress what it sends,
//! pushes nothing, and ignores priorities. The value of `:authority` is not looked at: Go's gRPC calls
//! a Unix socket by its path there.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

mod connection;
mod error;
mod fields;
mod flow;
mod hpack;
mod reader;
mod request;
mod send_buffer;
mod settings;
mod stream;

pub use connection::{Connection, Event};
pub use error::{ConnectionError, ErrorCode, StreamEnd};
pub use fields::Fields;
pub use request::Request;
pub use send_buffer::SendBuffer;
pub use settings::Params;
pub use stream::{Read, StreamId};
