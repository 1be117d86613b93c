//! Test doubles, real peers and network namespaces for the workspace's tests and for `xtask`.
//!
//! Everything here blocks: a test calls it from a plain thread, or from `spawn_blocking`. The
//! servers ([`api_server`], [`kubelet`], [`upstream`]) run a single-threaded runtime on a thread of
//! their own and stop when dropped. Whatever is made (directories, namespaces, processes) is removed
//! by the value that stands for it.
//!
//! Nothing here is reached from production code, and nothing of ours (parsers, encoders) is used
//! here: what a test compares with must not share the defect it looks for.
#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    reason = "for tests alone: what a name says is not said again"
)]

pub mod api_server;
pub mod background;
pub mod certs;
pub mod client_hello;
pub mod command;
pub mod http;
pub mod https;
#[cfg(feature = "impair")]
pub mod impair;
#[cfg(feature = "impair")]
pub mod inject;
pub mod keys;
pub mod konnectivity;
pub mod kubelet;
pub mod metrics;
pub mod netns;
pub mod netpol;
pub mod peers;
pub mod ports;
pub mod process;
pub mod proxy_header;
pub mod sockets;
pub mod tempdir;
#[cfg(feature = "impair")]
pub mod tunnel_world;
pub mod upstream;
pub mod wait;

/// Returns the bytes of the future that a function of three arguments makes, without making one.
pub fn size_of_future<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
    size_of::<F>()
}
