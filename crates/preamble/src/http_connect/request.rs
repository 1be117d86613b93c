//! The head of a request: what a downstream on a CONNECT listener sends first.

use super::{
    HeadError::{self, Malformed, NotHttp},
    HttpVersion,
    head::{Fields, bounded, is_host, is_tchar, is_visible, next_line},
};
use crate::Progress;

/// A complete request head (RFC 9112 §3, §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    method: &'a str,
    target: &'a str,
    version: HttpVersion,
    host: Option<&'a str>,
    fields: Fields<'a>,
}

impl<'a> RequestHead<'a> {
    /// Parses the request head at the start of `input`, given at most `limit` bytes for it.
    ///
    /// `consumed` ends with the empty line; whatever the client sent behind it is left alone. The
    /// target is not interpreted (a gateway routes by a header field and never looks at it), so a
    /// CONNECT whose target lacks a port is for the caller to refuse. Field values must be UTF-8.
    ///
    /// # Errors
    ///
    /// - [`HeadError::NotHttp`] as soon as the first bytes are not a method name (RFC 9110
    ///   §5.6.2 token, at most 32 bytes) and a space.
    /// - [`HeadError::Malformed`] for a head that breaks the rules: see the module; several `Host`
    ///   fields, or none in HTTP/1.1 (RFC 9112 §3.2); a CONNECT that announces a body
    ///   (`Transfer-Encoding`, or `Content-Length` other than 0), since the bytes behind it could
    ///   be read as body or as tunnel.
    /// - [`HeadError::TooLong`] when the head does not end within `limit` or
    ///   [`MAX_FIELDS`](super::MAX_FIELDS) fields.
    pub fn parse(input: &'a [u8], limit: usize) -> Result<Progress<Self>, HeadError> {
        bounded(input, limit, SHORTEST.len(), |view| Self::read(view, false))
    }

    /// Parses like [`RequestHead::parse`], and takes a CONNECT of HTTP/1.1 without `Host` as well.
    ///
    /// For a proxy that goes by the target and never looks at the field, and whose clients were
    /// always allowed to leave it out. Every other rule holds.
    ///
    /// # Errors
    ///
    /// As [`RequestHead::parse`].
    pub fn parse_host_optional(input: &'a [u8], limit: usize) -> Result<Progress<Self>, HeadError> {
        bounded(input, limit, SHORTEST.len(), |view| Self::read(view, true))
    }

    fn read(view: &'a [u8], host_optional: bool) -> Result<Option<(Self, &'a [u8])>, HeadError> {
        starts_with_method(view)?;
        let Some((line, rest)) = next_line(view)? else {
            return Ok(None);
        };
        let mut words = line.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Malformed("request line is not method, target, version"));
        };
        if !is_visible(target) {
            return Err(Malformed("request target"));
        }
        let version = HttpVersion::new(version)?;
        let Some((fields, rest)) = Fields::read(rest)? else {
            return Ok(None);
        };
        let host_required = version == HttpVersion::Http11 && !(host_optional && method == METHOD);
        let host = host(fields, host_required)?;
        let head = Self {
            method,
            target,
            version,
            host,
            fields,
        };
        if head.is_connect() && head.announces_body() {
            return Err(Malformed("CONNECT with a body"));
        }
        Ok(Some((head, rest)))
    }

    /// Returns whether the method is CONNECT; methods are case-sensitive.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        self.method == METHOD
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.method
    }

    /// Returns the request target as sent: `host:port` in a proper CONNECT.
    #[must_use]
    pub fn target(&self) -> &'a str {
        self.target
    }

    /// Returns the version of the request.
    #[must_use]
    pub fn version(&self) -> HttpVersion {
        self.version
    }

    /// Returns the value of the `Host` field, which holds only bytes that a host and port may
    /// have; `None` when it is missing (HTTP/1.0) or empty.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// Returns the values of all fields called `name`, compared without regard to letter case, in
    /// the order sent and without surrounding whitespace.
    pub fn header_values<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        self.fields.values(name)
    }

    /// Returns whether a body is announced: a `Transfer-Encoding`, or a `Content-Length` other than 0.
    #[must_use]
    pub fn announces_body(&self) -> bool {
        self.header_values("transfer-encoding").next().is_some()
            || self
                .header_values("content-length")
                .any(|length| length != "0")
    }

    /// Returns all fields, names as sent, in the order sent.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.fields.iter()
    }
}

/// Returns whether `input` starts with `CONNECT` and a space; `None` while it is too short to tell.
#[must_use]
pub fn looks_like_connect(input: &[u8]) -> Option<bool> {
    if input.starts_with(CONNECT) {
        Some(true)
    } else if CONNECT.starts_with(input) {
        None
    } else {
        Some(false)
    }
}

/// Refuses what is no HTTP as early as possible.
fn starts_with_method(view: &[u8]) -> Result<(), HeadError> {
    for (at, &byte) in view.iter().enumerate() {
        match byte {
            b' ' if at > 0 => return Ok(()),
            byte if is_tchar(byte) && at < MAX_METHOD => {}
            _ => return Err(NotHttp),
        }
    }
    Ok(())
}

fn host(fields: Fields<'_>, required: bool) -> Result<Option<&str>, HeadError> {
    let mut hosts = fields.values("host");
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Err(Malformed("several Host fields")),
        (None, None) if required => Err(Malformed("no Host field")),
        (Some(host), None) if !is_host(host) => Err(Malformed("Host field")),
        (host, None) => Ok(host.filter(|host| !host.is_empty())),
    }
}

const METHOD: &str = "CONNECT";
const CONNECT: &[u8] = b"CONNECT ";
/// A method has one character at least.
const SHORTEST: &[u8] = b"M / HTTP/1.0\r\n\r\n";
/// Longest method looked at; the longest registered one is `UPDATEREDIRECTREF`, 17 bytes.
const MAX_METHOD: usize = 32;
