//! The head of a request, made of the fields of one block (RFC 9113 section 8).
//!
//! ```text
//!   names and values ──▶ Builder ──▶ Request, or what is wrong with it
//! ```
//!
//! A malformed request ends its stream and no more. What the method and the path mean is not known
//! here; `:authority` may be anything a header can have.

use std::ops::Range;

use bytes::Bytes;

use crate::fields::Fields;

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    method: Bytes,
    path: Bytes,
    authority: Option<Bytes>,
    content_length: Option<u64>,
    headers: Fields,
}

impl Request {
    /// Returns `:method`.
    #[must_use]
    pub fn method(&self) -> &Bytes {
        &self.method
    }

    /// Returns `:path`, empty for CONNECT.
    #[must_use]
    pub fn path(&self) -> &Bytes {
        &self.path
    }

    /// Returns `:authority`.
    #[must_use]
    pub fn authority(&self) -> Option<&Bytes> {
        self.authority.as_ref()
    }

    /// Returns how long the body is, in bytes, if the client says so; it is held to that.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Returns the headers, without those that begin with a colon.
    #[must_use]
    pub fn headers(&self) -> &Fields {
        &self.headers
    }

    /// Returns the first header of that name, which is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut named = (self.headers.iter()).filter(|(found, _)| *found == name.as_bytes());
        named.next().map(|(_, value)| value)
    }
}

/// A block of headers as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// What was kept: the pseudo-headers' values, then headers.
    bytes: Vec<u8>,
    method: Option<Range<usize>>,
    path: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    scheme: bool,
    content_length: Option<u64>,
    /// Where the first header begins, and where each one's name and value end.
    begin: usize,
    headers: Vec<(u32, u32)>,
    malformed: bool,
    /// As RFC 9113 section 10.5.1 counts.
    size: usize,
    limit: usize,
}

/// Why there is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRequest {
    Malformed,
    TooLarge,
}

impl Builder {
    /// Collects fields of at most `limit` bytes.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit: limit as usize,
            ..Self::default()
        }
    }

    /// Adds a field. What is wrong or too much is dropped at once.
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size = self.size.saturating_add(name.len() + value.len() + 32);
        if self.malformed || self.size > self.limit {
            return;
        }
        // Blanks around it may not be there; h2 lets them pass.
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let begin = value.iter().position(|byte| !blank(byte));
        let end = value.iter().rposition(|byte| !blank(byte));
        let value = begin
            .zip(end)
            .and_then(|(begin, end)| value.get(begin..=end));
        let value = value.unwrap_or_default();
        self.malformed = !is_value(value) || !self.take(name, value);
    }

    /// Returns whether what came is so much that the rest is not worth being looked at.
    pub(crate) fn is_absurd(&self) -> bool {
        self.size / ABSURD > self.limit
    }

    /// Returns whether a field is allowed, and keeps it.
    fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        if let Some(pseudo) = name.strip_prefix(b":") {
            let range = self.bytes.len()..self.bytes.len() + value.len();
            let again = match pseudo {
                b"method" => self.method.replace(range).is_some(),
                b"path" => self.path.replace(range).is_some(),
                b"authority" => self.authority.replace(range).is_some(),
                b"scheme" => return self.headers.is_empty() && !self.set_scheme(),
                _ => return false,
            };
            self.bytes.extend_from_slice(value);
            // They come before all others.
            return !again && self.headers.is_empty();
        }
        let allowed = match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => false,
            b"te" => value == b"trailers",
            // Twice it could be understood in two ways.
            b"content-length" => {
                let length = number(value);
                length.is_some() && std::mem::replace(&mut self.content_length, length).is_none()
            }
            _ => is_name(name),
        };
        if allowed {
            if self.headers.is_empty() {
                self.begin = self.bytes.len();
            }
            self.bytes.extend_from_slice(name);
            let name = self.bytes.len();
            self.bytes.extend_from_slice(value);
            let end = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            self.headers.push((end(name), end(self.bytes.len())));
        }
        allowed
    }

    /// Returns whether there was one before.
    fn set_scheme(&mut self) -> bool {
        std::mem::replace(&mut self.scheme, true)
    }

    /// Ends the head of a request.
    pub(crate) fn request(self) -> Result<Request, BadRequest> {
        self.check()?;
        let bytes = Bytes::from(self.bytes);
        // Within the bytes: each was made when its value was appended.
        let part = |range| bytes.slice(range);
        let method = self.method.map(part).ok_or(BadRequest::Malformed)?;
        let (path, authority) = (self.path.map(part), self.authority.map(part));
        let complete = match *method == *b"CONNECT" {
            true => authority.is_some() && !self.scheme && path.is_none(),
            false => self.scheme && path.as_ref().is_some_and(|path| !path.is_empty()),
        };
        if !complete {
            return Err(BadRequest::Malformed);
        }
        Ok(Request {
            method,
            path: path.unwrap_or_default(),
            authority,
            content_length: self.content_length,
            headers: Fields::new(bytes, self.begin, self.headers),
        })
    }

    /// Ends trailers, which have none of a request's own fields.
    pub(crate) fn trailers(self) -> Result<Fields, BadRequest> {
        self.check()?;
        let pseudo = [&self.method, &self.path, &self.authority];
        if self.scheme || pseudo.iter().any(|range| range.is_some()) {
            return Err(BadRequest::Malformed);
        }
        Ok(Fields::new(self.bytes.into(), self.begin, self.headers))
    }

    fn check(&self) -> Result<(), BadRequest> {
        if self.malformed {
            return Err(BadRequest::Malformed);
        }
        if self.size > self.limit {
            return Err(BadRequest::TooLarge);
        }
        Ok(())
    }
}

/// Reads a length (RFC 9110 section 8.6).
fn number(value: &[u8]) -> Option<u64> {
    // `parse` takes a sign as well.
    let digits = value.iter().all(u8::is_ascii_digit);
    digits.then(|| str::from_utf8(value).ok()?.parse().ok())?
}

/// A head that is so many times larger than it may be ends the connection.
const ABSURD: usize = 8;
/// Bytes of a name: fewer than others can keep.
const MAX_NAME: usize = 32 << 10;

/// RFC 9113 section 8.2.1, and RFC 9110 section 5.6.2.
fn is_name(name: &[u8]) -> bool {
    let right = |byte: &u8| {
        matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.')
            || matches!(byte, b'^'..=b'`' | b'|' | b'~')
    };
    (1..=MAX_NAME).contains(&name.len()) && name.iter().all(right)
}

/// The same section, and RFC 9110 section 5.5.
fn is_value(value: &[u8]) -> bool {
    let control = |byte: &u8| matches!(byte, 0..=8 | 0xa..=0x1f | 0x7f);
    !value.iter().any(control)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 6] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/ProxyService/Proxy"),
        (":authority", "/var/run/a%2Fb.sock"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];

    fn request(fields: &[(&str, &str)]) -> Result<Request, BadRequest> {
        let mut builder = Builder::new(1000);
        for (name, value) in fields {
            builder.field(name.as_bytes(), value.as_bytes());
        }
        builder.request()
    }

    #[test]
    fn a_request_to_a_path_as_authority_is_one() {
        let request = request(&GOOD).unwrap();
        assert_eq!(request.method(), "POST");
        assert_eq!(request.path(), "/ProxyService/Proxy");
        let authority = request.authority().unwrap();
        assert_eq!(authority, "/var/run/a%2Fb.sock");
        assert!(
            request.headers().iter().eq(GOOD[4..]
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_bytes())))
        );
        let content_type = request.header("content-type");
        assert_eq!(content_type, Some(&b"application/grpc"[..]));
        assert_eq!(request.header("user-agent"), None);
    }

    #[test]
    fn requests_are_accepted_malformed_or_too_large() {
        let long = "x".repeat(700);
        let connect = [(":method", "CONNECT"), (":authority", "a:1")];
        assert_eq!(request(&connect).unwrap().path(), "");
        let mut malformed = vec![connect[..1].to_vec()];
        malformed.extend((0..3).map(|at| [&GOOD[..at], &GOOD[at + 1..]].concat()));
        let with = |field| [&GOOD[..], &[field]].concat();
        malformed.extend(
            [
                (":method", "POST"),
                (":authority", "again, and behind others"),
                (":status", "200"),
                ("", "x"),
                ("Upper", "x"),
                ("with space", "x"),
                ("a:b", "x"),
                ("a(b", "x"),
                ("x", "a\x01"),
                ("x", "a\x7f"),
                ("x", "a\nb"),
                ("connection", "close"),
                ("transfer-encoding", "chunked"),
                ("te", "gzip"),
                ("content-length", "+1"),
                ("content-length", ""),
                ("content-length", "18446744073709551616"),
            ]
            .map(with),
        );
        for fields in malformed {
            assert_eq!(request(&fields), Err(BadRequest::Malformed), "{fields:?}");
        }
        assert_eq!(request(&with(("long", &long))), Err(BadRequest::TooLarge));
    }

    #[test]
    fn blanks_around_a_value_are_no_part_of_it() {
        let fields = [&GOOD[..], &[("x", " a b\t"), ("y", " ")]].concat();
        let request = request(&fields).unwrap();
        assert_eq!(request.header("x"), Some(&b"a b"[..]));
        assert_eq!(request.header("y"), Some(&b""[..]));
    }

    #[test]
    fn length_is_said_once() {
        let with = |lengths: &[&'static str]| {
            let mut fields = GOOD.to_vec();
            fields.extend(lengths.iter().map(|length| ("content-length", *length)));
            request(&fields).map(|request| request.content_length())
        };
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&["007"]), Ok(Some(7)));
        assert_eq!(with(&["7", "7"]), Err(BadRequest::Malformed));
    }

    #[test]
    fn trailers_have_no_path() {
        for (name, expected) in [
            (&b"grpc-status"[..], Ok(1)),
            (b":path", Err(BadRequest::Malformed)),
            (b":authority", Err(BadRequest::Malformed)),
        ] {
            let mut builder = Builder::new(1000);
            builder.field(name, b"0");
            assert_eq!(builder.trailers().map(|fields| fields.len()), expected);
        }
    }
}
