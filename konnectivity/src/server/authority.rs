//! Makes the `:authority` of API servers one that HTTP/2 can have.
//!
//! ```text
//!   socket ──▶ frames ──▶ HEADERS? ── no ──▶ as they are ──────────────────────────▶ h2
//!                            └─ yes ─▶ value of :authority: each `/` and `%` a `-` ──▶ h2
//! ```
//!
//! Over a Unix socket, Go's gRPC calls its server by the socket's path, plain in older releases and
//! percent-encoded in newer ones. Neither is an authority (RFC 3986 section 3.2), so that HTTP/2
//! here ends the stream as malformed. Nobody reads the value, but it has to parse.
//!
//! It is changed where it lies: `/`, `%` and `-` have codes of six bits each (RFC 7541 appendix B),
//! so neither a length changes nor what both sides' tables of headers hold. What is no HTTP/2, and
//! blocks of headers that are cut into several frames before the value, pass as they are.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A frontend's connection, mended as it is read.
pub(super) struct Authority<S> {
    io: S,
    frames: Frames,
    /// The beginning of a frame whose rest has not come: at most [`LARGEST`] and one read.
    held: Vec<u8>,
    /// What has been mended and not been taken.
    ready: Bytes,
}

impl<S> Authority<S> {
    /// Mends what is read from `io`, a client's side of HTTP/2 from its preface on.
    pub(super) fn new(io: S) -> Self {
        Self {
            io,
            frames: Frames { pass: PREFACE },
            held: Vec::new(),
            ready: Bytes::new(),
        }
    }

    /// Hands over what is ready; whether that was anything.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let length = self.ready.len().min(buf.remaining());
        buf.put_slice(&self.ready[..length]);
        self.ready.advance(length);
        length > 0
    }

    /// Takes what has been read behind `before`; whether any of it can be handed over.
    fn take(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> bool {
        if self.held.is_empty() {
            let (_, fresh) = buf.filled_mut().split_at_mut(before);
            let settled = self.frames.mend(fresh);
            self.held.extend_from_slice(&fresh[settled..]);
            buf.set_filled(before + settled);
            return settled > 0;
        }
        self.held.extend_from_slice(&buf.filled()[before..]);
        buf.set_filled(before);
        let settled = self.frames.mend(&mut self.held);
        let rest = self.held.split_off(settled);
        self.ready = std::mem::replace(&mut self.held, rest).into();
        self.deliver(buf)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Authority<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 || this.deliver(buf) {
            return Poll::Ready(Ok(()));
        }
        loop {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            if buf.filled().len() == before {
                // The end, in the middle of a frame perhaps: for HTTP/2 to judge.
                this.ready = std::mem::take(&mut this.held).into();
                this.deliver(buf);
                return Poll::Ready(Ok(()));
            }
            if this.take(buf, before) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Authority<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Where a connection is in its frames.
struct Frames {
    /// So many octets more are no matter of ours.
    pass: usize,
}

impl Frames {
    /// Mends the frames in `octets`, which go on where those before have ended; returns how many
    /// octets are settled. The others are wanted again, together with what follows them.
    fn mend(&mut self, octets: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let passing = self.pass.min(octets.len() - at);
            self.pass -= passing;
            at += passing;
            let Some(&[a, b, c, kind, flags, ..]) = octets.get(at..at + FRAME_HEAD) else {
                return at;
            };
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if kind != HEADERS || length > LARGEST {
                self.pass = FRAME_HEAD + length;
                continue;
            }
            let Some(payload) = octets.get_mut(at + FRAME_HEAD..at + FRAME_HEAD + length) else {
                return at;
            };
            // What is not understood stays as it is.
            let _ = block(flags, payload).and_then(mend_block);
            at += FRAME_HEAD + length;
        }
    }
}

/// Returns the block of headers inside a HEADERS frame's payload (RFC 9113 section 6.2).
fn block(flags: u8, payload: &mut [u8]) -> Option<&mut [u8]> {
    let mut start = 0;
    let mut end = payload.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*payload.first()?))?;
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    payload.get_mut(start..end)
}

/// Mends the value of `:authority` in a block of headers (RFC 7541 section 6). `None` when the
/// block ends in the middle of something.
fn mend_block(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let (prefix, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            // A change of the table's size.
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, next) = integer(block, at, prefix)?;
        at = next;
        if !literal {
            continue;
        }
        if index == 0 {
            at = string(block, at)?.1.end;
        }
        let (huffman, value) = string(block, at)?;
        at = value.end;
        // Its place in the static table; nobody who has that spells the name.
        if index == AUTHORITY {
            let value = block.get_mut(value)?;
            if huffman {
                mend_huffman(value);
            } else {
                mend_plain(value);
            }
        }
    }
    Some(())
}

/// Reads an integer whose first octet has `prefix` bits of it (RFC 7541 section 5.1); returns it
/// and where it ends.
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    let mut next = at + 1;
    if value < most {
        return Some((value, next));
    }
    // Three octets say more than the largest frame holds.
    for shift in [0, 7, 14] {
        let octet = usize::from(*block.get(next)?);
        next += 1;
        value += (octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            return Some((value, next));
        }
    }
    None
}

/// Finds a string (RFC 7541 section 5.2): whether it is Huffman-coded, and where it lies.
fn string(block: &[u8], at: usize) -> Option<(bool, Range<usize>)> {
    let huffman = *block.get(at)? & 0x80 != 0;
    let (length, start) = integer(block, at, 7)?;
    let end = start
        .checked_add(length)
        .filter(|end| *end <= block.len())?;
    Some((huffman, start..end))
}

fn mend_plain(value: &mut [u8]) {
    for octet in value {
        if matches!(octet, b'/' | b'%') {
            *octet = b'-';
        }
    }
}

/// The same in Huffman code, which is canonical: of each length, the codes are consecutive numbers.
fn mend_huffman(value: &mut [u8]) {
    let (mut code, mut first, mut length) = (0_u32, 0_u32, 0_usize);
    for bit in 0..value.len() * 8 {
        code = code << 1 | u32::from(value[bit / 8] >> (7 - bit % 8) & 1);
        first <<= 1;
        length += 1;
        let Some(&count) = CODES.get(length) else {
            return;
        };
        if code >= first + count {
            first += count;
            continue;
        }
        if length == 6 && (code == SLASH || code == PERCENT) {
            for back in 0..6 {
                let at = bit - back;
                let mask = 1 << (7 - at % 8);
                if HYPHEN >> back & 1 == 1 {
                    value[at / 8] |= mask;
                } else {
                    value[at / 8] &= !mask;
                }
            }
        }
        (code, first, length) = (0, 0, 0);
    }
}

/// Octets of a client's preface (RFC 9113 section 3.4).
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// Longer ones pass as they are. Go's gRPC cuts blocks of headers at this size (RFC 9113 section
/// 4.2), and what it says of itself comes first.
const LARGEST: usize = 16_384;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in the static table (RFC 7541 appendix A).
const AUTHORITY: usize = 1;
/// How many symbols have codes of 0, 1, 2 … bits (RFC 7541 appendix B).
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];
const SLASH: u32 = 0x18;
const PERCENT: u32 = 0x15;
const HYPHEN: u32 = 0x16;

#[cfg(test)]
mod tests;
