//! What a worker lends to its connections: pipes for splicing and one scratch buffer for copying.
//!
//! Belongs to one thread, so nothing here is locked. Pipes are created on demand up to a bound,
//! kept while they are in use, and closed again by [`Pool::trim`] once a burst is over.
//!
//! A direction whose sink takes nothing keeps its pipe for a second or two. Then its bytes wait in
//! memory, of all directions as many as all pipes hold; beyond that they stay in their pipes. So
//! stalled directions, twice as many as there are pipes or more, can hold all of them and their size
//! again in memory. Others copy then, and leave with the source what a full sink does not take.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

/// Capacity below which a pipe is of no use: the kernel's default (pipe(7)).
const MIN_PIPE_BYTES: usize = 64 * 1024;

/// Capacity of a pipe where the budget allows it: what measured best (docs/performance.md).
const MAX_PIPE_BYTES: usize = 512 * 1024;

/// Bytes of all pipes of a process.
const ALL_PIPES_BYTES: usize = 48 << 20;

/// How much a worker's pool may hold.
#[derive(Clone, Copy, Debug)]
pub struct PoolParams {
    /// Most pipes that exist at once; a bulk direction that finds none copies instead.
    pub pipes: usize,
    /// Capacity asked of the kernel for each pipe, bytes. What the kernel grants may be less:
    /// unprivileged users share `fs.pipe-user-pages-soft` (64 MiB by default) over all pipes.
    pub pipe_bytes: usize,
}

impl PoolParams {
    /// No pipes: every byte is copied.
    pub const COPYING: Self = Self {
        pipes: 0,
        pipe_bytes: 0,
    };

    /// Returns the parameters of each of `workers` pools: 64 pipes of 512 KiB or, with more than
    /// one worker, fewer and, with more than 24, smaller ones, so that up to 192 workers fit three
    /// quarters of what an unprivileged user may have (`fs.pipe-user-pages-soft`, 64 MiB by
    /// default). Each has at least 4 pipes, of at least 64 KiB.
    pub fn for_workers(workers: usize) -> Self {
        let each = ALL_PIPES_BYTES / workers.max(1);
        let pipes = (each / MAX_PIPE_BYTES).clamp(4, 64);
        let granted = (each / pipes).clamp(MIN_PIPE_BYTES, MAX_PIPE_BYTES);
        Self {
            pipes,
            pipe_bytes: 1 << granted.ilog2(), // as the kernel has them
        }
    }

    /// Returns how many pipes `workers` pools may hold together.
    pub fn max_pipes(&self, workers: usize) -> u64 {
        (self.pipes as u64).saturating_mul(workers as u64)
    }
}

/// The pipes and the scratch buffer of one worker.
#[derive(Debug)]
pub struct Pool {
    params: PoolParams,
    idle: RefCell<Vec<Pipe>>,
    /// Fewest idle pipes since the last trim: these were not needed.
    idle_low: Cell<usize>,
    existing: Cell<usize>,
    splice_works: Cell<bool>,
    /// Bytes that were taken out of pipes.
    unloaded: Rc<Cell<usize>>,
    scratch: RefCell<Box<[u8]>>,
}

/// Bytes that wait in memory. Those that were taken out of a pipe, here or before the relay was
/// resumed, count in the pool until they go.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) bytes: Box<[u8]>,
    counted: Option<Rc<Cell<usize>>>,
}

impl From<&[u8]> for Waiting {
    fn from(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.into(),
            counted: None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(all) = &self.counted {
            all.set(all.get() - self.bytes.len());
        }
    }
}

/// A kernel pipe, both ends non-blocking.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

impl Pool {
    /// Bytes of the scratch buffer, which is the largest single copy. Measured on loopback,
    /// copying costs half as much CPU time in 256 KiB reads as in 16 KiB reads, and a tenth
    /// to a fifth less again in reads of 1 MiB, though no second-level cache holds that.
    pub(crate) const SCRATCH_BYTES: usize = 1024 * 1024;

    /// Creates an empty pool.
    pub fn new(params: PoolParams) -> Self {
        Self {
            params,
            idle: RefCell::new(Vec::new()),
            idle_low: Cell::new(0),
            existing: Cell::new(0),
            splice_works: Cell::new(params.pipes > 0),
            unloaded: Rc::default(),
            // Zeroed pages come from the kernel untouched and cost memory only once used.
            scratch: RefCell::new(vec![0; Self::SCRATCH_BYTES].into_boxed_slice()),
        }
    }

    /// Closes the idle pipes that were not needed since the previous call.
    ///
    /// Called now and then by the worker, so that descriptors and kernel memory of a burst are
    /// given back.
    pub fn trim(&self) {
        let mut idle = self.idle.borrow_mut();
        let unneeded = self.idle_low.get().min(idle.len());
        let keep = idle.len() - unneeded;
        idle.truncate(keep);
        idle.shrink_to_fit();
        self.existing.set(self.existing.get() - unneeded);
        self.idle_low.set(keep);
    }

    /// Returns the number of pipes that exist now, lent or idle.
    pub fn pipes(&self) -> usize {
        self.existing.get()
    }

    /// Lends an empty pipe, or `None` when the bound is reached, descriptors ran out or this
    /// kernel cannot splice.
    pub(crate) fn take(&self) -> Option<Pipe> {
        if !self.splice_works.get() {
            return None;
        }
        let mut idle = self.idle.borrow_mut();
        if let Some(pipe) = idle.pop() {
            self.idle_low.set(self.idle_low.get().min(idle.len()));
            return Some(pipe);
        }
        if self.existing.get() >= self.params.pipes {
            return None;
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Above the user's share the kernel makes pipes of a page or two and refuses to grow them
        // (pipe(7)); splicing through those costs more than copying.
        let capacity = fcntl_setpipe_size(&writer, self.params.pipe_bytes)
            .or_else(|_| fcntl_getpipe_size(&writer))
            .unwrap_or(0);
        if capacity < MIN_PIPE_BYTES {
            return None;
        }
        self.existing.set(self.existing.get() + 1);
        Some(Pipe { reader, writer })
    }

    /// Takes back a pipe, which must be empty.
    pub(crate) fn give(&self, pipe: Pipe) {
        self.idle.borrow_mut().push(pipe);
    }

    /// Closes a lent pipe that still holds bytes.
    pub(crate) fn discard(&self, pipe: Pipe) {
        drop(pipe);
        self.existing.set(self.existing.get() - 1);
    }

    /// Returns whether `held` bytes may be taken out of a pipe: with what was taken out of others
    /// and still waits, they are no more than all pipes hold.
    pub(crate) fn may_unload(&self, held: usize) -> bool {
        self.unloaded.get() + held <= self.params.pipes * self.params.pipe_bytes
    }

    /// Takes the `held` bytes out of a pipe, which is empty then.
    pub(crate) fn unload(&self, pipe: &Pipe, held: usize) -> io::Result<Waiting> {
        let mut bytes = vec![0; held];
        let mut read = 0;
        while read < held {
            match rustix::io::read(&pipe.reader, &mut bytes[read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => read += len,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(self.hold(bytes))
    }

    /// Counts bytes as taken out of a pipe, however many there are.
    pub(crate) fn hold(&self, bytes: Vec<u8>) -> Waiting {
        self.unloaded.set(self.unloaded.get() + bytes.len());
        Waiting {
            bytes: bytes.into_boxed_slice(),
            counted: Some(Rc::clone(&self.unloaded)),
        }
    }

    /// Records that splice(2) refused these descriptors; every later bulk direction copies.
    pub(crate) fn splice_refused(&self, errno: Errno) -> bool {
        // EINVAL: a descriptor does not support splicing; ENOSYS and EPERM: filtered by seccomp.
        let refused = matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::PERM);
        if refused {
            self.splice_works.set(false);
        }
        refused
    }

    /// Runs `f` with the first `len` bytes of the scratch buffer.
    pub(crate) fn with_scratch<R>(&self, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut scratch = self.scratch.borrow_mut();
        let len = len.min(scratch.len());
        f(&mut scratch[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_bounded_and_trimmed_after_burst() {
        let pool = Pool::new(PoolParams {
            pipes: 3,
            pipe_bytes: 65536,
        });
        let lent: Vec<Pipe> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(lent.len(), 3);
        assert!(pool.take().is_none());
        lent.into_iter().for_each(|pipe| pool.give(pipe));
        pool.trim(); // the burst ended within this period: nothing was idle all through it
        assert_eq!(pool.pipes(), 3);
        let one = pool.take().expect("an idle pipe is lent again");
        pool.give(one);
        pool.trim(); // two were never asked for since
        assert_eq!(pool.pipes(), 1);
        pool.trim();
        assert_eq!(pool.pipes(), 0);
    }

    #[test]
    fn pipes_of_all_workers_fit_user_limit() {
        for (workers, pipes, pipe_bytes) in [
            (0, 64, 512 << 10),
            (1, 64, 512 << 10),
            (2, 48, 512 << 10),
            (24, 4, 512 << 10),
            (25, 4, 256 << 10),
            (48, 4, 256 << 10),
            (64, 4, 128 << 10),
            (192, 4, 64 << 10),
        ] {
            let params = PoolParams::for_workers(workers);
            assert_eq!((params.pipes, params.pipe_bytes), (pipes, pipe_bytes));
            assert!(workers * pipes * pipe_bytes <= ALL_PIPES_BYTES);
        }
        assert_eq!(
            PoolParams::for_workers(usize::MAX).pipe_bytes,
            MIN_PIPE_BYTES
        );
    }

    #[test]
    fn discarded_pipe_frees_its_slot() {
        let pool = Pool::new(PoolParams {
            pipes: 1,
            pipe_bytes: 65536,
        });
        let pipe = pool.take().expect("below the bound");
        assert!(pool.take().is_none());
        pool.discard(pipe);
        assert!(pool.take().is_some());
    }

    #[test]
    fn unloading_stops_at_size_of_all_pipes() {
        const FULL: usize = 65536;
        let pool = Pool::new(PoolParams {
            pipes: 2,
            pipe_bytes: FULL,
        });
        let stall = || {
            let pipe = pool.take().expect("below the bound");
            assert_eq!(rustix::io::write(&pipe.writer, &[7; FULL]), Ok(FULL));
            pipe
        };
        let unload = |pipe: &Pipe| {
            pool.may_unload(FULL)
                .then(|| pool.unload(pipe, FULL).unwrap())
        };
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let pipe = stall();
            waiting.push(unload(&pipe).expect("as much as the pipes hold"));
            pool.give(pipe);
        }
        // Two more keep their pipes, which nothing else can have, until one of the others is gone.
        let (third, fourth) = (stall(), stall());
        assert!(unload(&third).is_none() && unload(&fourth).is_none());
        assert!(pool.take().is_none());
        waiting.pop();
        assert_eq!(unload(&third).map(|third| third.bytes.len()), Some(FULL));
        pool.give(third);
        assert!(pool.take().is_some());
    }

    #[test]
    fn refused_splice_disables_pipes() {
        let pool = Pool::new(PoolParams::for_workers(1));
        assert!(!pool.splice_refused(Errno::CONNRESET));
        assert!(pool.take().is_some());
        assert!(pool.splice_refused(Errno::INVAL));
        assert!(pool.take().is_none());
    }
}
