//! `vpn-provision` with a real kube-apiserver, as a user with exactly the rights that the
//! documentation names.
//!
//! ```text
//!     test ─ starts ─▶ vpn-provision ─▶ kube-apiserver ─▶ etcd      one cluster is seed and shoot,
//!       │                                            │               but for `first_run`
//!       └─ looks ────────────────────────────────────┘
//! ```
//!
//! Everything runs on loopback, so no privileges are needed. A program that is missing fails its
//! test with a text that says how it is installed; `cargo xtask test` installs them all. That both
//! ends work with what is written is tried in `netns`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper of a test fails where its step fails, and says which peer it met"
)]

mod everything;
mod first_run;
#[path = "../../../../sni-proxy/tests/peers/programs.rs"]
mod programs;
mod race;
mod stage;
