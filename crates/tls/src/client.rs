//! What a TLS client needs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::files::{self, Octets, Pair};
use crate::metrics::Metrics;
use crate::reloading::{Recipe, Reloading};

/// What a client is made from.
#[derive(Clone, Debug)]
pub struct ClientTlsParams {
    /// The authorities of servers, PEM; any of them is good, and no other.
    pub ca: PathBuf,
    /// The client's own certificate, followed by its chain, PEM.
    pub cert: Option<PathBuf>,
    /// The own certificate's private key, PEM (PKCS #8, PKCS #1 or SEC 1).
    pub key: Option<PathBuf>,
    /// Protocols for ALPN (RFC 7301), the preferred one first; empty for none.
    pub alpn: Vec<Vec<u8>>,
}

/// A client's settings, always the last good ones. Clones are the same.
#[derive(Clone)]
pub struct ClientTls {
    inner: Arc<Reloading<ClientTlsParams>>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub fn load(params: ClientTlsParams) -> Result<Self, TlsError> {
        match (&params.cert, &params.key) {
            (Some(given), None) => return Err(incomplete(given, "key")),
            (None, Some(given)) => return Err(incomplete(given, "certificate")),
            (Some(_), Some(_)) | (None, None) => {}
        }
        Reloading::load(params).map(|inner| Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the settings for a handshake that begins now: TLS 1.2 and 1.3.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.inner.value()
    }

    /// Reads the files again and returns whether anything in them changed.
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

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

impl Recipe for ClientTlsParams {
    type Value = ClientConfig;

    fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.ca.clone()];
        paths.extend(
            self.cert
                .clone()
                .zip(self.key.clone())
                .into_iter()
                .flat_map(|(cert, key)| [cert, key]),
        );
        paths
    }

    fn build(&self, files: &[Octets]) -> Result<ClientConfig, TlsError> {
        let Some((ca, own)) = files.split_first() else {
            return Err(TlsError::NoCertificate {
                path: self.ca.clone(),
            });
        };
        let builder = ClientConfig::builder_with_provider(files::provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Versions)?
            .with_root_certificates(files::roots(ca)?);
        let mut config = match own {
            [cert, key] => {
                let pair = Pair {
                    cert: cert.clone(),
                    key: key.clone(),
                };
                let own = SingleCertAndKey::from(files::certified_key(&pair)?);
                builder.with_client_cert_resolver(Arc::new(own))
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(config)
    }
}

fn incomplete(given: &std::path::Path, missing: &'static str) -> TlsError {
    TlsError::Incomplete {
        given: given.to_owned(),
        missing,
    }
}
