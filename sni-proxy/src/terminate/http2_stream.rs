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

use http::StatusCode;
use serve::Reason;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::http1_stream::{HttpState, Timer};

/// What a client says first (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// Types of frames with parts of a head, and the flag of the last one (RFC 9113 sections 6.2 and 6.10).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// A client's connection below hyper, of which the preface was read already.
#[derive(Debug)]
pub(crate) struct Http2Stream<S> {
    stream: S,
    state: Arc<HttpState>,
    frames: Frames,
    /// How much of the preface hyper has read.
    preface: u8,
    /// When the first byte of a head came that is not whole.
    head_since: Option<Instant>,
    head_timer: Timer,
}

/// Waits for the preface, for which hyper has no limit; returns why it did not come.
pub(crate) async fn preface<S: AsyncRead + Unpin>(
    mut stream: S,
    by: Instant,
    state: Arc<HttpState>,
) -> Result<Http2Stream<S>, Reason> {
    let mut came = [0; PREFACE.len()];
    match timeout_at(by, stream.read_exact(&mut came)).await {
        Err(_) => return Err(Reason::PreambleTimeout),
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Reason::Closed);
        }
        Ok(Err(_)) => return Err(Reason::DownstreamReset),
        Ok(Ok(_)) if came != *PREFACE => return Err(Reason::Malformed),
        Ok(Ok(_)) => {}
    }
    Ok(Http2Stream {
        stream,
        state,
        frames: Frames::default(),
        preface: 0,
        head_since: None,
        head_timer: Timer::default(),
    })
}

/// Where in its frames a client is (RFC 9113 section 4.1).
#[derive(Debug, Default)]
struct Frames {
    /// The header of the current frame, of which the first `len` bytes have come.
    header: [u8; FRAME_HEADER_BYTES],
    len: u8,
    /// Bytes of the current frame's payload that have not come.
    rest: u32,
    /// A head has begun, and is not whole.
    in_head: bool,
}

impl Frames {
    /// Follows the next bytes; returns whether a head became whole.
    fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut whole = false;
        while !bytes.is_empty() {
            let len = usize::from(self.len);
            if len < FRAME_HEADER_BYTES {
                let missing = &mut self.header[len..];
                let (now, later) = bytes.split_at(missing.len().min(bytes.len()));
                missing[..now.len()].copy_from_slice(now);
                (self.len, bytes) = (self.len + now.len() as u8, later);
                if usize::from(self.len) < FRAME_HEADER_BYTES {
                    break;
                }
                let [a, b, c, kind, ..] = self.header;
                self.rest = u32::from_be_bytes([0, a, b, c]);
                self.in_head |= matches!(kind, HEADERS | CONTINUATION);
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.rest as usize));
            (self.rest, bytes) = (self.rest - now.len() as u32, later);
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
        let limit = self.state.head_limit;
        let late = self
            .head_since
            .is_some_and(|since| self.head_timer.has_passed(cx, since + limit));
        if late {
            self.state.refuse(StatusCode::REQUEST_TIMEOUT);
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
        let rest = &PREFACE[usize::from(self.preface)..];
        if rest.is_empty() {
            return self.poll_stream(cx, into);
        }
        let len = rest.len().min(into.remaining());
        into.put_slice(&rest[..len]);
        self.preface += len as u8;
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
