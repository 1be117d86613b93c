//! What a TLS server needs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::files::{self, Octets, Pair};
use crate::metrics::Metrics;
use crate::reloading::{Recipe, Reloading};

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClientAuth {
    /// None is asked for.
    None,
    /// Who has none is not served.
    Required,
}

/// What a server is made from.
#[derive(Clone, Debug)]
pub struct ServerTlsParams {
    /// The certificate, followed by its chain, PEM.
    pub cert: PathBuf,
    /// The certificate's private key, PEM (PKCS #8, PKCS #1 or SEC 1).
    pub key: PathBuf,
    /// The authorities of client certificates, PEM; any of them is good.
    pub client_ca: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub client_auth: ClientAuth,
    /// Protocols for ALPN (RFC 7301), the preferred one first; empty for none.
    pub alpn: Vec<Vec<u8>>,
}

/// A server's settings, always the last good ones. Clones are the same.
#[derive(Clone)]
pub struct ServerTls {
    inner: Arc<Reloading<ServerTlsParams>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub fn load(params: ServerTlsParams) -> Result<Self, TlsError> {
        Reloading::load(params).map(|inner| Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the settings for a handshake that begins now: TLS 1.2 and 1.3.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.inner.value()
    }

    /// Reads the files again and returns whether anything in them changed. Sessions that clients
    /// could resume are forgotten with a change, so that nobody slips past a removed authority.
    ///
    /// # Errors
    /// What is wrong, and in which file; the last good settings stay.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.inner.reload()
    }

    /// Reads the files again whenever they change, at the latest 10 s afterwards. Refusals are
    /// logged and counted. It never ends; drop it to stop.
    pub async fn watch(&self) {
        self.inner.watch().await;
    }

    /// Counts what is read again under `purpose`, a short word from a closed set.
    pub fn count_in(&self, metrics: &Metrics, purpose: &str) {
        self.inner.counted.count_in(metrics, purpose);
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

impl Recipe for ServerTlsParams {
    type Value = ServerConfig;

    fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.cert.clone(), self.key.clone()];
        paths.extend(self.client_ca.clone());
        paths
    }

    fn build(&self, files: &[Octets]) -> Result<ServerConfig, TlsError> {
        let [cert, key, rest @ ..] = files else {
            return Err(TlsError::NoCertificate {
                path: self.cert.clone(),
            });
        };
        let verifier = self.verifier(rest.first())?;
        let pair = Pair {
            cert: cert.clone(),
            key: key.clone(),
        };
        let own = SingleCertAndKey::from(files::certified_key(&pair)?);
        let mut config = ServerConfig::builder_with_provider(files::provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Versions)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(own));
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(config)
    }
}

impl ServerTlsParams {
    fn verifier(&self, bundle: Option<&Octets>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        match self.client_auth {
            ClientAuth::None => return Ok(Arc::new(NoClientAuth)),
            ClientAuth::Required => {}
        }
        let bundle = bundle.ok_or(TlsError::NoClientAuthority)?;
        let roots = Arc::new(files::roots(bundle)?);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, files::provider());
        builder.build().map_err(|source| TlsError::Verifier {
            path: bundle.path.clone(),
            source,
        })
    }
}
