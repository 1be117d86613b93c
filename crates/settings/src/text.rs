//! Values that a file has as text: `#[serde(with = "settings::text")]` on a field of any type that is
//! parsed and displayed.

use std::{
    fmt::{self, Display},
    marker::PhantomData,
    str::FromStr,
};

use serde::{
    Deserialize, Deserializer, Serializer,
    de::{self, Error},
};

/// Why a text is not a value: what was found, and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);

/// The start of a text for an error: what was pasted by accident may be long.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Writes the text of a value.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Reads a value from its text.
///
/// # Errors
/// What is wrong with the text.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}

/// Reads a value from its text, or from a number as from the text of that; `expected` is the value in
/// words.
pub(crate) fn deserialize_scalar<'de, T, D>(
    deserializer: D,
    expected: &'static str,
) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(Scalar(expected, PhantomData))
}

struct Scalar<T>(&'static str, PhantomData<T>);

impl<T: FromStr<Err: Display>> de::Visitor<'_> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}
