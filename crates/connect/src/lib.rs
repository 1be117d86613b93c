//! The HTTP CONNECT frontend that API servers' egress selectors speak to, which also forwards a
//! plain `GET` in absolute form, and the TLS entrance in front of it.
//!
//! ```text
//!   TCP ──▶ accept_tls ──┐
//!   UDS ─────────────────┴▶ Exchange: request ──▶ while_connected(dial) ──▶ accept ──▶ the caller's relay
//!                                        │                        └───▶ refuse ──▶ close
//!                                        └── 400, 405, 431
//! ```
//!
//! What lies behind a tunnel is the caller's: an agent's link for one program, a socket in a tunnel
//! device for another. The texts on the wire are those of the reference proxy server, because
//! people and scripts match them.
//!
//! Accepts no connections (see `serve`), judges no certificate beyond what the given TLS settings
//! do, keeps no metrics and writes no access log.
#![forbid(unsafe_code)]

mod answer;
mod exchange;
mod forward;
mod head;
mod params;
mod request;
mod stream;
mod tls;

pub use answer::{Refusal, RefusalHeaders};
pub use exchange::{End, Exchange};
pub use params::Params;
pub use preamble::HttpVersion;
pub use request::Request;
pub use stream::{Downstream, Stream};
pub use tls::{AcceptError, Accepted, accept_tls, accept_tls_by_name};
