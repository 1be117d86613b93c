//! Walks TLS records (RFC 8446 §5.1) until the handshake message in them is complete.
//!
//! ```text
//! record   22 │ 3 │ x │ length (2) │ fragment
//! message                            1 │ length (3) │ body …      may go on in the next record
//! ```
//!
//! Judges bytes strictly in the order they arrive, so that a prefix never gets another verdict
//! than the whole. Does not look at the body.

use std::borrow::Cow;

use super::ClientHelloError::{self, Malformed, NotTls, TooLong};
use crate::Progress;

/// Most TLS records a ClientHello may be spread over.
///
/// Clients use one, or two or three above 16 KiB. The bound keeps a client that sends records of
/// one byte from making every further segment cost a walk over thousands of headers.
pub const MAX_RECORDS: usize = 64;

/// Where the ClientHello lies in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of the handshake message, its four-byte header included.
    pub(super) message_len: usize,
    /// Bytes of all records that carry it.
    pub(super) consumed: usize,
    /// How many those are.
    pub(super) records: usize,
}

/// Finds the end of the first handshake message in `input`.
pub(super) fn locate(input: &[u8], limit: usize) -> Result<Progress<Layout>, ClientHelloError> {
    let mut walk = Walk {
        limit,
        offset: 0,
        gathered: 0,
        head: [0; 4],
        head_len: 0,
        records: 0,
    };
    walk.room_for(0, MESSAGE_HEADER)?;
    loop {
        if let Some(answer) = walk.step(input)? {
            return Ok(answer);
        }
    }
}

/// Returns the handshake message, without a copy when it lies in one record.
pub(super) fn message<'a>(input: &'a [u8], layout: &Layout) -> Cow<'a, [u8]> {
    let mut rest = input.get(..layout.consumed).unwrap_or(input);
    if layout.records == 1 {
        return Cow::Borrowed(rest.get(RECORD_HEADER..).unwrap_or_default());
    }
    let mut joined = Vec::with_capacity(layout.message_len);
    while let Some((header, behind)) = rest.split_first_chunk() {
        let (fragment, next) = behind
            .split_at_checked(length_of(header))
            .unwrap_or((behind, &[]));
        joined.extend_from_slice(fragment);
        rest = next;
    }
    Cow::Owned(joined)
}

struct Walk {
    limit: usize,
    /// Where the record under inspection starts.
    offset: usize,
    /// Bytes of the message in the records before it.
    gathered: usize,
    /// The message's own header, as far as it is known.
    head: [u8; MESSAGE_HEADER],
    head_len: usize,
    /// Complete records so far.
    records: usize,
}

impl Walk {
    /// Inspects one record; `None` means that it was complete and the message goes on.
    fn step(&mut self, input: &[u8]) -> Result<Option<Progress<Layout>>, ClientHelloError> {
        let rest = input.get(self.offset..).unwrap_or_default();
        let Some(len) = self.record_len(rest)? else {
            return Ok(Some(Progress::Need {
                at_least: self.offset + RECORD_HEADER + 1,
            }));
        };
        let end = self.offset + RECORD_HEADER + len;
        let gathered = self.gathered + len;
        // What the header alone tells comes before what is in the record.
        self.room_for(end, MESSAGE_HEADER.saturating_sub(gathered))?;
        let fragment = rest.get(RECORD_HEADER..).unwrap_or_default();
        let fragment = fragment.get(..len).unwrap_or(fragment);
        let message_len = self.note_head(fragment)?;

        if message_len.is_some_and(|total| gathered > total) {
            return Err(Malformed("bytes behind the ClientHello in its record"));
        }
        let missing = message_len
            .unwrap_or(MESSAGE_HEADER)
            .saturating_sub(gathered);
        self.room_for(end, missing)?;
        if fragment.len() < len {
            return Ok(Some(Progress::Need { at_least: end }));
        }
        self.records += 1;
        if missing == 0 {
            let value = Layout {
                message_len: gathered,
                consumed: end,
                records: self.records,
            };
            return Ok(Some(Progress::Done {
                value,
                consumed: end,
            }));
        }
        if self.records == MAX_RECORDS {
            return Err(Malformed("ClientHello spread over too many records"));
        }
        self.offset = end;
        self.gathered = gathered;
        Ok(None)
    }

    /// Checks the record header at the start of `rest` byte by byte; `None` when it is cut short.
    fn record_len(&self, rest: &[u8]) -> Result<Option<usize>, ClientHelloError> {
        let foreign = |what| {
            if self.records == 0 {
                NotTls
            } else {
                Malformed(what)
            }
        };
        if rest.first().is_some_and(|&kind| kind != HANDSHAKE) {
            return Err(foreign("a record of another type inside the ClientHello"));
        }
        if rest.get(1).is_some_and(|&major| major != 3) {
            return Err(foreign("record version changes inside the ClientHello"));
        }
        match rest.first_chunk().map(length_of) {
            Some(0) => Err(Malformed("empty handshake record")),
            Some(len) if len > MAX_FRAGMENT => Err(Malformed("record longer than TLS allows")),
            len => Ok(len),
        }
    }

    /// Takes over what `fragment` adds to the message header; the message's length once known.
    fn note_head(&mut self, fragment: &[u8]) -> Result<Option<usize>, ClientHelloError> {
        let free = self.head.get_mut(self.head_len..).unwrap_or_default();
        for (slot, byte) in free.iter_mut().zip(fragment) {
            *slot = *byte;
            self.head_len += 1;
        }
        let [kind, length @ ..] = self.head;
        if self.head_len > 0 && kind != CLIENT_HELLO {
            return Err(Malformed("first handshake message is not a ClientHello"));
        }
        if self.head_len < MESSAGE_HEADER {
            return Ok(None);
        }
        let [high, mid, low] = length.map(usize::from);
        Ok(Some(MESSAGE_HEADER + (high << 16 | mid << 8 | low)))
    }

    /// Checks that `missing` bytes of the message can still come in records behind `end`.
    fn room_for(&self, end: usize, missing: usize) -> Result<(), ClientHelloError> {
        let header = if missing > 0 { RECORD_HEADER } else { 0 };
        if end + header + missing > self.limit {
            Err(TooLong)
        } else {
            Ok(())
        }
    }
}

fn length_of(header: &[u8; RECORD_HEADER]) -> usize {
    let [_, _, _, high, low] = *header;
    usize::from(u16::from_be_bytes([high, low]))
}

/// ContentType handshake (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// HandshakeType client_hello (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// Longest fragment any TLS record may have (RFC 8446 §5.2: 2^14 + 256).
const MAX_FRAGMENT: usize = (1 << 14) + 256;
