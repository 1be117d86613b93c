//! The client as a program, without privileges and without a tunnel.
//!
//! What it does to a network is proven in the target `netns`.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod docs;
mod process;
