//! Reads certificates and keys in PEM, from files or from secrets that were delivered.
//!
//! Reading ([`Content`]) and parsing ([`chain`], [`roots`], [`certified_key`]) are separate, so that
//! what is the same as before is not parsed again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use zeroize::Zeroizing;

use crate::error::TlsError;
use crate::secret::{Part, SecretStore};

/// Where a piece of TLS settings comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// A PEM file.
    File(PathBuf),
    /// The authorities of the secret of this name.
    Secret(Arc<str>),
}

/// Where a certificate with its chain and its key come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeyPair {
    /// Two PEM files.
    Files {
        /// The certificate, followed by its chain.
        cert: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// The secret of this name.
    Secret(Arc<str>),
}

/// One piece to be read.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    File(PathBuf),
    Secret(Arc<str>, Part),
}

impl From<Origin> for Piece {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::File(path) => Self::File(path),
            Origin::Secret(name) => Self::Secret(name, Part::Authorities),
        }
    }
}

impl From<KeyPair> for [Piece; 2] {
    fn from(pair: KeyPair) -> Self {
        match pair {
            KeyPair::Files { cert, key } => [Piece::File(cert), Piece::File(key)],
            KeyPair::Secret(name) => {
                let cert = Piece::Secret(Arc::clone(&name), Part::Certificate);
                [cert, Piece::Secret(name, Part::Key)]
            }
        }
    }
}

impl Piece {
    pub(crate) fn read(&self, secrets: &SecretStore) -> Result<Content, TlsError> {
        match self {
            Self::File(path) => Content::read(path),
            Self::Secret(name, part) => secrets.part(name, *part),
        }
    }
}

/// What a piece holds, and the name by which errors call it. The bytes are wiped when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) path: PathBuf,
    bytes: Arc<Zeroizing<Vec<u8>>>,
    digest: [u8; SHA256_OUTPUT_LEN],
}

impl Content {
    pub(crate) fn new(path: PathBuf, bytes: Zeroizing<Vec<u8>>) -> Self {
        let mut digest = [0; SHA256_OUTPUT_LEN];
        digest.copy_from_slice(ring::digest::digest(&SHA256, &bytes).as_ref());
        let bytes = Arc::new(bytes);
        Self {
            path,
            bytes,
            digest,
        }
    }

    /// What tells it from others, once its bytes are gone.
    pub(crate) fn digest(&self) -> [u8; SHA256_OUTPUT_LEN] {
        self.digest
    }

    pub(crate) fn read(path: &Path) -> Result<Self, TlsError> {
        let path = path.to_owned();
        let read = || {
            let file = File::open(&path)?;
            // As long as the file, since a vector that grows leaves copies behind that are not wiped.
            let len = file.metadata()?.len().min(MAX_BYTES);
            let mut bytes = Zeroizing::new(Vec::new());
            bytes.reserve_exact(usize::try_from(len).unwrap_or(0) + 1);
            file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => Err(TlsError::TooLong(path, MAX_BYTES)),
            Ok(bytes) => Ok(Self::new(path, bytes)),
            Err(source) => Err(TlsError::Read(path, source)),
        }
    }
}

/// A bundle of some 700 authorities with large keys; the public web's has about 150.
const MAX_BYTES: u64 = 1024 * 1024;

/// Returns the one cryptography of the workspace.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads all certificates of a file, of which there is at least one.
pub(crate) fn chain(file: &Content) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certs = CertificateDer::pem_slice_iter(&file.bytes).collect::<Result<Vec<_>, _>>();
    let certs = certs.map_err(|source| broken(file, source))?;
    if certs.is_empty() {
        return Err(TlsError::NoCertificate(file.path.clone()));
    }
    Ok(certs)
}

/// Reads the file of a CA bundle, at most 1 MiB.
///
/// # Errors
/// What is wrong with it: a bundle is taken whole or not at all.
pub fn load_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    roots(&Content::read(path)?)
}

/// Reads the authorities of a bundle: all of them, or none when one is broken, because a rotation
/// that silently trusts half of what was written is noticed too late.
pub(crate) fn roots(file: &Content) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for (index, cert) in chain(file)?.into_iter().enumerate() {
        roots
            .add(cert)
            .map_err(|error| TlsError::Authority(file.path.clone(), index + 1, error))?;
    }
    Ok(roots)
}

/// Leaves out the line at fault, which is a whole key where line breaks were lost.
fn broken(file: &Content, source: pem::Error) -> TlsError {
    let line = b"(left out)".to_vec();
    let source = if matches!(source, pem::Error::IllegalSectionStart { .. }) {
        pem::Error::IllegalSectionStart { line }
    } else if matches!(source, pem::Error::MissingSectionEnd { .. }) {
        let end_marker = line;
        pem::Error::MissingSectionEnd { end_marker }
    } else {
        source
    };
    TlsError::Pem(file.path.clone(), source)
}

/// Reads a certificate with its chain and the key that belongs to it.
pub(crate) fn certified_key(cert: &Content, key: &Content) -> Result<CertifiedKey, TlsError> {
    let chain = chain(cert)?;
    let der = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|source| {
        if matches!(source, pem::Error::NoItemsFound) {
            return TlsError::NoKey(key.path.clone());
        }
        broken(key, source)
    })?;
    let signer = provider().key_provider.load_private_key(der);
    let signer = signer.map_err(|source| TlsError::Key(key.path.clone(), source))?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        // Unknown: the key does not expose its public half, which is no mismatch.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::KeyMismatch {
            cert: cert.path.clone(),
            key: key.path.clone(),
        }),
        Err(source) => Err(TlsError::Certificate(cert.path.clone(), source)),
    }
}
