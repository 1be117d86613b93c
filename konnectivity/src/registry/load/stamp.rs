//! What tells one state of a file from another without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Identity, size and times of a file. The inode changes when another file is renamed over it or a
/// symlink leads elsewhere; the times when it is written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Whether it was written a moment ago: then another write of the same size may carry the same
    /// times, for a kernel's clock ticks every 4 ms or more. It is read once more when it is older.
    fresh: bool,
}

impl Stamp {
    /// Of the file that `path` leads to, if there is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        let age = metadata
            .modified()
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            fresh: age.is_some_and(|age| age < FRESH),
        })
    }
}

const FRESH: Duration = Duration::from_millis(100);
