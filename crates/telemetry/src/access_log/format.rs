//! Writes one record as text or as JSON.
//!
//! Some values come from the wire. In either format they are quoted and escaped so that a line is
//! one line, a field is one field, and nothing reaches a terminal but printable characters.

use std::fmt::{self, Display, Write};
use std::net::SocketAddr;

use super::{AccessRecord, RequestRecord};
use crate::clock;

/// Appends `{"time":"…",…}`, or `time=… listener=…`, to an empty line, without its end. Names and
/// order of the fields are a contract with readers of the log.
pub(super) fn line(out: &mut String, record: &AccessRecord<'_>, json: bool) -> fmt::Result {
    let mut line = Line { out, json };
    line.plain("time", Some(clock::Rfc3339(record.time)))?;
    line.string("listener", Some(record.listener))?;
    line.string("protocol", Some(record.protocol))?;
    line.address("peer", Some(record.peer))?;
    line.address("client", Some(record.client))?;
    line.string("server_name", record.server_name)?;
    line.string("alpn", record.alpn)?;
    line.address("destination", record.destination)?;
    line.string("connect", record.connect)?;
    line.string("cluster", record.cluster)?;
    line.address("endpoint", record.endpoint)?;
    line.number("rx_bytes", record.rx_bytes)?;
    line.number("tx_bytes", record.tx_bytes)?;
    let millis = u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX);
    line.number("duration_ms", millis)?;
    line.string("reason", Some(record.reason))?;
    out.push_str(if json { "}" } else { "" });
    Ok(())
}

/// As [`line`], of a request.
pub(super) fn request(out: &mut String, record: &RequestRecord<'_>, json: bool) -> fmt::Result {
    let mut line = Line { out, json };
    line.plain("time", Some(clock::Rfc3339(record.time)))?;
    line.string("listener", Some(record.listener))?;
    line.string("protocol", Some(record.protocol))?;
    line.address("client", Some(record.client))?;
    line.string("server_name", record.server_name)?;
    line.string("cluster", record.cluster)?;
    line.string("endpoint", record.endpoint)?;
    line.string("method", Some(record.method))?;
    line.string("path", Some(record.path))?;
    line.number("status", u64::from(record.status.unwrap_or_default()))?;
    line.number("rx_bytes", record.rx_bytes)?;
    line.number("tx_bytes", record.tx_bytes)?;
    let millis = u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX);
    line.number("duration_ms", millis)?;
    out.push_str(if json { "}" } else { "" });
    Ok(())
}

struct Line<'a> {
    out: &'a mut String,
    json: bool,
}

impl Line<'_> {
    /// Starts a field.
    fn name(&mut self, name: &str) -> fmt::Result {
        match (self.json, self.out.is_empty()) {
            (true, true) => write!(self.out, "{{\"{name}\":"),
            (true, false) => write!(self.out, ",\"{name}\":"),
            (false, true) => write!(self.out, "{name}="),
            (false, false) => write!(self.out, " {name}="),
        }
    }

    /// Writes that there is no value.
    fn absent(&mut self) -> fmt::Result {
        self.out.write_str(if self.json { "null" } else { "-" })
    }

    fn number(&mut self, name: &str, value: u64) -> fmt::Result {
        self.name(name)?;
        write!(self.out, "{value}")
    }

    /// Writes a value that needs no escaping.
    fn plain(&mut self, name: &str, value: Option<impl Display>) -> fmt::Result {
        self.name(name)?;
        match value {
            None => self.absent(),
            Some(value) if self.json => write!(self.out, "\"{value}\""),
            Some(value) => write!(self.out, "{value}"),
        }
    }

    /// Writes an address; one that is IPv4 mapped into IPv6 as the IPv4 address it is.
    fn address(&mut self, name: &str, value: Option<SocketAddr>) -> fmt::Result {
        let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        self.plain(name, value.map(canonical))
    }

    /// Writes any text, quoted where it has to be.
    fn string(&mut self, name: &str, value: Option<&str>) -> fmt::Result {
        self.name(name)?;
        let Some(value) = value else {
            return self.absent();
        };
        let bare = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'=');
        if self.json {
            self.quote(value, |c| c.is_control() || is_invisible(c))
        } else if value.is_empty() || value == "-" || !value.bytes().all(bare) {
            self.quote(value, |c| !(c == ' ' || c.is_ascii_graphic()))
        } else {
            self.out.write_str(value)
        }
    }

    /// Writes a JSON string (RFC 8259 section 7), spelling what `hidden` picks by its UTF-16 units.
    fn quote(&mut self, value: &str, hidden: impl Fn(char) -> bool) -> fmt::Result {
        self.out.push('"');
        for c in value.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if hidden(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}")?;
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

/// Line separators, and marks that reorder or hide text around them.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}
