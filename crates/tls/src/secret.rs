//! Secrets that were delivered by name, as Envoy's secret discovery (SDS) does, in memory alone.
//!
//! Nothing of a secret is shown by `Debug`, and its bytes are wiped when it is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use telemetry::lock;
use zeroize::Zeroizing;

use crate::error::TlsError;
use crate::files::{self, Content};
use crate::terminating::valid_pair;

/// A certificate with its key, or authorities; PEM.
#[derive(Clone)]
pub enum Secret {
    /// Authorities, any of which is accepted.
    Authorities(Bytes),
    /// A certificate with its chain, and its key.
    KeyPair {
        /// The certificate, followed by its chain.
        certificate: Bytes,
        /// The private key.
        key: Bytes,
    },
}

/// Bytes of a secret.
#[derive(Clone)]
pub struct Bytes(Content);

/// A part of a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Authorities,
    Certificate,
    Key,
}

impl Secret {
    /// Wraps authorities; `name` is what errors call it.
    #[must_use]
    pub fn authorities(name: &str, pem: Vec<u8>) -> Self {
        Self::Authorities(bytes(name, "trusted_ca", Zeroizing::new(pem)))
    }

    /// Wraps a certificate and its key; `name` is what errors call it.
    #[must_use]
    pub fn key_pair(name: &str, certificate: Vec<u8>, key: Zeroizing<Vec<u8>>) -> Self {
        Self::KeyPair {
            certificate: bytes(name, "certificate_chain", Zeroizing::new(certificate)),
            key: bytes(name, "private_key", key),
        }
    }

    /// Checks that it can be used today.
    ///
    /// # Errors
    /// What is wrong, and in which part of it.
    pub fn check(&self) -> Result<(), TlsError> {
        match self {
            Self::Authorities(Bytes(pem)) => files::roots(pem).map(drop),
            Self::KeyPair { certificate, key } => valid_pair(&certificate.0, &key.0).map(drop),
        }
    }

    fn part(&self, part: Part) -> Option<&Bytes> {
        match (self, part) {
            (Self::Authorities(pem), Part::Authorities) => Some(pem),
            (Self::KeyPair { certificate, .. }, Part::Certificate) => Some(certificate),
            (Self::KeyPair { key, .. }, Part::Key) => Some(key),
            (Self::Authorities(_), Part::Certificate | Part::Key)
            | (Self::KeyPair { .. }, Part::Authorities) => None,
        }
    }
}

fn bytes(name: &str, part: &str, bytes: Zeroizing<Vec<u8>>) -> Bytes {
    Bytes(Content::new(
        PathBuf::from(format!("secret {name}, {part}")),
        bytes,
    ))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Authorities(_) => "Authorities(..)",
            Self::KeyPair { .. } => "KeyPair(..)",
        })
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// Secrets by name.
pub type Secrets = BTreeMap<Arc<str>, Arc<Secret>>;

/// The secrets that there are now. Clones are the same.
#[derive(Clone, Default)]
pub struct SecretStore(Arc<Mutex<Secrets>>);

impl SecretStore {
    /// Puts secrets in place of those before.
    pub fn replace(&self, secrets: Secrets) {
        *lock(&self.0) = secrets;
    }

    pub(crate) fn part(&self, name: &str, part: Part) -> Result<Content, TlsError> {
        let secret = lock(&self.0).get(name).cloned();
        let secret = secret.ok_or_else(|| TlsError::Missing(name.to_owned()))?;
        let found = secret.part(part).map(|bytes| bytes.0.clone());
        found.ok_or_else(|| TlsError::OtherKind(name.to_owned()))
    }
}

impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets = lock(&self.0);
        f.debug_set().entries(secrets.keys()).finish()
    }
}
