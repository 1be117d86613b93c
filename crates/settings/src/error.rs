//! Why a configuration cannot be used, in the words an operator needs: which file, where, which key.
//!
//! [`ConfigError`] is one refusal; [`ConfigErrors`] collects what validation finds, so that one
//! `--check` shows every mistake of a file and not only the first.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// A configuration file that cannot be used.
///
/// The text begins with the file as it was named, then line and column (both from 1) when known,
/// then the key's path from the top of the file: `sni-proxy.yaml:12:3: tcp: unknown key …`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file of this name cannot be read.
    #[error("{0}: reading the file")]
    Read(PathBuf, #[source] io::Error),
    /// What the file of this name says cannot be used: where in it, if known, and what is wrong.
    #[error("{0}:{1}")]
    Refused(PathBuf, String),
}

impl ConfigError {
    pub(crate) fn refused(origin: &Path, what: impl Into<String>) -> Self {
        Self::Refused(origin.to_owned(), what.into())
    }
}

/// What validation found, each with the path of its key, in the order found.
///
/// ```
/// let mut errors = settings::ConfigErrors::new();
/// errors.add("limits.connections", "must not be 0");
/// assert_eq!(
///     errors.into_result("proxy.yaml".as_ref()).unwrap_err().to_string(),
///     "proxy.yaml: limits.connections: must not be 0",
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    entries: Vec<(String, String)>,
}

impl ConfigErrors {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding. `key` is the path from the top of the file, such as `listeners[0].address`,
    /// or empty when the finding is about the file as a whole.
    pub fn add(&mut self, key: impl fmt::Display, message: impl fmt::Display) {
        self.entries.push((key.to_string(), message.to_string()));
    }

    /// Parses each text of the list at `key`, adds what is wrong, and returns the others.
    pub fn parse_each<T, E: fmt::Display>(
        &mut self,
        key: impl fmt::Display,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let mut parsed = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match parse(text) {
                Ok(own) => parsed.push(own),
                Err(error) => self.add(format_args!("{key}[{index}]"), error),
            }
        }
        parsed
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Each finding as key path and message.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .iter()
            .map(|(key, message)| (key.as_str(), message.as_str()))
    }

    /// Turns the findings into an error about `origin`, if there are any.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] when anything was added.
    pub fn into_result(self, origin: &Path) -> Result<(), ConfigError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(ConfigError::refused(origin, format!(" {self}")))
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(key, message)] = self.entries.as_slice() {
            return write!(f, "{}{message}", Prefix(key));
        }
        write!(f, "{} problems", self.entries.len())?;
        for (key, message) in &self.entries {
            write!(f, "\n  {}{message}", Prefix(key))?;
        }
        Ok(())
    }
}

/// `key: `, or nothing for the top of the file.
pub(crate) struct Prefix<'a>(pub(crate) &'a str);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "{}: ", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_listed_one_a_line() {
        let mut errors = ConfigErrors::new();
        assert!(errors.clone().into_result("a.yaml".as_ref()).is_ok());
        errors.add("", "nothing to listen on");
        errors.add("routing.file", "no such file");
        let error = errors.into_result("a.yaml".as_ref()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.yaml: 2 problems\n  nothing to listen on\n  routing.file: no such file"
        );
    }
}
