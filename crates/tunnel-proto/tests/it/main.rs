//! Known answers, properties and simulations, through the crate's public face.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod allowed;
mod codel;
mod datagram;
mod echo;
mod filter;
mod filter_model;
mod frame;
mod garbage;
mod icmp;
mod ip;
mod mtu;
mod offload;
mod packets;
mod path;
mod wrapped;

use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "any starting point will do")]
fn start() -> Instant {
    Instant::now()
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
