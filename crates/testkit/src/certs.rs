//! A certificate authority for one test, and the certificates it signs.
//!
//! Keys are ECDSA P-256. Everything is PEM text; [`Identity::write`] and [`Authority::write`] put
//! it into files for programs that want paths.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate authority that lives in memory.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The private key, PKCS #8 in PEM.
    pub key_pem: String,
}

/// Where [`Identity::write`] put the two files.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The certificate's file.
    pub cert: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority whose subject is `name`.
    ///
    /// # Errors
    /// When a key cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("making a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params
            .self_signed(&key)
            .context("signing the authority")?
            .pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    /// Returns the authority's certificate, PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Signs a server's certificate for host names (wildcards too) and IP addresses.
    ///
    /// # Errors
    /// When a name is no subject alternative name, or a key cannot be made.
    pub fn server<S: AsRef<str>>(&self, names: &[S]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
        let mut params = CertificateParams::new(names).context("reading a server's names")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Signs a client's certificate with a common name, organizations (Kubernetes groups) and URI
    /// names such as SPIFFE ids.
    ///
    /// # Errors
    /// When a URI is not ASCII, or a key cannot be made.
    pub fn client(&self, name: &str, groups: &[&str], uris: &[&str]) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        for uri in uris {
            let uri = (*uri)
                .try_into()
                .with_context(|| format!("reading the URI {uri}"))?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// Writes the authority's certificate to `path`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<PathBuf> {
        std::fs::write(path, &self.pem).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.to_owned())
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("making a key")?;
        let cert = params
            .signed_by(&key, &self.issuer)
            .context("signing a certificate")?;
        Ok(Identity {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

impl Identity {
    /// Writes `NAME.crt` and `NAME.key` into `dir`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<IdentityFiles> {
        let cert = dir.join(format!("{name}.crt"));
        let key = dir.join(format!("{name}.key"));
        for (path, text) in [(&cert, &self.cert_pem), (&key, &self.key_pem)] {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(IdentityFiles { cert, key })
    }

    /// Reads what [`Identity::write`] wrote.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(files: &IdentityFiles) -> Result<Self> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
        };
        Ok(Self {
            cert_pem: read(&files.cert)?,
            key_pem: read(&files.key)?,
        })
    }
}

/// Builds a server's TLS settings: TLS 1.2 and 1.3, no client certificates, ALPN `http/1.1`.
///
/// # Errors
/// When the identity cannot be read.
pub fn server_config(identity: &Identity) -> Result<Arc<ServerConfig>> {
    let chain = certificates(&identity.cert_pem)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())
        .context("reading a private key")?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("choosing TLS versions")?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("using a certificate")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Builds a client's TLS settings that trust only `authority_pem` (one certificate or several).
///
/// # Errors
/// When the authority's certificate cannot be read.
pub fn client_config(authority_pem: &str) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(authority_pem)? {
        roots
            .add(cert)
            .context("trusting a certificate authority")?;
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("choosing TLS versions")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("reading a certificate")
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
