//! How many sockets may be open here.

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as the kernel lets us; what is started later inherits it.
pub(crate) fn raise() -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    setrlimit(Resource::Nofile, most).context("raising the limit of open files")
}

pub(crate) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Returns how many connections a process of `descriptors` files can have that holds both ends of
/// each, be it a proxy or load and backend in one, with some files left for other things.
pub(crate) fn proxied(descriptors: u64) -> usize {
    let most = descriptors.saturating_sub(descriptors / 20 + 100) / 2;
    usize::try_from(most).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_a_connection_and_some_left() {
        assert_eq!(proxied(20_000), 9_450);
        assert_eq!(proxied(1_024), 436);
        assert_eq!(proxied(10), 0);
        raise().unwrap();
        assert!(descriptors() > 100);
    }
}
