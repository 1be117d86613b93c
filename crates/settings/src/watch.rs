//! Says when a file's content may have changed, however that was done.
//!
//! ```text
//!   every `poll`, or at a hint: stat every file ─▶ differs? ─▶ quiet for `settle` ─▶ changed()
//! ```
//!
//! What counts is the comparison of device, inode, size and times, which sees a write in place, a
//! rename over the file, the swap of a symlink anywhere on its path (as a mounted ConfigMap does it
//! with `..data`), and the file going and coming, on network file systems as well. A look is one
//! stat(2) per file.
//!
//! No thread, and no content: the caller reads the file, and may find nothing new in it.

mod directories;
mod stamp;

use std::{io, path::PathBuf, time::Duration};

use tokio::time::{self, Instant};

use self::directories::Directories;
pub use self::stamp::Stamp;

/// How a [`FileWatcher`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchParams {
    /// How long the files must have been quiet before a change is reported, so that one that is
    /// still being written is not read; 200 ms at least unless another file is in its place, which has
    /// come there whole.
    pub settle: Duration,
    /// The longest that a change is held back because others follow.
    pub settle_limit: Duration,
    /// How often the files are looked at.
    pub poll: Duration,
}

impl Default for WatchParams {
    fn default() -> Self {
        Self {
            settle: IN_PLACE,
            settle_limit: Duration::from_secs(1),
            poll: Duration::from_millis(500),
        }
    }
}

/// [`WatchParams::settle`] at least of a file that may be written piece by piece: a program that writes it pauses
/// for less, and the first pieces of a list are a list as well.
const IN_PLACE: Duration = Duration::from_millis(200);

/// Watches a fixed set of files, which need not exist yet.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use settings::{FileWatcher, WatchParams};
/// // First watch, then read: a change in between is then not missed.
/// let mut watcher = FileWatcher::new(vec!["routes.yaml".into()], WatchParams::default())?;
/// loop {
///     let _ = std::fs::read_to_string("routes.yaml");
///     watcher.changed().await;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct FileWatcher {
    files: Vec<PathBuf>,
    params: WatchParams,
    /// As last told to the caller.
    reported: Vec<Option<Stamp>>,
    /// As last seen.
    seen: Vec<Option<Stamp>>,
    unsettled: Option<Unsettled>,
    next_poll: Instant,
    directories: Option<Directories>,
}

/// A change that is not reported yet.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    first: Instant,
    last: Instant,
    settle: Duration,
}

impl FileWatcher {
    /// Begins to watch `files`. Changes from here on are reported, so read the files after this.
    /// Relative paths are meant from the current working directory, whatever it becomes later.
    ///
    /// # Errors
    /// When a path is empty or the working directory cannot be found.
    pub fn new(files: Vec<PathBuf>, params: WatchParams) -> io::Result<Self> {
        let files = files
            .iter()
            .map(std::path::absolute)
            .collect::<io::Result<Vec<_>>>()?;
        let seen = stamps(&files);
        Ok(Self {
            files,
            params,
            reported: seen.clone(),
            seen,
            unsettled: None,
            next_poll: Instant::now() + params.poll,
            directories: None,
        })
    }

    /// Also looks as soon as something happens in the directories of the files. What happens
    /// elsewhere, as to what a symlink leads to, is still seen by the next look. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// When the kernel has no inotify(7) instance or watch left, or a directory does not exist. The
    /// watcher is as before.
    pub fn watch_directories(&mut self) -> io::Result<()> {
        if !self.files.is_empty() {
            self.directories = Some(Directories::of(&self.files)?);
        }
        Ok(())
    }

    /// Waits until any of the files changed and all have been quiet for
    /// [`WatchParams::settle`], but not longer than [`WatchParams::settle_limit`] after the first
    /// change. Everything up to the return counts as one change; what comes later is reported by
    /// the next call.
    ///
    /// Cancel safe: a change that was seen and not reported stays pending.
    pub async fn changed(&mut self) {
        if self.files.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let next = match self.unsettled {
                None => self.next_poll,
                Some(since) => {
                    (since.last + since.settle).min(since.first + self.params.settle_limit)
                }
            };
            let hint = async {
                match &self.directories {
                    Some(directories) => directories.event().await,
                    None => std::future::pending().await,
                }
            };
            let hinted = tokio::select! {
                () = time::sleep_until(next) => false,
                () = hint, if self.unsettled.is_none() => true,
            };
            let quiet = !self.look();
            if hinted && quiet {
                // However much happens beside the files.
                time::sleep(self.params.settle).await;
            }
            if let Some(since) = self.unsettled
                && (quiet || Instant::now() >= since.first + self.params.settle_limit)
            {
                self.unsettled = None;
                if self.seen != self.reported {
                    self.reported.clone_from(&self.seen);
                    return;
                }
            }
        }
    }

    /// Compares the files with what was last seen.
    fn look(&mut self) -> bool {
        let now = Instant::now();
        self.next_poll = now + self.params.poll;
        let stamps = stamps(&self.files);
        if stamps == self.seen {
            return false;
        }
        let mut changes = self.seen.iter().zip(&stamps);
        let may_be_partial = changes.any(|(before, now)| match (before, now) {
            (Some(before), Some(now)) => before != now && before.is_same_file(now),
            (before, now) => before != now,
        });
        self.seen = stamps;
        let settle = match may_be_partial {
            true => self.params.settle.max(IN_PLACE),
            false => self.params.settle,
        };
        let since = self.unsettled.get_or_insert(Unsettled {
            first: now,
            last: now,
            settle,
        });
        (since.last, since.settle) = (now, settle.max(since.settle));
        true
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| Stamp::of(file)).collect()
}

#[cfg(test)]
mod tests;
