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

/// Returns whether `text` is a label of DNS in lower case (RFC 1123 section 2.1), as names of Kubernetes are.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_label_rejects_invalid_names() {
        for good in ["a", "a-b", "0", "shoot--garden--one", &"a".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
