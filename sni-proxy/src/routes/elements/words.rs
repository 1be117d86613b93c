//! A text of a JSON file, borrowed from the file unless it is written with escapes.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A text of the file; of very many, hardly one needs memory of its own.
#[derive(Debug)]
pub(super) struct Words<'t>(Cow<'t, str>);

impl<'t> Words<'t> {
    /// Returns the text where it stands in the file.
    pub(super) fn borrowed(&self) -> Option<&'t str> {
        match self.0 {
            Cow::Borrowed(text) => Some(text),
            Cow::Owned(_) => None,
        }
    }
}

impl<'t> From<&'t str> for Words<'t> {
    fn from(text: &'t str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl AsRef<str> for Words<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Words<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Words<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Words(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Words(Cow::Owned(text.to_owned())))
    }
}
