//! Every expression of rules and dashboards, evaluated by a real Prometheus over what the real
//! programs expose; and targets in a shoot, scraped through both tunnels.
//!
//! ```text
//!   traffic ─▶ sni-proxy, apiserver-proxy, vpn-*, konnectivity-*, netpol-controller
//!                       ▲ scrape
//!                  Prometheus ◀─ every expression ─ the test
//! ```
//!
//! Needs root, or a user, network and mount namespace of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a failed set-up is a failed test, which says whom it met"
)]

mod controller;
mod egress;
mod expressions;
mod forward;
mod gateways;
mod programs;
mod shoot;
