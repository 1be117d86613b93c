//! Where programs are kept that no package has: `${XDG_CACHE_HOME:-~/.cache}/rhizome`.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// Returns the cache's directory, made if need be.
pub fn directory() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    let directory = base.join("rhizome");
    fs::create_dir_all(&directory)
        .with_context(|| format!("making the directory {}", directory.display()))?;
    Ok(directory)
}

/// Holds the cache for one process at a time; released when dropped, or when we die.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Waits until no other process fills the cache.
pub fn lock() -> Result<Lock> {
    let path = directory()?.join("lock");
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive)
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(Lock { _file: file })
}
