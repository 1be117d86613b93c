//! The head of a response: an upstream's answer to a CONNECT of ours.

use super::{
    HeadError::{self, Malformed, NotHttp},
    HttpVersion,
    head::{Fields, bounded, next_line},
};
use crate::Progress;

/// A complete response head (RFC 9112 §4, §5), of which only the status matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    status: u16,
}

impl ResponseHead {
    /// Parses the response head at the start of `input`, given at most `limit` bytes for it.
    ///
    /// `consumed` ends with the empty line. Behind a 2xx answer to CONNECT the tunnel begins, and
    /// `Content-Length` and `Transfer-Encoding` in it mean nothing (RFC 9110 §9.3.6). A 1xx answer
    /// is followed by another head.
    ///
    /// # Errors
    ///
    /// - [`HeadError::NotHttp`] as soon as the first bytes are not `HTTP/1.`.
    /// - [`HeadError::Malformed`] for a head that breaks the rules; see the module.
    /// - [`HeadError::TooLong`] when the head does not end within `limit` or
    ///   [`MAX_FIELDS`](super::MAX_FIELDS) fields.
    pub fn parse(input: &[u8], limit: usize) -> Result<Progress<Self>, HeadError> {
        bounded(input, limit, b"HTTP/1.1 200\r\n\r\n".len(), Self::read)
    }

    /// Parses like [`ResponseHead::parse`], and skips interim answers (RFC 9110 §15.2), all but 101:
    /// `consumed` and `limit` count their bytes, too.
    ///
    /// # Errors
    ///
    /// As [`ResponseHead::parse`].
    pub fn parse_final(input: &[u8], limit: usize) -> Result<Progress<Self>, HeadError> {
        let mut skipped = 0;
        loop {
            let rest = input.get(skipped..).unwrap_or_default();
            match Self::parse(rest, limit.saturating_sub(skipped))? {
                Progress::Done { value, consumed } => {
                    skipped += consumed;
                    if !matches!(value.status, 100 | 102..200) {
                        let consumed = skipped;
                        return Ok(Progress::Done { value, consumed });
                    }
                }
                Progress::Need { at_least } => {
                    let at_least = skipped + at_least;
                    return Ok(Progress::Need { at_least });
                }
            }
        }
    }

    fn read(view: &[u8]) -> Result<Option<(Self, &[u8])>, HeadError> {
        if !view.starts_with(PROTOCOL) && !PROTOCOL.starts_with(view) {
            return Err(NotHttp);
        }
        let Some((line, rest)) = next_line(view)? else {
            return Ok(None);
        };
        let (version, line) = line.split_once(' ').ok_or(Malformed("status line"))?;
        // The space behind the code is often missing when there is no reason phrase.
        let (code, _reason) = line.split_once(' ').unwrap_or((line, ""));
        HttpVersion::new(version)?;
        let status = status(code).ok_or(Malformed("status code"))?;
        Ok(Fields::read(rest)?.map(|(_, rest)| (Self { status }, rest)))
    }

    /// Returns the status code, 100 to 599.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns whether the answer to a CONNECT opens the tunnel: any 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Three digits, of the classes that RFC 9110 §15 defines.
fn status(code: &str) -> Option<u16> {
    let digits = code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit());
    let status = code.parse().ok().filter(|_| digits)?;
    (100..600).contains(&status).then_some(status)
}

const PROTOCOL: &[u8] = b"HTTP/1.";
