//! inotify(7) for a [`Plan`]: watches its directories and files, and says when one of its names is
//! concerned.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::plan::Plan;

/// An inotify instance and what its watches are for.
#[derive(Debug)]
pub(super) struct Inotify {
    fd: AsyncFd<OwnedFd>,
    watches: BTreeMap<i32, Watched>,
}

#[derive(Debug)]
enum Watched {
    /// Only events about these names matter, and those about the directory itself.
    Directory(BTreeSet<Vec<u8>>),
    File,
}

/// A name in a directory comes, goes, or becomes another; or the directory itself goes.
const DIRECTORY_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The content is written. That the name goes is the directory's to say.
const FILE_EVENTS: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DONT_FOLLOW);

/// Events read per wake-up before others get their turn, times the 100 or so that fit a buffer.
const READS_PER_TURN: usize = 64;

impl Inotify {
    /// # Errors
    /// As inotify_init1(2): EMFILE and ENFILE at the limits of instances and descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "an OwnedFd is open as long as it lives, which is all the unsafe one asks for"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self {
            fd,
            watches: BTreeMap::new(),
        })
    }

    /// Watches what `plan` names and nothing else.
    ///
    /// # Errors
    /// As inotify_add_watch(2), ENOSPC at the limit of watches; not when something is gone
    /// meanwhile, nor when a directory that is not needed may not be read.
    pub(super) fn arm(&mut self, plan: &Plan) -> io::Result<()> {
        let mut watches = BTreeMap::new();
        for (directory, wanted) in &plan.directories {
            let names = wanted.names.iter().map(|name| name.as_bytes().to_owned());
            match self.add(directory, DIRECTORY_EVENTS) {
                // One directory by two paths (bind mounts) is one watch for the names of both.
                Ok(Some(watch)) => match watches.entry(watch).or_insert(Watched::File) {
                    Watched::Directory(known) => known.extend(names),
                    fresh @ Watched::File => *fresh = Watched::Directory(names.collect()),
                },
                Ok(None) => {}
                Err(Errno::ACCESS | Errno::PERM) if !wanted.needed => {}
                Err(error) => return Err(error.into()),
            }
        }
        for file in &plan.files {
            if let Some(watch) = self.add(file, FILE_EVENTS)? {
                watches.insert(watch, Watched::File);
            }
        }
        for stale in self
            .watches
            .keys()
            .filter(|watch| !watches.contains_key(watch))
        {
            // Fails when the kernel dropped the watch with what it watched.
            let _ = inotify::remove_watch(self.fd.get_ref(), *stale);
        }
        self.watches = watches;
        Ok(())
    }

    /// Adds or renews a watch; nothing when the path leads elsewhere by now.
    fn add(&self, path: &Path, events: WatchFlags) -> Result<Option<i32>, Errno> {
        match inotify::add_watch(self.fd.get_ref(), path, events) {
            Ok(watch) => Ok(Some(watch)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for an event that concerns the plan. Cancel safe: no event is taken without being
    /// answered.
    pub(super) async fn event(&mut self) {
        loop {
            let Ok(mut guard) = self.fd.readable_mut().await else {
                // The runtime's reactor is gone; the timers of the caller are as well.
                return std::future::pending().await;
            };
            let (fd, watches) = (guard.get_inner(), &self.watches);
            let Drained { concerned, emptied } = read_some(fd, watches);
            if emptied {
                guard.clear_ready();
            }
            if concerned {
                return;
            }
        }
    }

    /// Drops the events that wait.
    pub(super) fn drain(&self) {
        read_some(self.fd.get_ref(), &self.watches);
    }
}

struct Drained {
    /// Whether one of the events was about a name or file of the plan.
    concerned: bool,
    /// Whether no event is left.
    emptied: bool,
}

/// Reads the events that wait, at most [`READS_PER_TURN`] buffers of them.
fn read_some(fd: &OwnedFd, watches: &BTreeMap<i32, Watched>) -> Drained {
    let mut buf = [MaybeUninit::<u8>::uninit(); 4096];
    let mut events = inotify::Reader::new(fd, &mut buf);
    let mut concerned = false;
    let mut reads = 0;
    loop {
        if events.is_buffer_empty() {
            reads += 1;
            if reads > READS_PER_TURN {
                return Drained {
                    concerned,
                    emptied: false,
                };
            }
        }
        match events.next() {
            Ok(event) => concerned |= is_ours(&event, watches),
            Err(Errno::INTR) => {}
            // Anything but "would block" is impossible for a buffer that holds a name; to wait for
            // the next poll is then better than to spin.
            Err(_) => {
                return Drained {
                    concerned,
                    emptied: true,
                };
            }
        }
    }
}

fn is_ours(event: &inotify::Event<'_>, watches: &BTreeMap<i32, Watched>) -> bool {
    if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
        return true;
    }
    match (watches.get(&event.wd()), event.file_name()) {
        (None, _) => false,
        (Some(Watched::Directory(names)), Some(name)) => names.contains(name.to_bytes()),
        (Some(Watched::Directory(_) | Watched::File), _) => true,
    }
}

#[cfg(test)]
impl Inotify {
    /// Watches the kernel holds for this instance, as proc(5) shows them.
    pub(super) fn watch_count(&self) -> usize {
        use std::os::fd::AsRawFd;
        let info = format!("/proc/self/fdinfo/{}", self.fd.get_ref().as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        info.lines()
            .filter(|line| line.starts_with("inotify "))
            .count()
    }
}
