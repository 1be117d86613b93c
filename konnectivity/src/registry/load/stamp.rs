//! What tells one state of a file from another without reading it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use settings::watch;

/// Identity, size and times of a file, and whether it was written a moment ago: then another write of
/// the same size may carry the same times, for a kernel's clock ticks every 4 ms or more. It is read
/// once more when it is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    file: watch::Stamp,
    fresh: bool,
}

impl Stamp {
    /// Of the file that `path` leads to, if there is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = watch::Stamp::of(path)?;
        let age = file.modified();
        let age = age.and_then(|at| SystemTime::now().duration_since(at).ok());
        Some(Self {
            file,
            fresh: age.is_some_and(|age| age < FRESH),
        })
    }
}

const FRESH: Duration = Duration::from_millis(100);
