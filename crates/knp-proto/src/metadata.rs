//! What two ends of a stream can do beyond upstream's protocol, told in gRPC metadata.
//!
//! ```text
//! agent ── knp-ext: window=1,fin=1 ──▶ server       what the agent can do
//! agent ◀─ knp-ext: window=1,fin=1 ─── server       what both can do, in effect from here on
//! ```
//!
//! Upstream's programs neither send nor echo the key, so nothing is in effect with them.

use std::fmt;

/// The metadata key, lower case as HTTP/2 has it.
pub const EXTENSION_KEY: &str = "knp-ext";

/// A set of extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Credit windows, version 1: CREDIT packets.
    pub window: bool,
    /// Half-close, version 1: FIN packets.
    pub fin: bool,
}

impl Extensions {
    /// What is implemented here.
    pub const ALL: Self = Self {
        window: true,
        fin: true,
    };

    /// Reads a value of the key: `name=version` separated by commas. What is not known, in name
    /// or version, is left out, so there is nothing to fail.
    #[must_use]
    pub fn parse(value: &str) -> Self {
        let mut extensions = Self::default();
        for item in value.split(',') {
            match item.trim() {
                "window=1" => extensions.window = true,
                "fin=1" => extensions.fin = true,
                _ => {}
            }
        }
        extensions
    }

    /// Returns what is in both sets: what a server echoes, and what an agent relies on of that.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            window: self.window && other.window,
            fin: self.fin && other.fin,
        }
    }

    /// Returns whether there is nothing to send.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Prints the value of the key.
impl fmt::Display for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.window, self.fin) {
            (true, true) => "window=1,fin=1",
            (true, false) => "window=1",
            (false, true) => "fin=1",
            (false, false) => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_reads() {
        for (window, fin) in [(false, false), (false, true), (true, false), (true, true)] {
            let extensions = Extensions { window, fin };
            assert_eq!(Extensions::parse(&extensions.to_string()), extensions);
        }
        assert_eq!(Extensions::ALL.to_string(), "window=1,fin=1");
    }

    #[test]
    fn other_versions_and_names_are_left_out() {
        let extensions = Extensions::parse("window=2, fin=1 ,zip=1,,=");
        assert_eq!(extensions.to_string(), "fin=1");
        assert_eq!(Extensions::ALL.common(extensions), extensions);
        assert!(Extensions::parse("").is_empty());
    }
}
