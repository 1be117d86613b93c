//! The table of flows, by example and against a plain list.

mod eviction;
mod plain_list;

use super::*;

fn client(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

fn second(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[expect(clippy::disallowed_methods, reason = "an origin that tests count from")]
fn origin() -> Instant {
    Instant::now()
}
