//! The controller as a program, without an API server that answers: flags, exit codes, what is
//! refused, what it says while it waits, and how fast it ends.
//!
//! With a real API server: `tests/peers`. What it writes: `src/plan`, `tests/promise`.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod child;
mod config;
mod docs;
mod offline;
