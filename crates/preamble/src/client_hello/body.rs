//! Reads a complete ClientHello message: RFC 8446 §4.1.2, and two of its extensions.
//!
//! The framing of the whole message is checked; the contents only of `server_name` (RFC 6066 §3)
//! and `application_layer_protocol_negotiation` (RFC 7301 §3.1). Other extensions are skipped.

use std::iter;
use std::ops::Range;

use super::reader::Reader;

/// Where the two extensions' payloads lie in the message.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) server_name: Option<Range<usize>>,
    pub(super) alpn: Option<Range<usize>>,
}

/// Checks the message and finds the extensions; an error says what is wrong.
pub(super) fn read(message: &[u8]) -> Result<Found, &'static str> {
    let mut reader = Reader::new(message);
    let mut extensions = open(&mut reader)?;
    let mut found = Found::default();
    while !extensions.is_empty() {
        let (kind, data) = extension(&mut extensions).ok_or("extension cut short")?;
        match kind {
            SERVER_NAME if found.server_name.is_some() => {
                return Err("two server_name extensions");
            }
            SERVER_NAME => found.server_name = Some(server_name(data)?),
            ALPN if found.alpn.is_some() => return Err("two ALPN extensions"),
            ALPN => found.alpn = Some(protocol_name_list(data)?),
            _ => {}
        }
    }
    Ok(found)
}

/// Walks the fixed part and returns the extension block, empty when the hello has none.
fn open<'a>(reader: &mut Reader<'a>) -> Result<Reader<'a>, &'static str> {
    const SHORT: &str = "ClientHello cut short";
    reader.split(4).ok_or(SHORT)?; // type and length of the message, which records.rs has judged
    if reader.u16().ok_or(SHORT)? >> 8 != 3 {
        return Err("legacy_version is not 3.x");
    }
    reader.split(32).ok_or(SHORT)?; // random
    if reader.vector8().ok_or(SHORT)?.len() > 32 {
        return Err("session id longer than 32 bytes");
    }
    let suites = reader.vector16().ok_or(SHORT)?.len();
    if suites == 0 || !suites.is_multiple_of(2) {
        return Err("cipher suites of no or odd length");
    }
    if reader.vector8().ok_or(SHORT)?.is_empty() {
        return Err("no compression methods");
    }
    if reader.is_empty() {
        return Ok(reader.clone()); // before TLS 1.3 extensions may be missing altogether
    }
    let extensions = reader.vector16().ok_or(SHORT)?;
    if !reader.is_empty() {
        return Err("bytes behind the extensions");
    }
    Ok(extensions)
}

fn extension<'a>(extensions: &mut Reader<'a>) -> Option<(u16, Reader<'a>)> {
    Some((extensions.u16()?, extensions.vector16()?))
}

/// RFC 6066 §3: a list of names, at most one of each type, and `host_name` the only type there is.
fn server_name(mut data: Reader<'_>) -> Result<Range<usize>, &'static str> {
    const SHORT: &str = "server_name cut short";
    let mut list = data.vector16().ok_or(SHORT)?;
    if !data.is_empty() {
        return Err("bytes behind the server name list");
    }
    if list.u8().ok_or("empty server name list")? != HOST_NAME {
        return Err("server name of unknown type");
    }
    let name = list.vector16().ok_or(SHORT)?;
    if !list.is_empty() {
        return Err("more than one server name");
    }
    if !is_host_name(name.bytes()) {
        return Err("server name is not a host name");
    }
    Ok(name.range())
}

/// DNS host name syntax (RFC 1123 §2.1), with underscores and one trailing dot tolerated.
fn is_host_name(name: &[u8]) -> bool {
    let labels = name.strip_suffix(b".").unwrap_or(name);
    name.len() <= 255
        && labels.split(|&byte| byte == b'.').all(|label| {
            (1..=63).contains(&label.len())
                && label
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
        })
}

/// RFC 7301 §3.1: a list, not empty, of names that are not empty.
fn protocol_name_list(mut data: Reader<'_>) -> Result<Range<usize>, &'static str> {
    const SHORT: &str = "ALPN cut short";
    let list = data.vector16().ok_or(SHORT)?;
    if !data.is_empty() {
        return Err("bytes behind the ALPN list");
    }
    if list.is_empty() {
        return Err("empty ALPN list");
    }
    let mut names = list.clone();
    while !names.is_empty() {
        if names.vector8().ok_or(SHORT)?.is_empty() {
            return Err("empty ALPN protocol name");
        }
    }
    Ok(list.range())
}

/// Iterates over the names of a list that [`read`] has checked.
pub(super) fn protocol_names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Reader::new(list);
    iter::from_fn(move || rest.vector8().map(|name| name.bytes()))
}

/// ExtensionType server_name (RFC 6066 §1.1).
const SERVER_NAME: u16 = 0;
/// ExtensionType application_layer_protocol_negotiation (RFC 7301 §6).
const ALPN: u16 = 16;
/// NameType host_name (RFC 6066 §3).
const HOST_NAME: u8 = 0;
