//! A bundle of certificate authorities, and whether they vouch for a certificate.
//!
//! ```text
//!   ca.crt ──read──▶ certificates ──▶ roots ──▶ vouch_for(chain, now)
//!                                       └─▶ prints: whose keys these are, for comparing bundles
//! ```
//!
//! Accepts a bundle whole or not at all: a rotation that silently trusts half of what was written is
//! found out too late. Knows nothing of names and tenants.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tls::TlsError;

use crate::api_server::{MAX_FILE_BYTES, read_limited};

/// Returns the one cryptography of the workspace.
pub(super) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    &PROVIDER
}

/// What tells one authority from another: SHA-256 of its subject and public key. A certificate
/// that was issued anew for the same name and key vouches for the same peers, so it is the same.
pub(super) type Print = [u8; 32];

/// Authorities of client certificates, at least one.
#[derive(Debug)]
pub(crate) struct Authorities {
    prints: BTreeSet<Print>,
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    /// Reads a bundle of PEM certificates, at most 1 MiB.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn read(path: &Path) -> Result<Self, TlsError> {
        check_regular(path).map_err(|source| TlsError::Read(path.to_owned(), source))?;
        let roots = Arc::new(tls::load_roots(path)?);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider().clone())
                .clear_root_hint_subjects()
                .build()
                .map_err(|source| TlsError::Verifier(path.to_owned(), source))?;
        Ok(Self {
            prints: roots.roots.iter().map(print).collect(),
            roots,
            verifier,
        })
    }

    /// Returns what tells each authority from others.
    pub(super) fn prints(&self) -> &BTreeSet<Print> {
        &self.prints
    }

    /// Whether one authority is in both bundles.
    pub(super) fn shares_one_with(&self, other: &Self) -> bool {
        !self.prints.is_disjoint(&other.prints)
    }

    /// Verifies a client's chain at `now`.
    ///
    /// # Errors
    /// Why none of the authorities vouches for it.
    pub(super) fn vouch_for(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        self.verifier
            .verify_client_cert(leaf, intermediates, now)
            .map(|_| ())
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots
    }
}

impl Eq for Authorities {}

fn print(anchor: &TrustAnchor<'_>) -> Print {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    // The length keeps a subject's end from passing for a key's beginning.
    context.update(&anchor.subject.len().to_be_bytes());
    context.update(&anchor.subject);
    context.update(&anchor.subject_public_key_info);
    context.finish().as_ref().try_into().unwrap_or_default()
}

/// Returns SHA-256 of `content`.
pub(super) fn digest(content: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref().try_into().unwrap_or_default()
}

/// Reads a regular file of at most 1 MiB.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    check_regular(path)?;
    read_limited(path, MAX_FILE_BYTES)
}

/// Refuses what is no regular file before it is opened: opening a pipe would wait for a writer.
fn check_regular(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_file() {
        return Ok(());
    }
    let kind = io::ErrorKind::InvalidInput;
    Err(io::Error::new(kind, "not a regular file"))
}
