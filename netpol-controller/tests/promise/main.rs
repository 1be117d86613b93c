//! What pods were promised by labels and annotations is what policies give them: nothing more and
//! nothing less.
//!
//! ```text
//!   Model ──objects──▶ ClusterState ──plan──▶ policies ──testkit::netpol──▶ connectivity
//!     └────────────────promise, from the document's words──────────▶      =
//! ```
//!
//! The promise and the evaluation of policies share no code with the planner.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod generate;
mod model;
mod namespaces;
mod planned;
mod promised;
mod services;
