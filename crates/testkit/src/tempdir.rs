//! A directory that is removed with everything in it when its value is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// A fresh directory below the system's directory for temporary files.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes a directory whose name starts with `prefix`.
    pub fn new(prefix: &str) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rhizome-{prefix}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A left-over of a killed process that had our number: its contents are not in use.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)
            .with_context(|| format!("making the directory {}", path.display()))?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes `name` in place and returns its path; directories on the way are made.
    pub fn write(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("making the directory {}", parent.display()))?;
        }
        fs::write(&path, contents).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Puts a new file in the place of `name` by rename, as an editor or a deployment does.
    pub fn replace(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.join(&name);
        let fresh = path.with_extension("fresh");
        fs::write(&fresh, contents).with_context(|| format!("writing {}", fresh.display()))?;
        fs::rename(&fresh, &path).with_context(|| format!("replacing {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes every directory this process has made: for an end by signal, which drops no values.
pub fn delete_ours() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_ours) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_ours(name: &str) -> bool {
    let mut parts = name.rsplitn(3, '-');
    let (number, maker) = (parts.next(), parts.next());
    let parsed = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
    let ours = parsed(maker) == Some(std::process::id());
    ours && parsed(number).is_some() && name.starts_with("rhizome-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_its_value() {
        let dir = TempDir::new("unit").unwrap();
        dir.write("deep/file", "text").unwrap();
        dir.replace("deep/file", "new").unwrap();
        assert_eq!(fs::read_to_string(dir.join("deep/file")).unwrap(), "new");
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn only_our_own_directories_are_told_to_be_ours() {
        let dir = TempDir::new("unit-own").unwrap();
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        assert!(is_ours(name), "{name}");
        for name in ["rhizome-unit-1-0", "rhizome-unit", "other-0"] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
