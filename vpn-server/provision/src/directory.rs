//! Manifests in files, one object each, to be applied by kubectl, kustomize or Gardener.
//!
//! ```text
//!   DIR/seed/secret-vpn-provision.yaml ─▶ State          Objects ─▶ DIR/seed/…, DIR/shoot/…
//! ```
//!
//! Files are for their owner alone, and replaced whole. One run at a time: there is nothing here
//! that two could agree by.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Secret;
use settings::{ConfigError, yaml};

use super::manifest;
use super::render::{Annotated, SecretObject};
use super::store::{Change, StoreError};

/// A directory of manifests.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads a Secret that was written before, if it was.
    pub(super) fn secret(&self, name: &str) -> Result<Option<Secret>, StoreError> {
        let path = self.path.join(secret_file(name));
        match yaml::load(&path) {
            Ok(secret) => Ok(Some(secret)),
            Err(ConfigError::Read(_, source)) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a Secret.
    pub(super) fn put_secret(&self, object: &SecretObject) -> Result<Change, StoreError> {
        // Objects of maps and texts have a JSON form.
        let value = serde_json::to_value(manifest::secret(object)).unwrap_or_default();
        self.put(&secret_file(&object.name), &manifest::to_yaml(&value))
    }

    /// Writes what is to be applied to a Service.
    pub(super) fn put_service(&self, object: &Annotated) -> Result<Change, StoreError> {
        let text = manifest::to_yaml(&manifest::service(object));
        self.put(&service_file(&object.name), &text)
    }

    /// Returns files of ours that no object is written to any more.
    pub(super) fn obsolete<'a>(
        &self,
        secrets: impl Iterator<Item = &'a str>,
        services: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        let kept: BTreeSet<String> = secrets
            .map(secret_file)
            .chain(services.map(service_file))
            .collect();
        let Ok(entries) = fs::read_dir(&self.path) else {
            return Vec::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let ours = |name: &str| name.starts_with("secret-vpn-") || name.starts_with("service-vpn-");
        let mut names: Vec<String> = names
            .filter_map(|name| name.into_string().ok())
            .filter(|name| ours(name) && !kept.contains(name))
            .map(|name| self.path.join(name).display().to_string())
            .collect();
        names.sort();
        names
    }

    fn put(&self, file: &str, text: &str) -> Result<Change, StoreError> {
        let path = self.path.join(file);
        let change = match fs::read(&path) {
            Ok(there) if there == text.as_bytes() => return Ok(Change::Unchanged),
            Ok(_) => Change::Changed,
            Err(_) => Change::Created,
        };
        let written = self.replace(&path, text);
        written.map_err(|source| StoreError::Write { path, source })?;
        Ok(change)
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut directories = DirBuilder::new();
        directories.recursive(true).mode(0o700).create(&self.path)?;
        let fresh = path.with_extension("fresh");
        // What a killed run left behind may have other permissions.
        let _ = fs::remove_file(&fresh);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    }
}

fn secret_file(name: &str) -> String {
    format!("secret-{name}.yaml")
}

fn service_file(name: &str) -> String {
    format!("service-{name}.yaml")
}
