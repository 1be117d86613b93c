//! What a header or a server name must be, as Envoy's matchers say it.

use serde_json::Value;

use super::{ClusterName, Patterns, ValuePattern};

/// Headers that name the destination of CONNECT requests.
const HEADERS: [&str; 2] = ["x-gardener-destination", "reversed-vpn"];

/// What a text must be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Matcher {
    Any,
    Contains(String),
    Exact(String),
    Pattern(ValuePattern),
    Prefix(String),
    Suffix(String),
}

impl Matcher {
    /// Reads a `StringMatcher`.
    pub(super) fn string(message: &Value, patterns: &Patterns) -> Result<Self, String> {
        if message
            .get("ignore_case")
            .is_some_and(|ignore| *ignore != false)
        {
            return Err("a match that ignores case".to_owned());
        }
        Self::of(message, "", patterns)
            .ok_or_else(|| "a match of a text that is not known".to_owned())?
    }

    /// Reads a `HeaderMatcher` of a header that names a destination, and returns whether it must
    /// not match.
    pub(super) fn header(message: &Value, patterns: &Patterns) -> Result<(Self, bool), String> {
        let name = message["name"].as_str().unwrap_or_default();
        if !HEADERS.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            return Err(format!("the header {name:?}"));
        }
        let inverted = message["invert_match"].as_bool().unwrap_or_default();
        if let Some(present) = message["present_match"].as_bool() {
            return Ok((Self::Any, inverted == present));
        }
        let matcher = match message.get("string_match") {
            Some(matcher) => Self::string(matcher, patterns)?,
            None if message.get("range_match").is_some() => {
                return Err("a header that is a number".to_owned());
            }
            None => Self::of(message, "_match", patterns).unwrap_or(Ok(Self::Any))?,
        };
        Ok((matcher, inverted))
    }

    /// Reads the one of the fields, all with this ending, that is there.
    pub(super) fn of(
        message: &Value,
        ending: &str,
        patterns: &Patterns,
    ) -> Option<Result<Self, String>> {
        if let Some(regex) = message[format!("safe_regex{ending}")]["regex"].as_str() {
            return Some(patterns.compile(regex).map(Self::Pattern));
        }
        let kinds = [
            ("exact", Self::Exact as fn(String) -> Self),
            ("prefix", Self::Prefix),
            ("suffix", Self::Suffix),
            ("contains", Self::Contains),
        ];
        kinds.into_iter().find_map(|(name, made)| {
            let text = message[format!("{name}{ending}")].as_str()?;
            Some(Ok(made(text.to_owned())))
        })
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Contains(part) => text.contains(part),
            Self::Exact(exact) => text == exact,
            Self::Pattern(pattern) => pattern.matches(text),
            Self::Prefix(prefix) => text.starts_with(prefix),
            Self::Suffix(suffix) => text.ends_with(suffix),
        }
    }

    /// Returns whether all names that a pattern of server names stands for are so; an error when
    /// some are.
    pub(super) fn matches_names(&self, pattern: &str) -> Result<bool, String> {
        let Some(tail) = pattern.strip_prefix('*') else {
            return Ok(self.matches(pattern));
        };
        let some = || Err(format!("it concerns some of the names of {pattern:?} only"));
        match self {
            Self::Any => Ok(true),
            Self::Contains(part) if tail.contains(part) => Ok(true),
            Self::Exact(exact) if !exact.ends_with(tail) => Ok(false),
            Self::Suffix(suffix) if tail.ends_with(suffix) => Ok(true),
            Self::Suffix(suffix) if !suffix.ends_with(tail) => Ok(false),
            Self::Contains(_)
            | Self::Exact(_)
            | Self::Pattern(_)
            | Self::Prefix(_)
            | Self::Suffix(_) => some(),
        }
    }

    /// Returns the namespace that the match spells out, and whether values of no other match:
    /// `.name.`, the whole name of a cluster, or the technical id of a shoot.
    pub(super) fn namespace(&self) -> Option<(String, bool)> {
        match self {
            Self::Contains(part) => {
                let inner = part
                    .strip_prefix('.')
                    .and_then(|rest| rest.strip_suffix('.'));
                let name = inner.unwrap_or(part);
                let shoot = name.starts_with("shoot-");
                let known = inner.is_some() || shoot;
                (known && is_label(name)).then(|| (name.to_owned(), inner.is_some()))
            }
            Self::Exact(exact) => {
                let cluster = ClusterName::parse(exact)?;
                Some((cluster.service.namespace.to_string(), true))
            }
            Self::Any | Self::Pattern(_) | Self::Prefix(_) | Self::Suffix(_) => None,
        }
    }
}

/// Returns whether a text may be a namespace's name; the other parts of clusters' names are none
/// here.
fn is_label(text: &str) -> bool {
    let byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(byte) && !matches!(text, "svc" | "cluster" | "local")
}
