//! What hyper does not bound in HTTP/2, below it: the time for the preface, and for a head that has begun.
//!
//! ```text
//!     preface ─▶ frames ─▶ hyper
//!                  └ HEADERS … END_HEADERS not whole in time: the end
//! ```
//!
//! Reads the headers of frames alone. A connection without a head under way has no timer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::http1_stream::{HttpState, Timer};

const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// Types of frames with parts of a head, and the flag of the last one (RFC 9113 sections 6.2 and 6.10).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// A client's connection below hyper, of which the preface was read already.
#[derive(Debug)]
pub(crate) struct Http2Stream<S> {
    stream: S,
    early: Vec<u8>,
    read: usize,
    params: Http2Params,
    frames: Frames,
    /// When the first byte of a head came that is not whole.
    head_since: Option<Instant>,
    head_timer: Timer,
}

/// What a connection is served with.
#[derive(Debug)]
pub(crate) struct Http2Params {
    pub(crate) state: Arc<HttpState>,
    /// Time for a head, from the first bytes of its first frame.
    pub(crate) head_limit: Duration,
}

/// Waits for the preface of HTTP/2 (RFC 9113 section 3.4), for which hyper has no limit; `None` if it does not come.
pub(crate) async fn preface<S: AsyncRead + Unpin>(
    mut stream: S,
    by: Instant,
    params: Http2Params,
) -> Option<Http2Stream<S>> {
    let mut early = vec![0; PREFACE_BYTES];
    let whole = timeout_at(by, stream.read_exact(&mut early)).await;
    whole.ok()?.ok()?;
    Some(Http2Stream {
        stream,
        early,
        read: 0,
        params,
        frames: Frames::default(),
        head_since: None,
        head_timer: Timer::default(),
    })
}

/// Where in its frames a client is (RFC 9113 section 4.1).
#[derive(Debug, Default)]
struct Frames {
    /// The header of the current frame, of which the first `len` bytes have come.
    header: [u8; FRAME_HEADER_BYTES],
    len: usize,
    /// Bytes of the current frame's payload that have not come.
    rest: usize,
    /// A head has begun, and is not whole.
    in_head: bool,
}

impl Frames {
    /// Follows the next bytes; returns whether a head became whole.
    fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut whole = false;
        while !bytes.is_empty() {
            if self.len < FRAME_HEADER_BYTES {
                let missing = &mut self.header[self.len..];
                let (now, later) = bytes.split_at(missing.len().min(bytes.len()));
                missing[..now.len()].copy_from_slice(now);
                (self.len, bytes) = (self.len + now.len(), later);
                if self.len < FRAME_HEADER_BYTES {
                    break;
                }
                let [a, b, c, kind, ..] = self.header;
                self.rest = u32::from_be_bytes([0, a, b, c]) as usize;
                self.in_head |= matches!(kind, HEADERS | CONTINUATION);
            }
            let (now, later) = bytes.split_at(self.rest.min(bytes.len()));
            (self.rest, bytes) = (self.rest - now.len(), later);
            if self.rest == 0 {
                self.len = 0;
                let [_, _, _, kind, flags, ..] = self.header;
                if matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
                    (self.in_head, whole) = (false, true);
                }
            }
        }
        whole
    }
}

impl<S: AsyncRead + Unpin> Http2Stream<S> {
    fn poll_stream(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_ready() {
            let whole = self.frames.follow(&into.filled()[before..]);
            if whole || !self.frames.in_head {
                (self.head_since, self.head_timer) = (None, Timer::default());
            }
            if self.frames.in_head {
                self.head_since.get_or_insert_with(Instant::now);
            }
            return read;
        }
        let limit = self.params.head_limit;
        let late = self
            .head_since
            .is_some_and(|since| self.head_timer.has_passed(cx, since + limit));
        if late {
            self.params.state.refuse(StatusCode::REQUEST_TIMEOUT);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Http2Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = self.early.get(self.read..).unwrap_or_default();
        if rest.is_empty() {
            return self.poll_stream(cx, into);
        }
        let len = rest.len().min(into.remaining());
        into.put_slice(&rest[..len]);
        self.read += len;
        if self.read == self.early.len() {
            (self.early, self.read) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http2Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
