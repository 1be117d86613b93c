//! Reads YAML 1.2 strictly into serde types.
//!
//! ```text
//!   text ─ begins with `{`? ─yes─▶ serde_json ──ok──▶ T
//!     │                               │ anything it refuses
//!     └──────────────no───────────────┴─▶ events ─▶ node (serde) ─▶ T, or file:line:column: key: …
//! ```
//!
//! JSON is YAML 1.2, and a program that writes 20,000 entries can write JSON: serde_json reads such
//! a file several times as fast. It never has the last word about a mistake, so that both
//! ways refuse the same things in the same words.
//!
//! The core schema decides what a plain word is (`true`, `null`, `0x1f`, `1.5`; `off`, `yes` and
//! `012` are words or decimal), and only where the type asks for it: a `String` takes `a: 10` as
//! written. Anchors and aliases work within a budget; merge keys, custom tags, several documents
//! and keys that are not scalars are not configuration and are refused.

mod events;
mod fault;
mod json;
mod node;
mod scalar;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use serde::de::DeserializeOwned;

use self::{events::Events, fault::Fault};
use crate::ConfigError;

/// Largest file that is read, in octets. 10,000 clusters and routes are 3.5 MB.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// The memory for a larger file is a multiple of this, in octets.
const ROOM: u64 = 256 << 10;

/// Reads the file at `path`.
///
/// Blocks while reading; files are small and read at start and on change only.
///
/// # Errors
/// Any [`ConfigError`] but [`ConfigError::Values`]. Something other than a regular file is a
/// [`ConfigError::Read`], for a pipe would make the process wait for a writer.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    from_slice(&read(path)?, path)
}

/// Reads the octets of the file at `path`, for [`from_slice`]; blocks as [`load`] does.
///
/// # Errors
/// [`ConfigError::Read`] and [`ConfigError::TooLarge`].
pub fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let failed = |source| ConfigError::Read {
        origin: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    let file = File::open(path).map_err(failed)?;
    let expected = metadata.len().min(MAX_FILE_BYTES);
    // A large file that is read again, a little larger, finds room where it was before.
    let room = if expected < ROOM {
        expected
    } else {
        expected.next_multiple_of(ROOM)
    };
    let mut bytes = Vec::with_capacity(usize::try_from(room).unwrap_or(0));
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge {
            origin: path.to_owned(),
            limit: MAX_FILE_BYTES,
        });
    }
    Ok(bytes)
}

/// Reads `octets`, which are to be UTF-8; `origin` is the name that errors give them.
///
/// # Errors
/// [`ConfigError::Empty`], [`ConfigError::Invalid`] and [`ConfigError::NotText`].
pub fn from_slice<T: DeserializeOwned>(octets: &[u8], origin: &Path) -> Result<T, ConfigError> {
    let text = str::from_utf8(octets).map_err(|error| {
        let valid = octets.iter().take(error.valid_up_to());
        ConfigError::NotText {
            origin: origin.to_owned(),
            line: 1 + valid.filter(|&&octet| octet == b'\n').count(),
        }
    })?;
    from_str(text, origin)
}

/// Reads `text`; `origin` is the name that errors give it.
///
/// # Errors
/// [`ConfigError::Empty`] and [`ConfigError::Invalid`].
pub fn from_str<T: DeserializeOwned>(text: &str, origin: &Path) -> Result<T, ConfigError> {
    if text.trim_start().starts_with('{')
        && let Some(value) = json::read(text)
    {
        return Ok(value);
    }
    read_document(text).map_err(|fault| match fault {
        DocumentFault::Empty => ConfigError::Empty {
            origin: origin.to_owned(),
        },
        DocumentFault::Invalid(fault) => fault.into_config_error(origin),
    })
}

enum DocumentFault {
    Empty,
    Invalid(Fault),
}

impl From<Fault> for DocumentFault {
    fn from(fault: Fault) -> Self {
        Self::Invalid(fault)
    }
}

fn read_document<T: DeserializeOwned>(text: &str) -> Result<T, DocumentFault> {
    let mut events = Events::new(text);
    if !events.begin_document()? {
        return Err(DocumentFault::Empty);
    }
    let value = node::read(&mut events)?;
    events.end_document()?;
    Ok(value)
}

#[cfg(test)]
mod tests;
