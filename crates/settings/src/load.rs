//! From a file to a configuration that needs no further checking.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::{ConfigError, ConfigErrors, yaml};

/// A configuration file as one struct: what serde reads is what the program uses.
pub trait Validate: Sized {
    /// Adds to `errors` what serde cannot see, and works out what depends on several keys or on
    /// `origin`, the file that relative paths start from.
    fn validate(&mut self, origin: &Path, errors: &mut ConfigErrors);

    /// Returns the file validated.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] with everything that is wrong.
    fn validated(mut self, origin: &Path) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        self.validate(origin, &mut errors);
        errors.into_result(origin)?;
        Ok(self)
    }
}

/// Reads and validates the configuration file at `path`.
///
/// # Errors
/// What is wrong, with file, line or key.
pub fn load<T: DeserializeOwned + Validate>(path: &Path) -> Result<T, ConfigError> {
    yaml::load::<T>(path)?.validated(path)
}

/// As [`load`], from text; `origin` is the file that relative paths start from.
///
/// # Errors
/// What is wrong, with file, line or key.
pub fn from_text<T: DeserializeOwned + Validate>(
    text: &str,
    origin: &Path,
) -> Result<T, ConfigError> {
    yaml::from_str::<T>(text, origin)?.validated(origin)
}
