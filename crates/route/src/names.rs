//! Server names: their rules, and the table that finds the most specific route for one.

use std::borrow::Cow;
use std::sync::Arc;

use crate::route::Route;
use crate::tables::RouteMap;

/// Bytes of the longest host name in text, without a trailing dot (RFC 1035 §2.3.4: 255 on the
/// wire, of which the first length byte and the root are no text).
pub(crate) const MAX_NAME_LEN: usize = 253;

/// Bytes of the longest label (RFC 1035 §2.3.4).
const MAX_LABEL_LEN: usize = 63;

/// The pattern that stands for every unknown or absent name.
const CATCH_ALL: &str = "*";

/// Why a name is no host name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostNameError {
    /// A label has a character that host names have not.
    #[error("a host name has letters, digits, hyphens and underscores only")]
    Character,
    /// The name or one of its labels has no characters.
    #[error("a host name has no empty labels")]
    EmptyLabel,
    /// A label is longer than 63 bytes.
    #[error("a label is longer than 63 bytes")]
    LongLabel,
    /// The name is longer than 253 bytes.
    #[error("a host name is at most 253 bytes long")]
    LongName,
    /// The last label is a number, which only IP addresses have.
    #[error("an IP address, or the like of one, is no host name")]
    Number,
    /// A `*` stands elsewhere than alone or as the first label.
    #[error("a wildcard is `*` alone or as the whole first label, as in *.example.com")]
    Wildcard,
}

/// Tells what is wrong with a host name; one trailing dot is allowed.
pub(crate) fn check_host_name(name: &str) -> Result<(), HostNameError> {
    has_capitals(name).map(drop)
}

/// As [`check_host_name`], and tells whether a good name has capital letters.
fn has_capitals(name: &str) -> Result<bool, HostNameError> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.len() > MAX_NAME_LEN {
        return Err(HostNameError::LongName);
    }
    // One pass, because tables have very many names.
    let (mut label, mut capitals) = (0, false);
    for byte in name.bytes() {
        match NameByte::OF[usize::from(byte)] {
            NameByte::Dot if label == 0 => return Err(HostNameError::EmptyLabel),
            NameByte::Dot => label = 0,
            NameByte::Other => return Err(HostNameError::Character),
            NameByte::Capital | NameByte::Plain if label == MAX_LABEL_LEN => {
                return Err(HostNameError::LongLabel);
            }
            own @ (NameByte::Capital | NameByte::Plain) => {
                capitals |= own == NameByte::Capital;
                label += 1;
            }
        }
    }
    if label == 0 {
        return Err(HostNameError::EmptyLabel);
    }
    // RFC 3696 §2: top-level domains are not all-numeric, which tells names from addresses.
    let mut last = name.bytes().rev().take(label);
    if last.all(|byte| byte.is_ascii_digit()) {
        return Err(HostNameError::Number);
    }
    Ok(capitals)
}

/// What a byte is in a host name.
#[derive(Clone, Copy, Eq, PartialEq)]
enum NameByte {
    /// A letter in upper case.
    Capital,
    /// Between two labels.
    Dot,
    /// Nothing that host names have.
    Other,
    /// Anything else in a label.
    Plain,
}

impl NameByte {
    const OF: [Self; 256] = {
        let mut of = [Self::Other; 256];
        let mut byte = 0_u8;
        while byte < u8::MAX {
            of[byte as usize] = match byte {
                b'A'..=b'Z' => Self::Capital,
                b'.' => Self::Dot,
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => Self::Plain,
                _ => Self::Other,
            };
            byte += 1;
        }
        of
    };
}

/// Returns a server name of a route, `a.example.com`, `*.example.com` or `*`, in the form in which
/// names are compared: lower case, no trailing dot.
///
/// # Errors
/// Why it is none of these.
pub fn normal_pattern(pattern: &str) -> Result<String, HostNameError> {
    normal_form(pattern).map(Cow::into_owned)
}

/// As [`normal_pattern`], and borrows what is normal already.
pub(crate) fn normal_form(pattern: &str) -> Result<Cow<'_, str>, HostNameError> {
    if pattern == CATCH_ALL {
        return Ok(Cow::Borrowed(pattern));
    }
    let rest = pattern.strip_prefix("*.").unwrap_or(pattern);
    let capitals = has_capitals(rest).map_err(|why| {
        if rest.contains('*') {
            HostNameError::Wildcard
        } else {
            why
        }
    })?;
    let normal = pattern.strip_suffix('.').unwrap_or(pattern);
    if normal.len() > MAX_NAME_LEN {
        return Err(HostNameError::LongName);
    }
    Ok(if capitals {
        Cow::Owned(normal.to_ascii_lowercase())
    } else {
        Cow::Borrowed(normal)
    })
}

/// Tells whether `normal`, a normal pattern, is the normal form of `pattern`.
pub(crate) fn is_normal_of(normal: &str, pattern: &str) -> bool {
    let named = || normal.eq_ignore_ascii_case(pattern.strip_suffix('.').unwrap_or(pattern));
    normal == pattern || (normal != CATCH_ALL && named())
}

/// Routes by server name.
///
/// Exact names, wildcards and the catch-all live in one map under their own text, so a name is
/// stored once. `depths` tells how many labels the wildcards' suffixes have, so a lookup probes the
/// map once for the name, at most once per such depth, and once for the catch-all, however many
/// names there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    routes: RouteMap<Arc<str>>,
    /// Bit n is set when a wildcard has n labels behind its `*.`; 253 bytes hold at most 127.
    depths: u128,
}

impl NameTable {
    /// Adds a normal pattern, or replaces its route.
    pub(crate) fn insert(&mut self, pattern: &Arc<str>, route: Arc<Route>) {
        self.routes.insert(Arc::clone(pattern), route);
        if let Some(suffix) = pattern.strip_prefix("*.") {
            self.depths |= depth_bit(labels(suffix.as_bytes()));
        }
    }

    /// Returns the route of exactly this normal pattern.
    pub(crate) fn exact(&self, pattern: &str) -> Option<&Arc<Route>> {
        self.routes.get(pattern)
    }

    /// Returns the route of the most specific pattern that matches a name from the wire, of those
    /// that are `fit`.
    pub(crate) fn find(
        &self,
        name: Option<&str>,
        fit: impl Fn(&Route) -> bool,
    ) -> Option<&Arc<Route>> {
        name.and_then(|name| self.find_named(name, &fit))
            .or_else(|| self.probe(CATCH_ALL.as_bytes(), &fit))
    }

    fn find_named(&self, name: &str, fit: impl Fn(&Route) -> bool) -> Option<&Arc<Route>> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut buf = [0_u8; MAX_NAME_LEN];
        let key = buf.get_mut(..name.len())?;
        key.copy_from_slice(name.as_bytes());
        key.make_ascii_lowercase();
        if let Some(route) = self.probe(key, &fit) {
            return Some(route);
        }
        if self.depths == 0 {
            return None;
        }
        let mut left = labels(key);
        for dot in 0..key.len() {
            if key[dot] != b'.' {
                continue;
            }
            left -= 1;
            // Something must stand before the dot. It is cut to `*`, which no later probe reads.
            if dot > 0 && self.depths & depth_bit(left) != 0 {
                key[dot - 1] = b'*';
                if let Some(route) = self.probe(&key[dot - 1..], &fit) {
                    return Some(route);
                }
            }
        }
        None
    }

    fn probe(&self, key: &[u8], fit: impl Fn(&Route) -> bool) -> Option<&Arc<Route>> {
        // A name that is cut inside a character matches no pattern: those are ASCII.
        let route = self.routes.get(std::str::from_utf8(key).ok()?)?;
        fit(route).then_some(route)
    }
}

fn labels(name: &[u8]) -> usize {
    1 + name.iter().filter(|byte| **byte == b'.').count()
}

fn depth_bit(labels: usize) -> u128 {
    u32::try_from(labels)
        .ok()
        .and_then(|labels| 1_u128.checked_shl(labels))
        .unwrap_or(0)
}
