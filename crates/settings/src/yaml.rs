//! Reads YAML 1.2 strictly into serde types, with `serde-saphyr`.
//!
//! JSON is YAML 1.2 as well.
//!
//! A plain word is what the type asks for: `off`, `yes` and `no` are text, never booleans, and a
//! `String` takes `a: 10` as written. Merge keys, custom tags, duplicate keys, several documents and
//! aliases beyond a limit are errors. Environment variables are not expanded.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_path_to_error::{Deserializer, Path as KeyPath, Track};
use serde_saphyr::{
    Error, Location, MessageFormatter, Options, UserMessageFormatter,
    options::{DuplicateKeyPolicy, MergeKeyPolicy},
};

use crate::error::{ConfigError, Prefix};

/// Largest file that is read, in bytes. 10,000 clusters and routes are 3.5 MB.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// The memory for a larger file is a multiple of this, in bytes.
const GRANULE: u64 = 256 << 10;

/// Reads the file at `path`.
///
/// Blocks while reading; files are small and read at start and on change only.
///
/// # Errors
/// [`ConfigError`]. Something other than a regular file is a [`ConfigError::Read`], for a pipe would
/// make the process wait for a writer.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    from_slice(&read(path)?, path)
}

/// Reads the bytes of the file at `path`, for [`from_slice`]; blocks as [`load`] does.
///
/// # Errors
/// [`ConfigError::Read`], and [`ConfigError::Refused`] for too large a file.
pub fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let failed = |source| ConfigError::Read(path.to_owned(), source);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    let file = File::open(path).map_err(failed)?;
    let expected = metadata.len().min(MAX_FILE_BYTES);
    // A large file that is read again, a little larger, fits the allocation that was freed before.
    let capacity = if expected < GRANULE {
        expected
    } else {
        expected.next_multiple_of(GRANULE)
    };
    let mut bytes = Vec::with_capacity(usize::try_from(capacity).unwrap_or(0));
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let what = format!(" larger than the limit of {MAX_FILE_BYTES} bytes");
        return Err(ConfigError::refused(path, what));
    }
    Ok(bytes)
}

/// Reads `bytes`, which are to be UTF-8; `origin` is the name that errors give them.
///
/// # Errors
/// [`ConfigError::Refused`].
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8], origin: &Path) -> Result<T, ConfigError> {
    let text = str::from_utf8(bytes).map_err(|error| {
        let valid = bytes.iter().take(error.valid_up_to());
        let line = 1 + valid.filter(|&&byte| byte == b'\n').count();
        ConfigError::refused(origin, format!("{line}: not UTF-8 text"))
    })?;
    from_str(text, origin)
}

/// Reads `text`; `origin` is the name that errors give it.
///
/// # Errors
/// [`ConfigError::Refused`].
pub fn from_str<T: DeserializeOwned>(text: &str, origin: &Path) -> Result<T, ConfigError> {
    let mut track = Track::new();
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |yaml| {
        Option::<T>::deserialize(Deserializer::new(yaml, &mut track))
    });
    match read {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(ConfigError::refused(origin, " the file is empty")),
        Err(error) => Err(invalid(&error, &track.path(), text, origin)),
    }
}

/// Deepest nesting, in levels of lists and mappings.
const MAX_DEPTH: usize = 64;

/// Values that aliases may stand for, all together.
const MAX_ALIASED_VALUES: usize = 100_000;

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_recorded_anchor_events: MAX_ALIASED_VALUES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_VALUES,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn invalid(error: &Error, path: &KeyPath, text: &str, origin: &Path) -> ConfigError {
    let at = error.location().unwrap_or(Location::UNKNOWN);
    let (line, column) = (at.line().max(1), at.column().max(1));
    let (key, message) = (key(path), message(error, text));
    let what = format!("{line}:{column}: {}{message}", Prefix(&key));
    ConfigError::refused(origin, what)
}

/// The text of `error` without its place. The mistakes that people make most often are put in an
/// operator's terms, with the value that was found, instead of Rust's.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library has a text for each of the others"
)]
fn message(error: &Error, text: &str) -> String {
    match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key `{key}`"),
        Error::InvalidBooleanStrict { location } => expected("bool", text, *location),
        Error::InvalidScalar { ty, location } => expected(ty, text, *location),
        Error::NullIntoString { location } => expected("text", text, *location),
        Error::SerdeMissingField { field, .. } => format!("missing key `{field}`"),
        Error::SerdeUnknownField {
            field, expected, ..
        } => format!("unknown key `{field}`, expected {}", one_of(expected)),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => format!("unknown value `{variant}`, expected {}", one_of(expected)),
        Error::Unexpected {
            expected: what,
            location,
        } => expected(what, text, *location),
        other => UserMessageFormatter.format_message(other).into_owned(),
    }
}

/// `expected a whole number from 0 to 65535, found `many``.
fn expected(what: &str, text: &str, at: Location) -> String {
    let what = match what {
        "bool" => "`true` or `false`",
        "f32" | "f64" => "a number",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "mapping" | "mapping start" => "a mapping",
        "sequence" | "sequence start" => "a list",
        "string scalar" => "text",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0",
        other => other,
    };
    let span = at.span();
    let found = span
        .byte_offset()
        .zip(span.byte_len())
        .and_then(|(start, len)| {
            let start = usize::try_from(start).ok()?;
            text.get(start..start.checked_add(usize::try_from(len).ok()?)?)
        });
    match found.map(str::trim) {
        None => format!("expected {what}"),
        Some("") => format!("expected {what}, found nothing"),
        Some("[") => format!("expected {what}, found a list"),
        Some("{") => format!("expected {what}, found a mapping"),
        Some(found) => format!("expected {what}, found `{found}`"),
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing here".to_owned(),
        [only] => format!("`{only}`"),
        several => format!("one of `{}`", several.join("`, `")),
    }
}

/// The path of the value at fault, such as `listeners[0].address`; empty at the top of the file.
fn key(path: &KeyPath) -> String {
    let path = path.to_string();
    // A key that could not be read itself is `?` there, and the top of the file is `.`.
    let known = path.strip_suffix('?').unwrap_or(&path);
    known.strip_suffix('.').unwrap_or(known).to_owned()
}

/// Returns `value` as YAML with a closing newline, in which text is quoted wherever YAML 1.1, which
/// kubectl reads, or 1.2 might take it for something else.
///
/// # Errors
/// When `value` has no such form.
pub fn to_string(value: &impl Serialize) -> Result<String, serde_saphyr::SerializeError> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: false,
    };
    serde_saphyr::to_string_with_options(value, options)
}

#[cfg(test)]
mod tests;
