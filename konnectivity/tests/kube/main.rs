//! Tokens and leases with a real kube-apiserver and etcd.
//!
//! ```text
//!     test ─HTTP─▶ kube-apiserver ◀─TokenReview, Lease─ the library, as the account whose role
//!                    └─▶ etcd                            docs/konnectivity-kubernetes.md gives
//! ```
//!
//! Everything runs on loopback, so no privileges are needed. A program that is missing fails its
//! test with a text that says how it is installed; `cargo xtask test` installs them all.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails where its step fails"
)]

mod leases;
mod stage;
mod tokens;
