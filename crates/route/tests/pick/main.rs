//! Which endpoint of a cluster a connection gets.
//!
//! Random numbers are a fixed sequence, so shares are the same in every run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod candidates;
mod choice;
mod maglev;
mod outlier;
mod support;
