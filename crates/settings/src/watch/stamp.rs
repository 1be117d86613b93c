//! What tells one state of a file from another without reading it.

use std::{os::unix::fs::MetadataExt, path::Path, time::SystemTime};

/// Identity, size and times of a file. The inode changes when another file is renamed over it or a
/// symlink leads elsewhere; the times when it is written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: Option<SystemTime>,
    changed: (i64, i64),
}

impl Stamp {
    /// Of the file that `path` leads to, if there is one.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: metadata.modified().ok(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Returns whether both are of one file, that was written in place.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// When the file was written last, as the file system has it.
    pub fn modified(&self) -> Option<SystemTime> {
        self.modified
    }
}
