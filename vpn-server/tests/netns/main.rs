//! The tunnel from end to end: gateway, servers and clients as programs, in namespaces of a seed, a
//! shoot and the bad lines between.
//!
//! ```text
//!     the test ─▶ server :9443 ═ gateway ═ line ═ client ─▶ echo in a pod's namespace
//! ```
//!
//! A test dials as an API server does, holds connections, and breaks what lies between. How fast
//! something is noticed is measured elsewhere; here it is printed, and bounded by what would be the
//! wrong mechanism at work.
//!
//! Needs root, or a user, network and mount namespace of its own.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests tell what they measured, and a failed set-up is a failed test"
)]

mod abuse;
#[cfg(feature = "peer-tests")]
mod clocks;
mod crashes;
#[cfg(feature = "peer-tests")]
mod intruder;
mod keys;
mod lines;
mod provisioned;
mod ranges;
mod restarts;
mod transports;
mod world;
