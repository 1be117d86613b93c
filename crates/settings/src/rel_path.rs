//! Files that are named in a file.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A path as written in a configuration file; a relative one is meant relative to that file.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(description = "A path, relative to the file that names it.")]
pub struct RelPath(pub PathBuf);

impl RelPath {
    /// Returns the path as seen from the working directory. `base` is the file (not the directory)
    /// that names this path.
    ///
    /// ```
    /// use settings::RelPath;
    /// let ca = RelPath::from("tls/ca.crt");
    /// assert_eq!(ca.resolve("/etc/rhizome/proxy.yaml".as_ref()).to_str(), Some("/etc/rhizome/tls/ca.crt"));
    /// assert_eq!(RelPath::from("/ca.crt").resolve("proxy.yaml".as_ref()).to_str(), Some("/ca.crt"));
    /// ```
    pub fn resolve(&self, base: &Path) -> PathBuf {
        base.parent()
            .map_or_else(|| self.0.clone(), |directory| directory.join(&self.0))
    }

    /// Whether nothing was written; several keys mean "none" by that.
    pub fn is_empty(&self) -> bool {
        self.0.as_os_str().is_empty()
    }
}

impl From<&str> for RelPath {
    fn from(path: &str) -> Self {
        Self(path.into())
    }
}

impl std::fmt::Display for RelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_beside_bare_file_stays_relative() {
        assert_eq!(
            RelPath::from("routes.yaml").resolve("a.yaml".as_ref()),
            Path::new("routes.yaml")
        );
        assert_eq!(
            RelPath::from("../x").resolve("etc/a.yaml".as_ref()),
            Path::new("etc/../x")
        );
    }
}
