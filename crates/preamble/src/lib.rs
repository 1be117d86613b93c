//! Parses and writes the bytes that come before a relay starts.
//!
//! ```text
//!                      ┌─▶ ProxyHeader  PROXY protocol 1 and 2: source and destination
//! bytes received so far├─▶ ClientHello  TLS: server name, application protocols
//!                      └─▶ RequestHead  HTTP CONNECT: method, target, header fields
//!
//! addresses, target ──▶ encode_v1, encode_v2, encode_connect ──▶ bytes to send; ResponseHead reads the answer
//! ```
//!
//! Every parser is a total function over a prefix of the stream: it answers [`Progress::Done`] with
//! what it found and how many bytes that took, [`Progress::Need`] when the prefix is fine but too
//! short, or an error. Three laws hold for all of them, whatever the bytes:
//!
//! - the answer does not depend on how the stream was cut: a prefix of an input yields `Need` or
//!   the very answer of the whole;
//! - `consumed` is at most the input's length, and an answer never depends on bytes behind it;
//! - no more than `limit` bytes are ever looked at or asked for.
//!
//! There are no sockets, clocks, or buffers in here. Deadlines, and what a listener makes of a
//! preamble, belong to the caller.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::cast_possible_truncation)]

pub mod client_hello;
pub mod http_connect;
mod progress;
pub mod proxy_protocol;

pub use client_hello::{ClientHello, ClientHelloError};
pub use http_connect::{
    ConnectEncodeError, HeadError, HttpVersion, RequestHead, ResponseHead, encode_connect,
    looks_like_connect,
};
pub use progress::Progress;
pub use proxy_protocol::{
    Addresses, ProxyEncodeError, ProxyHeader, ProxyHeaderError, Signature, Transport, Version,
    detect, encode_v1, encode_v2,
};
