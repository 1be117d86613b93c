//! Sizes as people write them: `64KiB`, `1MiB`, or a plain number of bytes.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::{self, ParseError, shown};

/// A number of bytes, written as a whole number with `B`, `KiB`, `MiB` or `GiB`; without a unit
/// it counts bytes.
///
/// ```
/// use settings::ByteSize;
/// assert_eq!("64KiB".parse::<ByteSize>().unwrap().0, 65536);
/// assert_eq!(ByteSize(65536).to_string(), "64KiB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(
    transparent,
    description = "A number of bytes, or a whole number with `B`, `KiB`, `MiB` or `GiB`.",
    extend("examples" = [65536, "64KiB", "1MiB"], "oneOf" = [
        { "type": "integer", "minimum": 0 },
        { "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)?$" }
    ])
)]
pub struct ByteSize(#[schemars(with = "serde_json::Value")] pub u64);

impl ByteSize {
    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes, as far as memory can have so many.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Units with their bytes, large to small.
const UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (digits, bytes) = UNITS
            .iter()
            .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))
            .unwrap_or((text, 1));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            // `64K` is refused too: 64,000 or 65,536?
            return Err(ParseError(format!(
                "`{}` is not a size; write it like `4096`, `64KiB`, `1MiB` or `1GiB`",
                shown(text)
            )));
        }
        let count: Option<u64> = digits.parse().ok();
        let size = count.and_then(|count| count.checked_mul(bytes));
        let too_large = || ParseError(format!("`{}` is more than 64 bits can count", shown(text)));
        size.map(Self).ok_or_else(too_large)
    }
}

/// With the largest unit that keeps it exact; below a KiB the bare number.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in UNITS {
            if bytes > 1 && self.0 > 0 && self.0.is_multiple_of(bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A number when it has no shorter text, so that what was written `0` or `1500` is shown so.
impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == 0 || !self.0.is_multiple_of(1 << 10) {
            return serializer.serialize_u64(self.0);
        }
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize_scalar(deserializer, "a size such as `64KiB`")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        let sizes = [
            ("0", 0),
            ("512B", 512),
            ("64KiB", 1 << 16),
            ("1MiB", 1 << 20),
        ];
        for (text, bytes) in sizes.into_iter().chain([("3GiB", 3 << 30)]) {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        let refusal = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
        for text in ["", "KiB", "64K", "64k", "64KB", "1.5MiB", "-1", "1 MiB"] {
            let expected = format!("`{text}` is not a size; ");
            assert!(refusal(text).starts_with(&expected), "{text}");
        }
        let text = "18446744073709551615KiB";
        let expected = format!("`{text}` is more than 64 bits can count");
        assert_eq!(refusal(text), expected);
    }

    proptest! {
        #[test]
        fn shown_and_read_again_is_the_same(count in any::<u32>(), shift in 0..32_u32) {
            let size = ByteSize(u64::from(count) << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let json = serde_json::to_string(&size).unwrap();
            prop_assert_eq!(serde_json::from_str::<ByteSize>(&json).unwrap(), size);
        }
    }
}
