//! The HTTP CONNECT frontend that API servers' egress selectors speak to, and the TLS entrance in
//! front of it.
//!
//! ```text
//!   TCP ──▶ accept_tls ──┐
//!   UDS ─────────────────┴▶ serve:  head ──▶ Dial::dial ──▶ 200 ──▶ Dial::relay ──▶ Outcome
//!                                     │           └── Refusal ──▶ answer, close
//!                                     └── 400, 405, 431
//! ```
//!
//! One connection from its first byte to its end, over any stream. What lies behind a tunnel is
//! the [`Dial`] implementation's business: an agent's link for one program, a socket in a tunnel
//! device for another. The texts on the wire are those of the reference proxy server, because
//! people and scripts match them.
//!
//! Accepts no connections (see `serve`), judges no certificate beyond what the given TLS settings
//! do, keeps no metrics and writes no access log: [`Outcome`] is what those are made from.
#![forbid(unsafe_code)]

mod answer;
mod dial;
mod head;
mod open;
mod outcome;
mod params;
mod refusal;
mod request;
mod stream;
mod tls;

pub use dial::{Dial, Ended};
pub use open::serve;
pub use outcome::{End, Outcome};
pub use params::Params;
pub use preamble::HttpVersion;
pub use refusal::{Refusal, RefusalHeaders};
pub use request::Request;
pub use stream::Stream;
pub use tls::{AcceptError, Accepted, accept_tls, accept_tls_by_name};
