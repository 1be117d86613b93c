//! The controller with a real kube-apiserver and etcd: everything that watches or writes.
//!
//! ```text
//!     test ─HTTP─▶ kube-apiserver ◀─watch, write─ controller, as the user that the README's role allows
//!                       └─▶ etcd ◀─ compaction
//! ```
//!
//! Everything runs on loopback, so no privileges are needed. A program that is missing fails its
//! test with a text that says how it is installed; `cargo xtask test` installs them all. Every
//! test prints the versions it meets. There are no nodes: nothing enforces what is written.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper of a test fails where its step fails, and says which peer it met"
)]

mod api;
#[path = "../it/child.rs"]
mod child;
mod crowd;
mod definitions;
mod document;
mod drift;
mod exposure;
mod namespaces;
mod outages;
#[path = "../../../sni-proxy/tests/peers/programs.rs"]
mod programs;
mod replicas;
mod stage;
