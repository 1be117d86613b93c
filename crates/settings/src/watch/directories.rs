//! Reports that something happened in directories, by inotify(7).
//!
//! A hint to look, no more: events are not read for what they say, and what an overflow loses, or
//! happens in a directory that has taken the place of a watched one, is seen by the next look.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A watch over directories, not over what they contain.
#[derive(Debug)]
pub(super) struct Directories(AsyncFd<OwnedFd>);

impl Directories {
    /// Watches the directories that `files` are in. Must be called within a runtime.
    ///
    /// # Errors
    /// When the kernel has no instance or watch left, or one of the directories does not exist.
    pub(super) fn of(files: &[PathBuf]) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let directories: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
        for directory in directories {
            add_watch(&fd, directory, EVENTS)?;
        }
        #[expect(
            deprecated,
            reason = "sound for a descriptor that is owned; its replacement is unsafe code"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self(fd))
    }

    /// Waits until an event is queued, which may be an old one. Cancel-safe.
    pub(super) async fn event(&self) {
        loop {
            let Ok(mut ready) = self.0.readable().await else {
                return std::future::pending().await; // the runtime ends
            };
            match rustix::io::read(ready.get_inner(), &mut [0; 4096]) {
                Ok(_) => return,
                Err(_) => ready.clear_ready(),
            }
        }
    }
}

/// A file is written, comes or goes.
const EVENTS: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE);
