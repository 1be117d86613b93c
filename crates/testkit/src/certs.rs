//! A certificate authority for one test, and the certificates it signs.
//!
//! Keys are ECDSA P-256. Everything is PEM text; [`Identity::write`] and [`Authority::write`] put
//! it into files for programs that want paths.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate authority that lives in memory.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cert_pem: String,
    /// The private key, PKCS #8 in PEM.
    pub key_pem: String,
}

/// Where [`Identity::write`] put the two files.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority whose subject is `name`.
    pub fn new(name: &str) -> Result<Self> {
        Self::with(name, |_| {})
    }

    /// Makes an authority that was valid once and no longer is.
    pub fn expired(name: &str) -> Result<Self> {
        Self::with(name, |params| {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        })
    }

    fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Result<Self> {
        let key = KeyPair::generate().context("making a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        change(&mut params);
        let signed = params.self_signed(&key);
        let pem = signed.context("signing the authority")?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the authority's private key, PKCS #8 in PEM, for a program that signs with it.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs a server's certificate for host names (wildcards too) and IP addresses.
    pub fn server<S: AsRef<str>>(&self, names: &[S]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
        let mut params = CertificateParams::new(names).context("reading a server's names")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Signs a client's certificate with a common name, organizations (Kubernetes groups) and URI
    /// names such as SPIFFE ids.
    pub fn client(&self, name: &str, groups: &[&str], uris: &[&str]) -> Result<Identity> {
        self.sign(client_params(name, groups, uris)?)
    }

    /// Signs a client's certificate as [`Authority::client`] does, that was valid once and no
    /// longer is.
    pub fn expired_client(&self, name: &str, uris: &[&str]) -> Result<Identity> {
        let mut params = client_params(name, &[], uris)?;
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        self.sign(params)
    }

    /// Signs a server's certificate as [`Authority::server`] does, that ends `after` this time.
    pub fn ending_server(&self, name: &str, after: Duration) -> Result<Identity> {
        let mut params = CertificateParams::new([name.to_owned()]).context("reading a name")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_after = (SystemTime::now() + after).into();
        self.sign(params)
    }

    /// Signs a client's certificate as [`Authority::client`] does, that ends `after` this time.
    pub fn ending_client(&self, name: &str, after: Duration) -> Result<Identity> {
        let mut params = client_params(name, &[], &[])?;
        params.not_after = (SystemTime::now() + after).into();
        self.sign(params)
    }

    pub fn write(&self, path: &Path) -> Result<PathBuf> {
        std::fs::write(path, &self.pem).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.to_owned())
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("making a key")?;
        let cert = params.signed_by(&key, &self.issuer);
        let cert = cert.context("signing a certificate")?;
        Ok(Identity {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

impl Identity {
    /// Writes `NAME.crt` and `NAME.key` into `dir`.
    pub fn write(&self, dir: &Path, name: &str) -> Result<IdentityFiles> {
        let cert = dir.join(format!("{name}.crt"));
        let key = dir.join(format!("{name}.key"));
        for (path, text) in [(&cert, &self.cert_pem), (&key, &self.key_pem)] {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(IdentityFiles { cert, key })
    }

    fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .context("reading a private key")?;
        Ok((certificates(&self.cert_pem)?, key))
    }
}

/// Builds a server's TLS settings: TLS 1.2 and 1.3, no client certificates, ALPN `http/1.1`.
pub fn server_config(identity: &Identity) -> Result<Arc<ServerConfig>> {
    mutual_server_config(identity, None, &["http/1.1"])
}

/// Builds a client's TLS settings that trust only `authority_pem` (one certificate or several).
pub fn client_config(authority_pem: &str) -> Result<Arc<ClientConfig>> {
    mutual_client_config(authority_pem, None, &["http/1.1"])
}

fn client_params(name: &str, groups: &[&str], uris: &[&str]) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    let names = &mut params.distinguished_name;
    names.push(DnType::CommonName, name);
    // Of one type rcgen keeps one: a second has the same number by another name.
    ensure!(groups.len() <= 2, "a certificate of more than two groups");
    let organization = DnType::CustomDnType(vec![2, 5, 4, 10]);
    for (kind, group) in [DnType::OrganizationName, organization]
        .into_iter()
        .zip(groups)
    {
        names.push(kind, *group);
    }
    for uri in uris {
        let uri = (*uri)
            .try_into()
            .with_context(|| format!("reading the URI {uri}"))?;
        params.subject_alt_names.push(SanType::URI(uri));
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// Builds a server's TLS settings that offer `alpn` and, with `clients_pem`, ask for a certificate of
/// that authority and take clients without one, as an API server does.
pub fn optional_server_config(
    identity: &Identity,
    clients_pem: &str,
    alpn: &[&str],
) -> Result<Arc<ServerConfig>> {
    let roots = Arc::new(roots(clients_pem)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .allow_unauthenticated()
        .build()
        .context("trusting an authority of clients")?;
    server_config_with(identity, Some(verifier), alpn)
}

/// Builds a server's TLS settings that offer `alpn` and, with `clients_pem`, demand a certificate of
/// that authority from the client.
pub fn mutual_server_config(
    identity: &Identity,
    clients_pem: Option<&str>,
    alpn: &[&str],
) -> Result<Arc<ServerConfig>> {
    let verifier = clients_pem.map(|pem| {
        let roots = Arc::new(roots(pem)?);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        builder.build().context("trusting an authority of clients")
    });
    server_config_with(identity, verifier.transpose()?, alpn)
}

fn server_config_with(
    identity: &Identity,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    alpn: &[&str],
) -> Result<Arc<ServerConfig>> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("choosing TLS versions")?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let (chain, key) = identity.parse()?;
    let config = builder.with_single_cert(chain, key);
    let mut config = config.context("using a certificate")?;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// Builds a client's TLS settings that trust only `authority_pem`, offer `alpn`, and show
/// `identity` if there is one.
pub fn mutual_client_config(
    authority_pem: &str,
    identity: Option<&Identity>,
    alpn: &[&str],
) -> Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("choosing TLS versions")?
        .with_root_certificates(roots(authority_pem)?);
    let mut config = match identity {
        Some(identity) => {
            let (chain, key) = identity.parse()?;
            let config = builder.with_client_auth_cert(chain, key);
            config.context("using a certificate")?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

fn roots(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(pem)? {
        let added = roots.add(cert);
        added.context("trusting a certificate authority")?;
    }
    Ok(roots)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.context("reading a certificate")
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
