//! Says when a file's content may have changed, however that was done.
//!
//! ```text
//!   inotify ─▶ anything about our names? ─┐
//!   poll timer ───────────────────────────┴▶ stat every file ─▶ differs? ─▶ quiet for `settle` ─▶ changed()
//! ```
//!
//! inotify(7) only wakes; what counts is the comparison of device, inode, size and times, which sees
//! a write in place, a rename over the file, the swap of a symlink anywhere on its path (as a
//! mounted ConfigMap does it with `..data`), and the file going and coming. File systems whose
//! changes inotify does not see (network ones) are covered by the slow poll. Where inotify itself
//! cannot be had, every file is looked at once a second.
//!
//! No thread, and no content: the caller reads the file, and may find nothing new in it.

mod inotify;
mod plan;
#[cfg(test)]
pub(crate) mod scratch;
mod stamp;

use std::{io, path::PathBuf, time::Duration};

use tokio::time::{self, Instant};

pub use self::stamp::Stamp;
use self::{inotify::Inotify, plan::Plan};

/// How a [`FileWatcher`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchParams {
    /// How long the files must have been quiet before a change is reported, so that one that is
    /// still being written is not read.
    pub settle: Duration,
    /// The longest that a change is held back because others follow.
    pub settle_limit: Duration,
    /// How often the files are looked at without being told.
    pub poll: Duration,
    /// The same where inotify cannot be had.
    pub fallback_poll: Duration,
    /// Whether inotify is used at all.
    pub inotify: bool,
}

impl Default for WatchParams {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(200),
            settle_limit: Duration::from_secs(1),
            poll: Duration::from_secs(30),
            fallback_poll: Duration::from_secs(1),
            inotify: true,
        }
    }
}

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
    inotify: Option<Inotify>,
    /// Whether the warning about missing inotify was given.
    warned: bool,
    /// As last told to the caller.
    reported: Vec<Option<Stamp>>,
    /// As last seen.
    seen: Vec<Option<Stamp>>,
    unsettled: Option<Unsettled>,
    next_poll: Instant,
}

/// A change that is not reported yet.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    first: Instant,
    last: Instant,
}

impl FileWatcher {
    /// Begins to watch `files`. Changes from here on are reported, so read the files after this.
    /// Relative paths are meant from the current working directory, whatever it becomes later.
    ///
    /// # Errors
    /// When a path is empty or the working directory cannot be found. Lack of inotify is no error:
    /// a warning is logged and the files are polled.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time.
    pub fn new(files: Vec<PathBuf>, params: WatchParams) -> io::Result<Self> {
        let files = files
            .iter()
            .map(std::path::absolute)
            .collect::<io::Result<Vec<_>>>()?;
        let mut watcher = Self {
            reported: Vec::new(),
            seen: Vec::new(),
            files,
            params,
            inotify: None,
            warned: false,
            unsettled: None,
            next_poll: Instant::now(),
        };
        watcher.arm();
        watcher.seen = watcher.stamps();
        watcher.reported = watcher.seen.clone();
        watcher.schedule_poll();
        Ok(watcher)
    }

    /// Waits until any of the files changed and all have been quiet for
    /// [`WatchParams::settle`], but not longer than [`WatchParams::settle_limit`] after the first
    /// change. Everything up to the return counts as one change; what comes later is reported by
    /// the next call.
    ///
    /// Cancel safe: a change that was seen and not reported stays pending.
    pub async fn changed(&mut self) {
        loop {
            match self.unsettled {
                None => self.wait_for_hint().await,
                Some(since) => {
                    // Not woken by events meanwhile: a storm of writes costs one look per `settle`.
                    time::sleep_until(since.deadline(&self.params)).await;
                    if let Some(inotify) = &self.inotify {
                        inotify.drain();
                    }
                    let quiet = !self.look();
                    if quiet || Instant::now() >= since.first + self.params.settle_limit {
                        self.unsettled = None;
                        if self.seen != self.reported {
                            self.reported.clone_from(&self.seen);
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Whether the files are watched by inotify, and not polled every second.
    pub fn uses_inotify(&self) -> bool {
        self.inotify.is_some()
    }

    /// Waits for an event about one of the files or for the poll timer, then looks.
    async fn wait_for_hint(&mut self) {
        let polled = match &mut self.inotify {
            Some(inotify) => tokio::select! {
                biased;
                () = inotify.event() => false,
                () = time::sleep_until(self.next_poll) => true,
            },
            None => {
                time::sleep_until(self.next_poll).await;
                true
            }
        };
        if polled {
            self.schedule_poll();
        }
        self.look();
    }

    /// Compares the files with what was last seen, after watching what their paths lead to now.
    fn look(&mut self) -> bool {
        self.arm();
        let stamps = self.stamps();
        if stamps == self.seen {
            return false;
        }
        self.seen = stamps;
        let now = Instant::now();
        let first = self.unsettled.map_or(now, |since| since.first);
        self.unsettled = Some(Unsettled { first, last: now });
        true
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        self.files.iter().map(|file| Stamp::of(file)).collect()
    }

    /// Brings inotify's watches in line with where the paths lead. A path that changes while it is
    /// followed is followed again; if it never holds still, the polls are left.
    fn arm(&mut self) {
        if !self.params.inotify {
            return;
        }
        const ROUNDS: usize = 8;
        let mut plan = Plan::of(&self.files);
        for _ in 0..ROUNDS {
            if let Err(error) = self.try_arm(&plan) {
                self.fall_back(&error);
                return;
            }
            let now = Plan::of(&self.files);
            if now == plan {
                return;
            }
            plan = now;
        }
    }

    fn try_arm(&mut self, plan: &Plan) -> io::Result<()> {
        if self.inotify.is_none() {
            self.inotify = Some(Inotify::new()?);
        }
        match &mut self.inotify {
            Some(inotify) => inotify.arm(plan),
            None => Ok(()),
        }
    }

    fn fall_back(&mut self, error: &io::Error) {
        self.inotify = None;
        self.next_poll = self
            .next_poll
            .min(Instant::now() + self.params.fallback_poll);
        if !self.warned {
            self.warned = true;
            tracing::warn!(
                %error,
                period = ?self.params.fallback_poll,
                "no inotify (see fs.inotify in sysctl); files are polled"
            );
        }
    }

    fn schedule_poll(&mut self) {
        let period = if self.inotify.is_some() {
            self.params.poll
        } else {
            self.params.fallback_poll
        };
        self.next_poll = Instant::now() + period;
    }
}

impl Unsettled {
    fn deadline(self, params: &WatchParams) -> Instant {
        (self.last + params.settle).min(self.first + params.settle_limit)
    }
}

#[cfg(test)]
mod tests;
