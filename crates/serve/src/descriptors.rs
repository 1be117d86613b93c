//! The descriptor limit of the process, and how many connections it carries.
//!
//! Reads and raises limits at start; nothing here runs later.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors kept for everything that is not a connection: listeners, pipes, probes, files.
const RESERVED: u64 = 256;

/// Two sockets: the accepted one and the dialled one.
const PER_CONNECTION: u64 = 2;

/// Raises the soft limit of open descriptors to the hard one, and returns `wanted` connections
/// lowered to what it carries beside `pipes` pipes.
#[must_use]
pub fn connection_limit(wanted: u64, pipes: u64) -> u64 {
    let descriptors = raise_descriptor_limit();
    let carried = connections_carried(descriptors, pipes);
    if carried < wanted {
        tracing::warn!(wanted, carried, descriptors, "limit of connections lowered");
    }
    wanted.min(carried)
}

fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Returns how many proxied connections `descriptors` carry beside `pipes` pipes.
fn connections_carried(descriptors: u64, pipes: u64) -> u64 {
    let spare = descriptors.saturating_sub(RESERVED.min(descriptors / 4));
    spare.saturating_sub(pipes.saturating_mul(2).min(spare / 2)) / PER_CONNECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_limits_still_carry_connections() {
        assert_eq!(connections_carried(20_000, 128), (20_000 - 256 - 256) / 2);
        assert_eq!(connections_carried(64, 128), 12);
        assert_eq!(connections_carried(0, 0), 0);
    }
}
