//! Reads certificates and keys from PEM files.
//!
//! Reading ([`Content`]) and parsing ([`chain`], [`roots`], [`certified_key`]) are separate, so that
//! files whose bytes are the same as before are not parsed again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use crate::error::TlsError;

/// A file's name and what is in it.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Content {
    pub(crate) path: PathBuf,
    bytes: Vec<u8>,
}

impl Content {
    pub(crate) fn read(path: &Path) -> Result<Self, TlsError> {
        let path = path.to_owned();
        let mut bytes = Vec::new();
        let read = File::open(&path);
        match read.and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)) {
            Ok(len) if len as u64 > MAX_BYTES => Err(TlsError::TooLong(path, MAX_BYTES)),
            Ok(_) => Ok(Self { path, bytes }),
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
    let certs = certs.map_err(|source| TlsError::Pem(file.path.clone(), source))?;
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

/// Reads a certificate with its chain and the key that belongs to it.
pub(crate) fn certified_key(cert: &Content, key: &Content) -> Result<CertifiedKey, TlsError> {
    let chain = chain(cert)?;
    let der = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|source| {
        if matches!(source, pem::Error::NoItemsFound) {
            return TlsError::NoKey(key.path.clone());
        }
        TlsError::Pem(key.path.clone(), source)
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
