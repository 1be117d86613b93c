//! A small blocking HTTP/1.1 client over TLS: by server name, behind PROXY headers, through CONNECT.
//!
//! ```text
//! Target ──dial──▶ TCP ──PROXY header or CONNECT──▶ TLS ──▶ GET ──▶ Response | Watch
//! ```
//!
//! Bounded: heads to 64 KiB, bodies to 256 MiB, every read to the target's time limit. It does no
//! redirects and no pooling; a [`Connection`] is one socket for as long as it lives.

mod connection;
mod response;
mod slow;
mod target;

pub use connection::{Connection, Upgraded};
pub use response::{Body, Response, Watch};
pub use slow::{SlowReaders, kubelet_probe};
pub use target::{Proxy, RefusedByProxy, Target};

use std::io;

use anyhow::Result;

/// Opens a connection, asks once for `path`, and closes it.
///
/// Fails when a step fails; the text names it, and [`error_kind`] finds the socket's own reason.
pub fn get(target: &Target, path: &str) -> Result<Response> {
    Connection::open(target)?.get(path)
}

/// Returns the reason a socket gave, wherever it is in the chain: refused and reset differ.
pub fn error_kind(error: &anyhow::Error) -> Option<io::ErrorKind> {
    let mut causes = error.chain();
    let found = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
    found.map(io::Error::kind)
}
