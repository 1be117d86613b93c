//! Other people's programs, as the peers that ours meet in the field.
//!
//! Each is found in `PATH`, or in our cache (`${XDG_CACHE_HOME:-~/.cache}/rhizome`), where
//! [`install`] puts what Debian has no package for. Tests only look, and say what is missing;
//! `cargo xtask test` installs. Each starts with a configuration of its own in a directory of the
//! test, listens where it is told, and ends with its value.

mod apt;
pub mod cache;
pub mod crates;
pub mod envoy;
pub mod faketime;
pub mod kube;
pub mod nginx;
pub mod packages;
pub mod prometheus;
pub mod wireguard;

use anyhow::Result;

/// Installs whatever of all peers is missing, telling `say` what it does and how long that takes.
pub fn install(say: &dyn Fn(&str)) -> Result<()> {
    packages::install(packages::ALL, say)?;
    envoy::install(say)?;
    kube::install(say)?;
    wireguard::install(say)?;
    Ok(())
}
