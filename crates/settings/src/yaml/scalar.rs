//! What a scalar means by the core schema of YAML 1.2.2 (section 10.3.2).

use std::borrow::Cow;

use serde::de::Visitor;

use super::fault::Fault;

/// A scalar's text after unquoting and folding.
#[derive(Clone, Debug)]
pub(super) struct Scalar<'a> {
    pub(super) text: Cow<'a, str>,
    /// Not quoted, not a block, and not tagged as text: the schema may read it as something else.
    pub(super) plain: bool,
}

impl Scalar<'_> {
    /// Whether this is nothing: an absent value, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        self.plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// Visits the value that the schema gives the scalar.
    pub(super) fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if !self.plain {
            return self.visit_text(visitor);
        }
        if self.is_null() {
            return visitor.visit_unit();
        }
        match &*self.text {
            "true" | "True" | "TRUE" => return visitor.visit_bool(true),
            "false" | "False" | "FALSE" => return visitor.visit_bool(false),
            _ => {}
        }
        match number(&self.text) {
            Some(Number::Unsigned(value)) => visitor.visit_u64(value),
            Some(Number::Signed(value)) => visitor.visit_i64(value),
            Some(Number::Float(value)) => visitor.visit_f64(value),
            None => self.visit_text(visitor),
        }
    }

    /// Visits the text as it stands.
    pub(super) fn visit_text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.text {
            Cow::Borrowed(text) => visitor.visit_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Number {
    Float(f64),
    Signed(i64),
    Unsigned(u64),
}

fn number(text: &str) -> Option<Number> {
    let first = *text.as_bytes().first()?;
    if !(first.is_ascii_digit() || matches!(first, b'-' | b'+' | b'.')) {
        return None;
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if is_digits(unsigned) {
        // Beyond 64 bits a number is still a number, only not a whole one any more.
        return if text.starts_with('-') {
            text.parse()
                .map(Number::Signed)
                .or_else(|_| text.parse().map(Number::Float))
                .ok()
        } else {
            unsigned
                .parse()
                .map(Number::Unsigned)
                .or_else(|_| text.parse().map(Number::Float))
                .ok()
        };
    }
    match unsigned {
        ".inf" | ".Inf" | ".INF" => {
            let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
            return Some(Number::Float(sign * f64::INFINITY));
        }
        ".nan" | ".NaN" | ".NAN" if unsigned.len() == text.len() => {
            return Some(Number::Float(f64::NAN));
        }
        _ => {}
    }
    is_float(unsigned)
        .then(|| text.parse().ok().map(Number::Float))
        .flatten()
}

/// `digits` in `radix`, without the sign that `from_str_radix` would take.
fn radix(digits: &str, radix: u32) -> Option<Number> {
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(digits, radix)
        .ok()
        .map(Number::Unsigned)
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let exponent = exponent.map(|e| e.strip_prefix(['-', '+']).unwrap_or(e));
    if !exponent.is_none_or(is_digits) {
        return false;
    }
    match mantissa.split_once('.') {
        Some(("", fraction)) => is_digits(fraction),
        Some((whole, fraction)) => is_digits(whole) && (fraction.is_empty() || is_digits(fraction)),
        None => is_digits(mantissa),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_core_schema_s() {
        assert_eq!(number("012"), Some(Number::Unsigned(12)));
        assert_eq!(number("+7"), Some(Number::Unsigned(7)));
        assert_eq!(number("-7"), Some(Number::Signed(-7)));
        assert_eq!(number("0x1F"), Some(Number::Unsigned(31)));
        assert_eq!(number("0o17"), Some(Number::Unsigned(15)));
        assert_eq!(number("1e3"), Some(Number::Float(1000.0)));
        assert_eq!(number("-.5"), Some(Number::Float(-0.5)));
        assert_eq!(number("3."), Some(Number::Float(3.0)));
        assert_eq!(number("-.inf"), Some(Number::Float(f64::NEG_INFINITY)));
        assert_eq!(
            number("18446744073709551616"),
            Some(Number::Float(18_446_744_073_709_551_616.0))
        );
    }

    #[test]
    fn what_only_looks_like_a_number_is_a_word() {
        for word in [
            "1_000",
            "0b1",
            "0x",
            "0xg",
            "0x+1",
            "10s",
            "1.2.3.4",
            "-",
            "+",
            ".",
            "e3",
            "1e",
            "12:30",
            "+.nan",
            "inf",
            "nan",
            "-infinity",
        ] {
            assert_eq!(number(word), None, "{word}");
        }
    }
}
