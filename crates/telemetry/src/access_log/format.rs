//! Writes one record as text or as JSON.
//!
//! Some values come from the wire. In either format they are quoted and escaped so that a line is
//! one line, a field is one field, and nothing reaches a terminal but printable characters.

use std::fmt::{self, Write};
use std::net::SocketAddr;

use super::AccessRecord;
use crate::clock;

/// Appends `{"time":"…",…}`, without a line end.
pub(super) fn json(out: &mut String, record: &AccessRecord<'_>) {
    write(&mut Json(out), record).unwrap_or_else(infallible);
    out.push('}');
}

/// Appends `time=… listener=…`, without a line end.
pub(super) fn text(out: &mut String, record: &AccessRecord<'_>) {
    write(&mut Text(out), record).unwrap_or_else(infallible);
}

/// Names and order of the fields are a contract with readers of the log.
fn write(out: &mut impl Fields, record: &AccessRecord<'_>) -> fmt::Result {
    out.name("time")?;
    out.plain(|out| clock::write_rfc3339(out, record.time))?;
    out.string("listener", Some(record.listener))?;
    out.string("protocol", Some(record.protocol))?;
    out.address("peer", Some(record.peer))?;
    out.address("client", Some(record.client))?;
    out.string("server_name", record.server_name)?;
    out.string("alpn", record.alpn)?;
    out.address("destination", record.destination)?;
    out.string("connect", record.connect)?;
    out.string("cluster", record.cluster)?;
    out.address("endpoint", record.endpoint)?;
    out.number("rx_bytes", record.rx_bytes)?;
    out.number("tx_bytes", record.tx_bytes)?;
    let millis = u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX);
    out.number("duration_ms", millis)?;
    out.string("reason", Some(record.reason))
}

trait Fields {
    /// Starts a field.
    fn name(&mut self, name: &str) -> fmt::Result;
    /// Writes a value that needs no escaping.
    fn plain(&mut self, write: impl FnOnce(&mut String) -> fmt::Result) -> fmt::Result;
    /// Writes any text.
    fn text(&mut self, value: &str) -> fmt::Result;
    /// Writes that there is no value.
    fn absent(&mut self);
    fn buffer(&mut self) -> &mut String;

    fn string(&mut self, name: &str, value: Option<&str>) -> fmt::Result {
        self.name(name)?;
        match value {
            Some(value) => self.text(value)?,
            None => self.absent(),
        }
        Ok(())
    }

    /// Writes an address; one that is IPv4 mapped into IPv6 as the IPv4 address it is.
    fn address(&mut self, name: &str, value: Option<SocketAddr>) -> fmt::Result {
        self.name(name)?;
        match value {
            Some(address) => {
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                self.plain(|out| write!(out, "{address}"))?;
            }
            None => self.absent(),
        }
        Ok(())
    }

    fn number(&mut self, name: &str, value: u64) -> fmt::Result {
        self.name(name)?;
        write!(self.buffer(), "{value}")
    }
}

struct Json<'a>(&'a mut String);

impl Fields for Json<'_> {
    fn name(&mut self, name: &str) -> fmt::Result {
        let separator = if self.0.is_empty() { '{' } else { ',' };
        write!(self.0, "{separator}\"{name}\":")
    }

    fn plain(&mut self, write: impl FnOnce(&mut String) -> fmt::Result) -> fmt::Result {
        self.0.push('"');
        write(self.0)?;
        self.0.push('"');
        Ok(())
    }

    fn text(&mut self, value: &str) -> fmt::Result {
        quote(self.0, value, |c| c.is_control() || is_invisible(c))
    }

    fn absent(&mut self) {
        self.0.push_str("null");
    }

    fn buffer(&mut self) -> &mut String {
        self.0
    }
}

struct Text<'a>(&'a mut String);

impl Fields for Text<'_> {
    fn name(&mut self, name: &str) -> fmt::Result {
        let separator = if self.0.is_empty() { "" } else { " " };
        write!(self.0, "{separator}{name}=")
    }

    fn plain(&mut self, write: impl FnOnce(&mut String) -> fmt::Result) -> fmt::Result {
        write(self.0)
    }

    fn text(&mut self, value: &str) -> fmt::Result {
        let bare = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'=');
        if !value.is_empty() && value != "-" && value.bytes().all(bare) {
            self.0.push_str(value);
            return Ok(());
        }
        quote(self.0, value, |c| !(c == ' ' || c.is_ascii_graphic()))
    }

    fn absent(&mut self) {
        self.0.push('-');
    }

    fn buffer(&mut self) -> &mut String {
        self.0
    }
}

/// Writes a JSON string (RFC 8259 section 7), spelling what `hidden` picks by its UTF-16 units.
fn quote(out: &mut String, value: &str, hidden: impl Fn(char) -> bool) -> fmt::Result {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if hidden(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}

/// Line separators, and marks that reorder or hide text around them.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

fn infallible(_: fmt::Error) {
    debug_assert!(false, "a String takes everything");
}
