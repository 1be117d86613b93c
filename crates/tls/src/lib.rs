//! TLS settings from files, or from secrets that were delivered, and built again when these change.
//!
//! ```text
//!   cert, key, CA bundle ──load──▶ ServerTls, ClientTls ──config()──▶ each new handshake
//!           ▲                            │
//!           └────── watch(): changed? ───┘   bad files keep what was good
//! ```
//!
//! A bundle may hold several authorities, all of them valid: that is how they are rotated. A
//! connection keeps the settings it began with, so a rotation drops none.
//!
//! Accepts and dials nothing, and judges no name: [`subject_alt_names`] returns what a
//! certificate carries, what that allows is the caller's business. The cryptography is ring's, chosen here, so
//! no process-wide default is needed.
#![forbid(unsafe_code)]

mod client;
mod error;
mod files;
mod names;
mod reloading;
mod secret;
mod server;
mod terminating;

pub use client::{ClientTls, ClientTlsParams};
pub use error::TlsError;
pub use files::{KeyPair, Origin, load_roots};
pub use names::{SubjectAltName, subject_alt_names};
pub use reloading::{Metrics, Reloading};
pub use secret::{Bytes as SecretBytes, Secret, SecretStore, Secrets};
pub use server::{ClientAuth, ServerTls, ServerTlsParams};
pub use terminating::{
    ClientAuthority, MinVersion, Terminating, TerminatingParams, UpstreamTls, not_after,
};
