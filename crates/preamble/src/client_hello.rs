//! Finds the TLS ClientHello at the start of a stream and reads what routing needs from it.
//!
//! ```text
//! input ──records::locate──▶ handshake message ──body::read──▶ server name, ALPN list
//!        (RFC 8446 §5.1)     borrowed when it is   (RFC 8446 §4.1.2, RFC 6066 §3, RFC 7301 §3.1)
//!                            in one record, else joined
//! ```
//!
//! Work per call is linear in the input and small while the hello is incomplete: only record
//! headers are looked at, at most [`MAX_RECORDS`] of them, and nothing is allocated before the last
//! byte is there. Negotiates nothing, and judges neither versions nor cipher suites: that is the
//! server's business.

mod body;
mod reader;
mod records;

use std::{borrow::Cow, ops::Range, str};

use thiserror::Error;

use crate::Progress;

pub use records::MAX_RECORDS;

/// A complete ClientHello.
///
/// Borrows the input when the hello lies in one TLS record, as nearly all do, and owns a joined
/// copy when it was spread over several.
#[derive(Clone, Debug)]
pub struct ClientHello<'a> {
    message: Cow<'a, [u8]>,
    server_name: Option<Range<usize>>,
    alpn: Option<Range<usize>>,
}

impl<'a> ClientHello<'a> {
    /// Parses the ClientHello at the start of `input`, given at most `limit` bytes of records.
    ///
    /// `consumed` counts whole records: up to the end of the one in which the hello ends. A hello
    /// may span records of any size, but not more than [`MAX_RECORDS`], and the last record may
    /// hold nothing behind it (RFC 8446 §5.1: the next message is under other keys, or the
    /// server's). The minor version of the record layer is ignored, as RFC 8446 §5.1 asks.
    ///
    /// # Errors
    ///
    /// - [`ClientHelloError::NotTls`] as soon as the first byte is not a handshake record's (22)
    ///   or the second is not major version 3; an SSLv2 hello ends here too.
    /// - [`ClientHelloError::Malformed`] for a TLS stream that does not start with a ClientHello or
    ///   whose ClientHello breaks its own framing, names a server twice, or names something that
    ///   is no DNS host name.
    /// - [`ClientHelloError::TooLong`] as soon as the lengths announced exceed `limit`.
    pub fn parse(input: &'a [u8], limit: usize) -> Result<Progress<Self>, ClientHelloError> {
        let layout = match records::locate(input, limit)? {
            Progress::Done { value, .. } => value,
            Progress::Need { at_least } => return Ok(Progress::Need { at_least }),
        };
        let message = records::message(input, &layout);
        let found = body::read(&message).map_err(ClientHelloError::Malformed)?;
        let value = Self {
            message,
            server_name: found.server_name,
            alpn: found.alpn,
        };
        Ok(Progress::Done {
            value,
            consumed: layout.consumed,
        })
    }

    /// Returns the host name the client asked for, as sent: letter case and a trailing dot are
    /// kept. `None` when the hello carries no `server_name` extension.
    ///
    /// It is 1 to 255 bytes of labels of 1 to 63 letters, digits, `-` and `_`.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        let bytes = self.message.get(self.server_name.clone()?)?;
        str::from_utf8(bytes).ok()
    }

    /// Returns the application protocols offered (RFC 7301 §3.1), most preferred first, each 1 to
    /// 255 bytes. Empty without the extension.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let list = self
            .alpn
            .clone()
            .and_then(|range| self.message.get(range))
            .unwrap_or_default();
        body::protocol_names(list)
    }
}

/// Why the start of a stream is not a usable ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientHelloError {
    /// TLS, but not a well-formed ClientHello; the text says what is wrong with it.
    #[error("ClientHello is malformed: {0}")]
    Malformed(&'static str),
    /// The first bytes are not those of a TLS handshake record.
    #[error("downstream does not speak TLS")]
    NotTls,
    /// The ClientHello is, or announces to be, longer than the limit.
    #[error("ClientHello exceeds the preamble limit")]
    TooLong,
}
