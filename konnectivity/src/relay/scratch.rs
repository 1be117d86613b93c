//! Memory that all connections of a thread read into, and reuse once what was read has gone out.
//!
//! ```text
//!   socket ──read──▶ current ──split off──▶ tunnels
//!                    │      ▲
//!        no space is │      │ all slices of it
//!          left      └▶filled┘ are dropped
//! ```
//!
//! Had memory for some hundred megabytes a second to come from the system, each of its pages would
//! be cleared first, over and over. A thread that moves little gives back what it does not need.
//! Knows nothing of tunnels.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

use super::PIECE;

/// A thread's memory for what is read. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch(Rc<RefCell<Chunks>>);

impl Scratch {
    /// Reads at most `max` bytes; none are the end of the stream. Cancel-safe.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        stream: Pin<&mut impl AsyncRead>,
        max: usize,
    ) -> Poll<io::Result<Bytes>> {
        let mut chunks = self.0.borrow_mut();
        let mut chunk = chunks.take();
        let read = poll_read_buf(stream, cx, &mut (&mut chunk).limit(max));
        let piece = chunk.split().freeze();
        chunks.current = Some(chunk);
        read.map_ok(|_| piece)
    }
}

#[derive(Debug, Default)]
struct Chunks {
    /// Empty, with some room perhaps.
    current: Option<BytesMut>,
    /// Used up before, the oldest first.
    filled: VecDeque<BytesMut>,
}

impl Chunks {
    /// Takes memory with room for a read; it is to be put back.
    fn take(&mut self) -> BytesMut {
        let Some(mut current) = self.current.take() else {
            return BytesMut::with_capacity(CHUNK);
        };
        if current.capacity() >= LEAST {
            return current;
        }
        let free = self.free();
        if current.try_reclaim(CHUNK) {
            // One is enough, as it seems: another that is free goes back.
            drop(free);
            return current;
        }
        if self.filled.len() == MAX_FILLED {
            // Its slices keep it for as long as they are needed.
            self.filled.pop_front();
        }
        self.filled.push_back(current);
        free.unwrap_or_else(|| BytesMut::with_capacity(CHUNK))
    }

    /// Takes out the oldest chunk that has no slices left, with its whole capacity.
    fn free(&mut self) -> Option<BytesMut> {
        let mut filled = self.filled.iter_mut();
        let at = filled.position(|chunk| chunk.try_reclaim(CHUNK))?;
        self.filled.remove(at)
    }
}

/// Room of a chunk: a piece, so that one that waits as it came, which is at least half as long,
/// keeps no more than that.
const CHUNK: usize = PIECE;
/// Less room than this is not worth a read.
const LEAST: usize = PIECE / 2;
/// Chunks that are kept, those of slow tunnels among them: 1 MiB.
const MAX_FILLED: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Reads a piece of `len` bytes.
    async fn read(scratch: &Scratch, len: usize) -> Bytes {
        let bytes = vec![7; len];
        let mut stream = bytes.as_slice();
        let read = std::future::poll_fn(|cx| scratch.poll_read(cx, Pin::new(&mut stream), len));
        read.await.unwrap()
    }

    #[tokio::test]
    async fn memory_is_used_again_once_it_is_free() {
        let scratch = Scratch::default();
        let mut places = BTreeSet::new();
        // As many pieces under way as chunks are kept.
        let mut under_way = VecDeque::new();
        for _ in 0..100 {
            let piece = read(&scratch, PIECE).await;
            assert_eq!(piece.len(), PIECE);
            places.insert(piece.as_ptr());
            under_way.push_back(piece);
            if under_way.len() > MAX_FILLED {
                under_way.pop_front();
            }
        }
        assert!(places.len() <= 2 * (MAX_FILLED + 1), "{}", places.len());
    }

    #[tokio::test]
    async fn scratch_frees_chunks_it_no_longer_needs() {
        let scratch = Scratch::default();
        let mut under_way = Vec::new();
        for _ in 0..4 * MAX_FILLED {
            under_way.push(read(&scratch, PIECE).await);
        }
        assert_eq!(scratch.0.borrow().filled.len(), MAX_FILLED);
        drop(under_way);
        for _ in 0..4 * MAX_FILLED {
            read(&scratch, PIECE).await;
        }
        assert_eq!(scratch.0.borrow().filled.len(), 0);
    }

    #[tokio::test]
    async fn small_reads_share_a_chunk() {
        let scratch = Scratch::default();
        let first = read(&scratch, 10).await;
        let second = read(&scratch, 10).await;
        assert_eq!(second.as_ptr(), first.as_ptr().wrapping_add(10));
        assert_eq!(first, second);
    }
}
