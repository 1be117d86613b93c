//! The gateway as a library and as a program, over the loopback device and without privileges.
//!
//! ```text
//!     client ─▶ gateway (in process, or the binary) ─▶ fake upstream that says what it saw
//! ```
//!
//! Holds the words and figures that other people's tools rely on: routes, answers, reasons, log
//! fields, metric names, exit codes. Every wait is for an event and has an end.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

// First by name, and so the first to start: two minutes, beside which all others run.
mod a_long_pause;
mod access_log;
mod admin;
mod balancer;
mod connect;
mod descriptors;
mod docs;
mod drain;
mod endpoints;
mod handover;
mod inherited;
mod limits;
mod metrics;
mod node;
mod preamble;
mod probes;
mod process;
mod relay;
mod reload;
mod replay;
mod resets;
mod socket_options;
mod support;
mod terminate;
mod tls;
mod to_endpoint;
mod trace;
mod wireguard;
mod xds;
