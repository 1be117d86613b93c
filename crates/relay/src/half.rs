//! One direction of a relay: read from one socket, write to the other, pass the end on.
//!
//! ```text
//!     source ─recv─▶ scratch ─send─▶ sink        small exchanges
//!     source ─splice─▶ pipe ─splice─▶ sink       once a read filled the small buffer
//!     source ─peek─▶ scratch ─send─▶ sink        the same, where no pipe is available; then
//!     source ─recv─▶ nowhere                     as many bytes as the sink took
//! ```
//!
//! Bytes that the sink did not take at once stay in the pipe, in a buffer of exactly their size if
//! the read was a small one, or with the source, in its socket. Nothing more is read until they are
//! gone: at most one pipe or one small buffer is held, and where the caller finds that the sink takes
//! nothing for long, a buffer with what was in the pipe. Knows neither the other direction nor any
//! timer.
//!
//! Reads stop at a byte that the source marked as urgent (tcp(7)). recv(2) drops it and goes on the
//! next time; splice(2) never passes it, so only recv(2) finds that a stream has ended.

use std::io;
use std::task::{Context, Poll, ready};

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::RecvFlags;
use rustix::pipe::{SpliceFlags, splice};
use socket2::SockRef;
use tokio::io::Interest;

use crate::outcome::{Direction, Failure, Meter};
use crate::pool::{Pipe, Pool, Waiting};
use crate::reset::is_writable;
use crate::socket::{Socket, would_block_or_interrupted};
use crate::stopped::StoppedHalf;

/// Bytes of a first read. A read that fills it makes the direction a bulk one: the copy of
/// 16 KiB costs about what a pair of splice calls costs, so smaller exchanges are copied.
const SMALL_BYTES: u32 = 16 * 1024;

/// How much larger the next copy may be when all of the last one was taken.
const GROWTH: u32 = 4;

/// Bytes that one direction moves before it yields to other tasks.
const BUDGET_BYTES: usize = 1024 * 1024;

/// Bytes asked of one splice call; the pipe's capacity is the real bound.
const SPLICE_BYTES: usize = 1024 * 1024;

/// What was read and not yet written.
#[derive(Debug)]
enum Pending {
    Nothing,
    Bytes {
        waiting: Waiting,
        written: usize,
    },
    /// A lent pipe; it stays lent with `held == 0` until the source has nothing more or the
    /// direction yields.
    Pipe {
        pipe: Pipe,
        held: usize,
    },
}

/// What may wait in the sockets of a direction whose sink is the slower one.
#[derive(Debug, Default)]
struct Bounds {
    /// Most bytes of one move, before each of which the sink is asked; 0: neither, for speed.
    chunk: u32,
    /// Bytes in the source's socket (`SO_RCVBUF`). A smaller buffer is one for what comes later: the kernel
    /// drops what no longer has a place, though its window promised one.
    unread: u32,
    /// Bytes that are about to be read, whose place is gone already.
    displaced: usize,
}

/// The state of one direction.
#[derive(Debug)]
pub(crate) struct Half {
    direction: Direction,
    pending: Pending,
    /// The last reads were large: splice first.
    bulk: bool,
    /// Bytes read since the source was last found empty.
    run: u32,
    /// Largest copy to try. Grows while all of it is taken; else it is what the sink took, so that
    /// little is copied in vain.
    copy_bytes: u32,
    bounds: Option<Box<Bounds>>,
    /// The sink took less than was peeked at; the rest is in the source's socket.
    sink_full: bool,
    source_ended: bool,
    /// The end of the source was passed on to the sink.
    end_passed: bool,
    finished: bool,
    shared: bool,
}

impl Half {
    pub(crate) fn new(direction: Direction) -> Self {
        Self {
            direction,
            pending: Pending::Nothing,
            bulk: false,
            run: 0,
            copy_bytes: SMALL_BYTES,
            bounds: None,
            sink_full: false,
            source_ended: false,
            end_passed: false,
            finished: false,
            shared: false,
        }
    }

    /// Goes on where a direction was stopped.
    pub(crate) fn resume(direction: Direction, stopped: StoppedHalf, pool: &Pool) -> Self {
        let mut half = Self::new(direction);
        half.shared = true;
        (half.finished, half.end_passed) = (stopped.end_passed, stopped.end_passed);
        if !half.finished && !stopped.held.is_empty() {
            let (waiting, written) = (pool.hold(stopped.held), 0);
            half.pending = Pending::Bytes { waiting, written };
        }
        half
    }

    /// Ends this direction here and returns what it takes to go on. What waits in a pipe must have
    /// been [unloaded](Self::unload).
    pub(crate) fn stop(&mut self, pool: &Pool) -> StoppedHalf {
        let held = match &self.pending {
            Pending::Bytes { waiting, written } => waiting.bytes[*written..].to_vec(),
            Pending::Nothing | Pending::Pipe { .. } => Vec::new(),
        };
        self.abandon(pool);
        StoppedHalf {
            held,
            end_passed: self.end_passed,
        }
    }

    /// Returns whether another process may have the sockets, so that closing them ends nothing.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// Returns whether the sink has received everything and the end behind it.
    pub(crate) fn end_passed(&self) -> bool {
        self.end_passed
    }

    /// Returns whether bytes wait for a sink that accepts none.
    pub(crate) fn stalled(&self) -> bool {
        self.holds_bytes() || self.sink_full
    }

    /// Has at most `unread` bytes wait in the source from now on, once what is there has been read; and
    /// about `chunk` in the sink, whose `TCP_NOTSENT_LOWAT` is that; 0: as many as the kernel takes.
    pub(crate) fn bound(&mut self, source: &Socket, unread: u32, chunk: u32) {
        if source
            .receive_buffer()
            .is_some_and(|bytes| bytes < unread as usize)
        {
            // If the kernel refuses, what was set before stays.
            let _ = SockRef::from(source).set_recv_buffer_size(unread as usize);
        }
        let bounds = self.bounds.get_or_insert_default();
        (bounds.chunk, bounds.unread) = (chunk, unread);
    }

    /// Moves what can be moved now; ready once the end of the source was passed to the sink, or
    /// with the failure that ended this direction. The `last` direction leaves that end to the
    /// caller, who closes the sockets right after: the same with one call less.
    pub(crate) fn poll<M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        source: &Socket,
        sink: &Socket,
        pool: &Pool,
        meter: &M,
        last: bool,
    ) -> Poll<Result<(), Failure>> {
        let mut budget = BUDGET_BYTES;
        loop {
            if self.holds_bytes() {
                self.ask(sink);
                ready!(sink.poll_write_ready(cx))
                    .map_err(|error| self.direction.write_failed(error))?;
                self.write_pending(sink, meter)
                    .map_err(|error| self.direction.write_failed(error))?;
                continue;
            }
            if self.source_ended {
                self.release(pool);
                self.finished = true;
                if !last {
                    self.end_passed = true;
                    // A sink that is already gone needs no end of stream.
                    let _ = rustix::net::shutdown(sink, rustix::net::Shutdown::Write);
                }
                return Poll::Ready(Ok(()));
            }
            // While it waits or yields, other relays may use the pipe, which is empty.
            if self.sink_full {
                let writable = sink.poll_write_ready(cx);
                if writable.is_pending() {
                    self.release(pool);
                }
                ready!(writable).map_err(|error| self.direction.write_failed(error))?;
                self.sink_full = false;
            }
            if budget == 0 {
                self.release(pool);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match source.poll_read_ready(cx) {
                Poll::Pending => {
                    self.source_empty(pool);
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(self.direction.read_failed(error)));
                }
                Poll::Ready(Ok(())) => {}
            }
            if !self.ask(sink) {
                self.sink_full = true;
                continue;
            }
            self.shrink(source);
            let read = self.read(source, sink, pool, meter)?;
            self.source_ended = read == Some(0);
            let read = read.unwrap_or(0);
            self.run = self
                .run
                .saturating_add(u32::try_from(read).unwrap_or(u32::MAX));
            budget = budget.saturating_sub(read);
            if let Some(bounds) = &mut self.bounds {
                bounds.displaced = bounds.displaced.saturating_sub(read);
            }
        }
    }

    /// Returns whether the sink takes more. Where little may wait in it the kernel is asked, since it
    /// fills up a segment beyond its limit before it refuses.
    fn ask(&self, sink: &Socket) -> bool {
        let writable = self.chunk() == 0 || is_writable(sink);
        if !writable {
            sink.not_ready(Interest::WRITABLE);
        }
        writable
    }

    /// Has the source's receive buffer shrink by the bytes that are about to be read, so that what its
    /// window promised keeps its place. The kernel counts twice what is set here, and more for bytes that wait
    /// than their number (socket(7)).
    fn shrink(&mut self, source: &Socket) {
        let most = self.at_most(SPLICE_BYTES);
        let Some(bounds) = self.bounds.as_mut().filter(|bounds| bounds.displaced == 0) else {
            return;
        };
        let (unread, chunk) = (bounds.unread as usize, bounds.chunk);
        let Some(bytes) = source.receive_buffer().filter(|bytes| *bytes > unread) else {
            if chunk == 0 {
                // On a fast line no read asks the kernel for more than its bytes.
                self.bounds = None;
            }
            return;
        };
        let waiting = ioctl_fionread(source).map_or(0, |waiting| most.min(waiting as usize));
        let less = (waiting / 2).min(bytes - unread);
        if less > 0
            && SockRef::from(source)
                .set_recv_buffer_size(bytes - less)
                .is_ok()
        {
            bounds.displaced = waiting;
        }
    }

    /// Returns how many bytes wait in a pipe.
    pub(crate) fn in_pipe(&self) -> usize {
        match self.pending {
            Pending::Pipe { held, .. } => held,
            Pending::Nothing | Pending::Bytes { .. } => 0,
        }
    }

    /// Takes what waits in a pipe into memory and gives back the pipe.
    pub(crate) fn unload(&mut self, pool: &Pool) -> Result<(), Failure> {
        let Pending::Pipe { pipe, held: 1.. } = &self.pending else {
            return Ok(());
        };
        let unloaded = pool.unload(pipe, self.in_pipe());
        let waiting = unloaded.map_err(|error| self.direction.read_failed(error))?;
        let written = 0;
        let bytes = Pending::Bytes { waiting, written };
        if let Pending::Pipe { pipe, .. } = std::mem::replace(&mut self.pending, bytes) {
            pool.give(pipe);
        }
        Ok(())
    }

    /// Gives back what this direction borrowed; bytes still held are lost.
    pub(crate) fn release(&mut self, pool: &Pool) {
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Pipe { pipe, held: 0 } => pool.give(pipe),
            Pending::Pipe { pipe, .. } => pool.discard(pipe),
            Pending::Bytes { .. } | Pending::Nothing => {}
        }
    }

    /// Ends this direction without passing an end of stream on.
    pub(crate) fn abandon(&mut self, pool: &Pool) {
        self.release(pool);
        self.finished = true;
    }

    fn holds_bytes(&self) -> bool {
        match &self.pending {
            Pending::Nothing => false,
            Pending::Bytes { .. } => true,
            Pending::Pipe { held, .. } => *held > 0,
        }
    }

    /// The source has nothing more for now: an idle direction owns neither pipe nor buffer.
    fn source_empty(&mut self, pool: &Pool) {
        self.bulk = self.bulk && self.run >= SMALL_BYTES;
        self.run = 0;
        self.release(pool);
    }

    /// Reads once. `Some(0)` is the end of the stream, `None` that nothing was there after all.
    fn read<M: Meter>(
        &mut self,
        source: &Socket,
        sink: &Socket,
        pool: &Pool,
        meter: &M,
    ) -> Result<Option<usize>, Failure> {
        if self.bulk {
            if matches!(self.pending, Pending::Nothing)
                && let Some(pipe) = pool.take()
            {
                self.pending = Pending::Pipe { pipe, held: 0 };
            }
            if matches!(self.pending, Pending::Pipe { .. }) {
                let spliced = self.splice_in(source, pool)?;
                if spliced != Some(0) {
                    return Ok(spliced);
                }
                self.bulk = false;
                self.release(pool);
            }
        }
        self.copy(source, sink, pool, meter)
    }

    /// As [`read`](Self::read), except that `Some(0)` leaves to recv(2) what comes next.
    fn splice_in(&mut self, source: &Socket, pool: &Pool) -> Result<Option<usize>, Failure> {
        let recv_decides = self.run == 0;
        let len = self.at_most(SPLICE_BYTES);
        let Pending::Pipe { pipe, held } = &mut self.pending else {
            return Ok(None);
        };
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let mut refused = None;
        let spliced = source.try_io(Interest::READABLE, || {
            match splice(source, None, &pipe.writer, None, len, flags) {
                Ok(read) => Ok(read),
                // It stays ready.
                Err(Errno::AGAIN) if recv_decides || source.take_urgent() => Ok(0),
                Err(errno) => {
                    refused = Some(errno);
                    Err(errno.into())
                }
            }
        });
        match spliced {
            Ok(read) => {
                *held += read;
                Ok(Some(read))
            }
            Err(error) if would_block_or_interrupted(&error) => Ok(None),
            Err(error) => {
                if refused.is_some_and(|errno| pool.splice_refused(errno)) {
                    self.release(pool);
                    return Ok(None); // the caller's loop comes again, by copying
                }
                Err(self.direction.read_failed(error))
            }
        }
    }

    fn chunk(&self) -> u32 {
        self.bounds.as_ref().map_or(0, |bounds| bounds.chunk)
    }

    fn at_most(&self, bytes: usize) -> usize {
        match self.chunk() {
            0 => bytes,
            chunk => bytes.min(chunk as usize),
        }
    }

    /// Reads into the worker's scratch buffer and writes at once what the sink takes.
    fn copy<M: Meter>(
        &mut self,
        source: &Socket,
        sink: &Socket,
        pool: &Pool,
        meter: &M,
    ) -> Result<Option<usize>, Failure> {
        if self.bulk && self.copy_bytes > SMALL_BYTES {
            return pool.with_scratch(self.at_most(self.copy_bytes as usize), |scratch| {
                self.copy_bulk(source, sink, scratch, meter)
            });
        }
        pool.with_scratch(SMALL_BYTES as usize, |scratch| {
            let Some(read) = self.receive(source, scratch, RecvFlags::empty())? else {
                return Ok(None);
            };
            if read == 0 {
                return Ok(Some(0));
            }
            if read == scratch.len() {
                self.bulk = true;
                self.copy_bytes = SMALL_BYTES * GROWTH;
            } else if !source.clear_if_drained() {
                self.bulk = false; // only recv(2) passes urgent data
            }
            let written = self.send(sink, &scratch[..read], meter)?;
            if written < read {
                self.copy_bytes = SMALL_BYTES;
                self.release(pool);
                self.pending = Pending::Bytes {
                    waiting: Waiting::from(&scratch[written..read]),
                    written: 0,
                };
            }
            Ok(Some(read))
        })
    }

    /// Copies much at once and leaves with the source what the sink does not take: a stalled
    /// direction holds nothing, however large the copies are.
    fn copy_bulk<M: Meter>(
        &mut self,
        source: &Socket,
        sink: &Socket,
        scratch: &mut [u8],
        meter: &M,
    ) -> Result<Option<usize>, Failure> {
        let Some(peeked) = self.receive(source, scratch, RecvFlags::PEEK)? else {
            return Ok(None);
        };
        if peeked == 0 {
            // An urgent byte may be left before the end. Unread, it would make closing a reset.
            self.bulk = false;
            return Ok(None);
        }
        let written = self.send(sink, &scratch[..peeked], meter)?;
        source
            .discard(&mut scratch[..written])
            .map_err(|error| self.direction.read_failed(error))?;
        if written < peeked {
            // One that took nothing was full, which the runtime knows already, or interrupted, and no
            // change is to come.
            if written > 0 {
                sink.not_ready(Interest::WRITABLE);
            }
            self.sink_full = true;
            // What was peeked at fits into the scratch buffer.
            self.copy_bytes = u32::try_from(written).unwrap_or(u32::MAX).max(SMALL_BYTES);
        } else if peeked == scratch.len() {
            self.copy_bytes = (self.copy_bytes * GROWTH).min(Pool::SCRATCH_BYTES as u32);
        } else if !source.clear_if_drained() {
            self.bulk = false; // only recv(2) passes urgent data
        }
        Ok(Some(written).filter(|written| *written > 0))
    }

    /// Receives once; `None` when nothing was there after all.
    fn receive(
        &self,
        source: &Socket,
        into: &mut [u8],
        flags: RecvFlags,
    ) -> Result<Option<usize>, Failure> {
        match source.receive(into, flags) {
            Ok(read) => Ok(Some(read)),
            Err(error) if would_block_or_interrupted(&error) => Ok(None),
            Err(error) => Err(self.direction.read_failed(error)),
        }
    }

    /// Sends once and counts what was taken, which may be nothing.
    fn send<M: Meter>(&self, sink: &Socket, bytes: &[u8], meter: &M) -> Result<usize, Failure> {
        let written = match sink.send(bytes) {
            Ok(written) => written,
            Err(error) if would_block_or_interrupted(&error) => 0,
            Err(error) => return Err(self.direction.write_failed(error)),
        };
        if written > 0 {
            meter.relayed(self.direction, written as u64, true);
        }
        Ok(written)
    }

    /// Writes once from what is held.
    fn write_pending<M: Meter>(&mut self, sink: &Socket, meter: &M) -> io::Result<()> {
        let most = self.at_most(usize::MAX);
        let (result, wanted, copied) = match &mut self.pending {
            Pending::Nothing => return Ok(()),
            Pending::Bytes { waiting, written } => {
                let rest = &waiting.bytes[*written..];
                let rest = &rest[..rest.len().min(most)];
                (sink.send(rest), rest.len(), true)
            }
            Pending::Pipe { pipe, held } => {
                let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
                let len = most.min(*held);
                let result = sink.try_io(Interest::WRITABLE, || {
                    Ok(splice(&pipe.reader, None, sink, None, len, flags)?)
                });
                (result, len, false)
            }
        };
        let sent = match result {
            Ok(sent) => sent,
            Err(error) if would_block_or_interrupted(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if sent < wanted && copied {
            sink.not_ready(Interest::WRITABLE);
        }
        meter.relayed(self.direction, sent as u64, copied);
        match &mut self.pending {
            Pending::Bytes { waiting, written } => {
                *written += sent;
                if *written == waiting.bytes.len() {
                    self.pending = Pending::Nothing;
                }
            }
            Pending::Pipe { held, .. } => *held -= sent,
            Pending::Nothing => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
