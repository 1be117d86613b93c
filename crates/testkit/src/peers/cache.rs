//! Where programs are kept that no package has: `${XDG_CACHE_HOME:-~/.cache}/rhizome`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

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

/// Returns `file` of the cache, if it is there.
pub fn find(file: &str) -> Option<PathBuf> {
    let path = directory().ok()?.join(file);
    path.is_file().then_some(path)
}

/// Returns `file` of the cache, which `make` puts where it is told unless it is there: one process
/// at a time.
pub fn fill(file: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let directory = directory()?;
    let path = directory.join("lock");
    let lock = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    // Until the descriptor is closed, here or because the process has died.
    lock.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    let path = directory.join(file);
    if !path.is_file() {
        make(&path)?;
    }
    Ok(path)
}

/// Puts a program into the cache in one step.
pub(super) fn install(program: &Path, path: &Path) -> Result<()> {
    let fresh = path.with_extension("fresh");
    fs::copy(program, &fresh).with_context(|| format!("copying {}", program.display()))?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| format!("moving {} into its place", path.display()))
}
