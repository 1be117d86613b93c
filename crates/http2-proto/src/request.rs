//! The head of a request, made of the fields of one block (RFC 9113 section 8).
//!
//! ```text
//!   names and values ──▶ Builder ──▶ Request, or what is wrong with it
//! ```
//!
//! A malformed request ends its stream and no more. What the method and the path mean is not known
//! here; `:authority` may be anything a header can have.

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    method: Box<[u8]>,
    path: Box<[u8]>,
    headers: Vec<Field>,
}

/// A name and its value.
type Field = (Box<[u8]>, Box<[u8]>);

impl Request {
    /// Returns `:method`.
    #[must_use]
    pub fn method(&self) -> &[u8] {
        &self.method
    }

    /// Returns `:path`, empty for CONNECT.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the first header of that name, which is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut named = (self.headers.iter()).filter(|(found, _)| **found == *name.as_bytes());
        named.next().map(|(_, value)| &**value)
    }
}

/// A block of headers as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    method: Option<Box<[u8]>>,
    path: Option<Box<[u8]>>,
    scheme: bool,
    authority: bool,
    headers: Vec<Field>,
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
        self.malformed = !is_value(value) || !self.take(name, value);
    }

    /// Returns whether a field is allowed, and keeps it.
    fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        if let Some(pseudo) = name.strip_prefix(b":") {
            let again = match pseudo {
                b"method" => self.method.replace(value.into()).is_some(),
                b"path" => self.path.replace(value.into()).is_some(),
                b"scheme" => std::mem::replace(&mut self.scheme, true),
                b"authority" => std::mem::replace(&mut self.authority, true),
                _ => return false,
            };
            // They come before all others.
            return !again && self.headers.is_empty();
        }
        let allowed = match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => false,
            b"te" => value == b"trailers",
            _ => is_name(name),
        };
        if allowed {
            self.headers.push((name.into(), value.into()));
        }
        allowed
    }

    /// Ends the head of a request.
    pub(crate) fn request(self) -> Result<Request, BadRequest> {
        self.check()?;
        let method = self.method.ok_or(BadRequest::Malformed)?;
        let complete = match *method == *b"CONNECT" {
            true => self.authority && !self.scheme && self.path.is_none(),
            false => self.scheme && self.path.as_ref().is_some_and(|path| !path.is_empty()),
        };
        if !complete {
            return Err(BadRequest::Malformed);
        }
        Ok(Request {
            method,
            path: self.path.unwrap_or_default(),
            headers: self.headers,
        })
    }

    /// Ends trailers, which have none of a request's own fields.
    pub(crate) fn trailers(self) -> Result<(), BadRequest> {
        self.check()?;
        if self.scheme || self.authority || self.method.is_some() || self.path.is_some() {
            return Err(BadRequest::Malformed);
        }
        Ok(())
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

/// RFC 9113 section 8.2.1.
fn is_name(name: &[u8]) -> bool {
    let wrong = |byte: &u8| matches!(byte, 0..=0x20 | b'A'..=b'Z' | b':' | 0x7f..);
    !name.is_empty() && !name.iter().any(wrong)
}

/// The same section.
fn is_value(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !value.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r'))
        && !blank(value.first())
        && !blank(value.last())
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
        assert_eq!(request.method(), b"POST");
        assert_eq!(request.path(), b"/ProxyService/Proxy");
        let content_type = request.header("content-type");
        assert_eq!(content_type, Some(&b"application/grpc"[..]));
        assert_eq!(request.header("user-agent"), None);
    }

    #[test]
    fn requests_are_accepted_malformed_or_too_large() {
        let long = "x".repeat(700);
        let connect = [(":method", "CONNECT"), (":authority", "a:1")];
        assert_eq!(request(&connect).unwrap().path(), b"");
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
                ("x", " blank"),
                ("x", "blank\t"),
                ("x", "a\nb"),
                ("connection", "close"),
                ("transfer-encoding", "chunked"),
                ("te", "gzip"),
            ]
            .map(with),
        );
        for fields in malformed {
            assert_eq!(request(&fields), Err(BadRequest::Malformed), "{fields:?}");
        }
        assert_eq!(request(&with(("long", &long))), Err(BadRequest::TooLarge));
    }

    #[test]
    fn trailers_have_no_path() {
        for (name, expected) in [
            (&b"grpc-status"[..], Ok(())),
            (b":path", Err(BadRequest::Malformed)),
        ] {
            let mut builder = Builder::new(1000);
            builder.field(name, b"0");
            assert_eq!(builder.trailers(), expected);
        }
    }
}
