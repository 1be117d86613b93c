//! Tokens of agents: reading them, checking signatures and claims, asking an API server.
//!
//! ```text
//!     Token ──▶ choose: tenant it may be of ──▶ Judge: keys, verdicts given lately ──▶ verdict
//!                                                └── neither can tell ──▶ review by an API server
//! ```
//!
//! A token is never logged and never kept: what is remembered of it is a hash. Knows neither the
//! registry nor the server.

mod cache;
mod choose;
#[cfg(test)]
pub(crate) mod fixture;
mod judge;
mod jwt;
mod keys;
mod rate;
mod refused;
mod review;
mod secret;
mod strict_json;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use choose::{Candidate, choose};
pub(crate) use judge::Recalled;
pub use judge::{Accepted, Judge, Review, Verdicts};
pub use jwt::TokenRules;
pub use keys::{KeySet, KeySetError};
pub(crate) use rate::Rates;
pub use refused::TokenRefused;
pub use secret::Token;
