//! The head of a response: an upstream's answer to a CONNECT of ours.

use super::{
    HeadError::{self, Malformed, NotHttp},
    HttpVersion,
    head::{Fields, bounded, next_line},
};
use crate::Progress;

/// A complete response head (RFC 9112 §4, §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    version: HttpVersion,
    status: u16,
    reason: &'a str,
    fields: Fields<'a>,
}

impl<'a> ResponseHead<'a> {
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
    pub fn parse(input: &'a [u8], limit: usize) -> Result<Progress<Self>, HeadError> {
        bounded(input, limit, b"HTTP/1.1 200\r\n\r\n".len(), Self::read)
    }

    fn read(view: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, HeadError> {
        if !view.starts_with(PROTOCOL) && !PROTOCOL.starts_with(view) {
            return Err(NotHttp);
        }
        let Some((line, rest)) = next_line(view)? else {
            return Ok(None);
        };
        let (version, line) = line.split_once(' ').ok_or(Malformed("status line"))?;
        // The space behind the code is often missing when there is no reason phrase.
        let (code, reason) = line.split_once(' ').unwrap_or((line, ""));
        let version = HttpVersion::new(version)?;
        let status = status(code).ok_or(Malformed("status code"))?;
        let Some((fields, rest)) = Fields::read(rest)? else {
            return Ok(None);
        };
        Ok(Some((
            Self {
                version,
                status,
                reason,
                fields,
            },
            rest,
        )))
    }

    /// Returns the version of the response.
    #[must_use]
    pub fn version(&self) -> HttpVersion {
        self.version
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

    /// Returns the reason phrase, possibly empty. It is the peer's text, good for a log only.
    #[must_use]
    pub fn reason(&self) -> &'a str {
        self.reason
    }

    /// Returns the values of all fields called `name`, compared without regard to letter case, in
    /// the order sent and without surrounding whitespace.
    pub fn header_values<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        self.fields.values(name)
    }

    /// Returns all fields, names as sent, in the order sent.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.fields.iter()
    }
}

/// Three digits, of the classes that RFC 9110 §15 defines.
fn status(code: &str) -> Option<u16> {
    let digits = code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit());
    let status = if digits {
        code.parse().ok()?
    } else {
        return None;
    };
    (100..600).contains(&status).then_some(status)
}

const PROTOCOL: &[u8] = b"HTTP/1.";
