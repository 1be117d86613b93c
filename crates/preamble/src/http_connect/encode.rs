//! Writes the head of a CONNECT request of our own.

use thiserror::Error;

use super::head::{MAX_FIELDS, is_host, is_token};

/// Appends the head of an HTTP/1.1 CONNECT to `target` (`host:port`), which is also its `Host`.
///
/// # Errors
///
/// [`ConnectEncodeError`], with nothing appended, when the target or a field could not be read
/// back as it was given.
pub fn encode_connect(
    target: &str,
    headers: &[(&str, &str)],
    out: &mut Vec<u8>,
) -> Result<(), ConnectEncodeError> {
    check(target, headers)?;
    for part in ["CONNECT ", target, " HTTP/1.1\r\nHost: ", target, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    for (name, value) in headers {
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn check(target: &str, headers: &[(&str, &str)]) -> Result<(), ConnectEncodeError> {
    if target.is_empty() || !is_host(target) {
        return Err(ConnectEncodeError::Target);
    }
    if headers.len() >= MAX_FIELDS {
        return Err(ConnectEncodeError::TooManyFields);
    }
    for (name, value) in headers {
        let reserved = RESERVED
            .iter()
            .any(|reserved| name.eq_ignore_ascii_case(reserved));
        if reserved || !is_token(name) {
            return Err(ConnectEncodeError::FieldName);
        }
        let padded = value.trim_matches([' ', '\t']) != *value;
        if padded
            || value
                .bytes()
                .any(|byte| byte.is_ascii_control() && byte != b'\t')
        {
            return Err(ConnectEncodeError::FieldValue);
        }
    }
    Ok(())
}

/// Why a CONNECT head cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectEncodeError {
    /// A field name is not a token, or is `Host`, `Content-Length` or `Transfer-Encoding`.
    #[error("a CONNECT request cannot carry a header of this name")]
    FieldName,
    /// A field value holds a control character or whitespace at an end.
    #[error("a CONNECT request cannot carry a header of this value")]
    FieldValue,
    /// The target is empty or holds bytes that no host and port have.
    #[error("the target of a CONNECT request must be host and port")]
    Target,
    /// There are more fields than a recipient would take.
    #[error("too many headers for a CONNECT request")]
    TooManyFields,
}

/// `Host` is written from the target; a CONNECT has no body to frame.
const RESERVED: [&str; 3] = ["content-length", "host", "transfer-encoding"];
