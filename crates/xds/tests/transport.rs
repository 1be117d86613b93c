//! Server and client over TCP on loopback, with the resources of real routes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "transport/access.rs"]
mod access;
#[path = "transport/cache.rs"]
mod cache;
#[path = "transport/faults.rs"]
mod faults;
#[path = "transport/raw.rs"]
mod raw;
#[path = "transport/secrets.rs"]
mod secrets;
#[path = "transport/support.rs"]
mod support;
#[path = "transport/sync.rs"]
mod sync;
#[path = "transport/whole.rs"]
mod whole;
