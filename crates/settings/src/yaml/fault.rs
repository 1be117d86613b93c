//! A refusal on its way out of the reader: what is wrong, where, and under which keys.
//!
//! serde's visitors complain without a place; each level of [`node`](super::node) that such a
//! complaint passes adds what it knows: the innermost one the place, every one its key.

use std::{fmt, path::Path};

use granit_parser::{Marker, ScanError};
use serde::de::{self, Expected, Unexpected};

use crate::ConfigError;

/// Boxed: the success path returns by value at every level and should stay small.
#[derive(Debug)]
pub(super) struct Fault(Box<Details>);

#[derive(Debug)]
struct Details {
    message: String,
    at: Option<Marker>,
    /// Innermost first.
    path: Vec<Step>,
}

/// One level of a key's path.
#[derive(Debug)]
pub(super) enum Step {
    Index(usize),
    Key(String),
}

impl Fault {
    pub(super) fn new(message: impl Into<String>, at: Marker) -> Self {
        Self(Box::new(Details {
            message: message.into(),
            at: Some(at),
            path: Vec::new(),
        }))
    }

    pub(super) fn syntax(error: &ScanError) -> Self {
        Self::new(error.info(), *error.marker())
    }

    /// Gives the place, unless a deeper level already did.
    pub(super) fn or_at(mut self, at: Marker) -> Self {
        self.0.at.get_or_insert(at);
        self
    }

    pub(super) fn under(mut self, step: Step) -> Self {
        self.0.path.push(step);
        self
    }

    pub(super) fn into_config_error(self, origin: &Path) -> ConfigError {
        let Details { message, at, path } = *self.0;
        let at = at.unwrap_or_default();
        let mut key = String::new();
        for step in path.iter().rev() {
            match step {
                Step::Index(index) => key.push_str(&format!("[{index}]")),
                Step::Key(name) if key.is_empty() => key.push_str(name),
                Step::Key(name) => key.push_str(&format!(".{name}")),
            }
        }
        ConfigError::Invalid {
            origin: origin.to_owned(),
            line: at.line().max(1),
            column: at.col() + 1,
            key,
            message,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(Box::new(Details {
            message: message.to_string(),
            at: None,
            path: Vec::new(),
        }))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!(
            "expected {}, found {}",
            in_words(expected),
            name(&found)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!(
            "unknown value `{variant}`, expected {}",
            OneOf(expected)
        ))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!(
            "unknown key `{field}`, expected {}",
            OneOf(expected)
        ))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::custom(format_args!("missing key `{field}`"))
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::custom(format_args!("key `{field}` is given twice"))
    }
}

/// serde names what it expects after Rust's types; an operator knows numbers and lists.
fn in_words(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    let words = match expected.as_str() {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "nonzero usize" => "a whole number from 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" => "text",
        "a sequence" => "a list",
        "a map" => "a mapping",
        _ => return expected,
    };
    words.to_owned()
}

fn name(found: &Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("`{value}`"),
        Unexpected::Signed(value) => format!("`{value}`"),
        Unexpected::Float(value) => format!("`{value}`"),
        Unexpected::Str("") => "empty text".to_owned(),
        Unexpected::Str(value) => format!("`{value}`"),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        Unexpected::Bytes(_)
        | Unexpected::Char(_)
        | Unexpected::Enum
        | Unexpected::NewtypeStruct
        | Unexpected::NewtypeVariant
        | Unexpected::Other(_)
        | Unexpected::StructVariant
        | Unexpected::TupleVariant
        | Unexpected::UnitVariant => found.to_string(),
    }
}

struct OneOf(&'static [&'static str]);

impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("nothing here"),
            [only] => write!(f, "`{only}`"),
            [first, rest @ ..] => {
                write!(f, "one of `{first}`")?;
                rest.iter().try_for_each(|word| write!(f, ", `{word}`"))
            }
        }
    }
}
