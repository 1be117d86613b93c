//! What an agent says it can reach: `ipv4=1.2.3.4&host=node-1&default-route=true`.
//!
//! The text is a URL query as Go's `url.ParseQuery` reads it and `Values.Encode` writes it. What
//! the values are good for is decided by the [`Strategy`](crate::Strategy).

use std::fmt;

/// The identifiers of one agent, values as given and in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    /// IPv4 addresses it is meant for.
    pub ipv4: Vec<String>,
    /// IPv6 addresses it is meant for.
    pub ipv6: Vec<String>,
    /// Host names it is meant for.
    pub host: Vec<String>,
    /// Address ranges it is meant for.
    pub cidr: Vec<String>,
    /// Whether it takes what no other is meant for.
    pub default_route: bool,
}

/// Why a text is no list of identifiers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifiersError {
    /// A part between two `&` has `%` without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("invalid URL escape in {0:?}")]
    Escape(String),
    /// A part has `;`, which separated pairs long ago.
    #[error("invalid semicolon separator in {0:?}")]
    Semicolon(String),
    /// More than 256 values.
    #[error("more than {MAX_VALUES} identifiers")]
    TooMany,
    /// A key that means nothing; only for what an operator wrote.
    #[error("unknown identifier {0:?}; known are ipv4, ipv6, host, cidr, default-route")]
    UnknownKey(String),
}

impl Identifiers {
    /// Reads what an agent sent. Keys that mean nothing are ignored, as is a value of
    /// `default-route` that is no truth value; of several the first counts.
    ///
    /// # Errors
    /// [`IdentifiersError::Escape`], [`IdentifiersError::Semicolon`] and
    /// [`IdentifiersError::TooMany`].
    pub fn parse(text: &str) -> Result<Self, IdentifiersError> {
        Self::read(text).map(|(identifiers, _)| identifiers)
    }

    /// Reads what an operator wrote in a flag: like [`Identifiers::parse`], but all keys must be
    /// known.
    ///
    /// # Errors
    /// Those of [`Identifiers::parse`], and [`IdentifiersError::UnknownKey`].
    pub fn parse_flag(text: &str) -> Result<Self, IdentifiersError> {
        match Self::read(text)? {
            (identifiers, None) => Ok(identifiers),
            (_, Some(key)) => Err(IdentifiersError::UnknownKey(key)),
        }
    }

    fn read(text: &str) -> Result<(Self, Option<String>), IdentifiersError> {
        let mut identifiers = Self::default();
        let mut default_route = None;
        let mut unknown = None;
        let parts = text.split('&').filter(|part| !part.is_empty());
        for (count, part) in parts.enumerate() {
            if count == MAX_VALUES {
                return Err(IdentifiersError::TooMany);
            }
            if part.contains(';') {
                return Err(IdentifiersError::Semicolon(part.to_owned()));
            }
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (unescape(key, part)?, unescape(value, part)?);
            match key.as_str() {
                "ipv4" => identifiers.ipv4.push(value),
                "ipv6" => identifiers.ipv6.push(value),
                "host" => identifiers.host.push(value),
                "cidr" => identifiers.cidr.push(value),
                "default-route" => default_route = default_route.or(Some(value)),
                _ => unknown = unknown.or(Some(key)),
            }
        }
        identifiers.default_route = default_route.is_some_and(|value| is_true(&value));
        Ok((identifiers, unknown))
    }

    fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        // By key, as Go does.
        let cidr = self.cidr.iter().map(|value| ("cidr", value.as_str()));
        let route = self.default_route.then_some(("default-route", "true"));
        let host = self.host.iter().map(|value| ("host", value.as_str()));
        let ipv4 = self.ipv4.iter().map(|value| ("ipv4", value.as_str()));
        let ipv6 = self.ipv6.iter().map(|value| ("ipv6", value.as_str()));
        cidr.chain(route).chain(host).chain(ipv4).chain(ipv6)
    }
}

/// Prints the text, sorted by key.
impl fmt::Display for Identifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (key, value)) in self.pairs().enumerate() {
            if number > 0 {
                f.write_str("&")?;
            }
            write!(f, "{key}=")?;
            escape(value, f)?;
        }
        Ok(())
    }
}

/// What Go's `strconv.ParseBool` takes for true.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}

fn unescape(text: &str, part: &str) -> Result<String, IdentifiersError> {
    let error = || IdentifiersError::Escape(part.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = rest.next().and_then(hex).ok_or_else(error)?;
                let low = rest.next().and_then(hex).ok_or_else(error)?;
                high << 4 | low
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| error())
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

fn escape(value: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                write!(f, "{}", char::from(byte))?;
            }
            b' ' => f.write_str("+")?,
            byte => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

/// Most identifiers of one agent; a table entry is kept for each.
pub(crate) const MAX_VALUES: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_agents_send() {
        let text = "ipv4=1.2.3.4&ipv4=5.6.7.8&ipv6=%3A%3A1&host=node-1&cidr=10.0.0.0%2F8\
                    &default-route=true";
        let identifiers = Identifiers::parse(text).unwrap();
        assert_eq!(identifiers.ipv4, ["1.2.3.4", "5.6.7.8"]);
        assert_eq!(identifiers.ipv6, ["::1"]);
        assert_eq!(identifiers.host, ["node-1"]);
        assert_eq!(identifiers.cidr, ["10.0.0.0/8"]);
        assert!(identifiers.default_route);
        assert_eq!(Identifiers::parse("").unwrap(), Identifiers::default());
    }

    #[test]
    fn bad_identifiers_are_ignored_or_refused() {
        let text = "colour=red&default-route=maybe&default-route=true&&host";
        let identifiers = Identifiers::parse(text).unwrap();
        assert_eq!(identifiers.host, [""]);
        assert!(!identifiers.default_route);
        let unknown = IdentifiersError::UnknownKey("colour".to_owned());
        assert_eq!(Identifiers::parse_flag(text), Err(unknown));
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in ["a=1;b=2", "host=%", "host=%4", "host=%zz", "host=%ff"] {
            assert!(Identifiers::parse(text).is_err(), "{text}");
        }
        let many = "host=a&".repeat(MAX_VALUES + 1);
        assert_eq!(Identifiers::parse(&many), Err(IdentifiersError::TooMany));
    }

    proptest! {
        #[test]
        fn prints_what_it_reads(
            host in proptest::collection::vec("\\PC{0,12}", 0..4),
            ipv4 in proptest::collection::vec("[0-9.+ &=;%]{0,12}", 0..4),
            default_route: bool,
        ) {
            let identifiers = Identifiers { host, ipv4, default_route, ..Identifiers::default() };
            let text = identifiers.to_string();
            prop_assert_eq!(Identifiers::parse_flag(&text).unwrap(), identifiers);
        }

        #[test]
        fn any_text_is_an_answer(text in "\\PC*") {
            let _ = Identifiers::parse(&text);
        }
    }
}
