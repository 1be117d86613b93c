//! The settings of a TLS client.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::files::{self, Content};
use crate::reloading::Reloading;

/// What a client is made from.
#[derive(Clone, Debug)]
pub struct ClientTlsParams {
    /// The authorities of servers, PEM; any of them is accepted, and no other.
    pub ca: PathBuf,
    /// The client's own certificate, followed by its chain, PEM.
    pub cert: Option<PathBuf>,
    /// The own certificate's private key, PEM (PKCS #8, PKCS #1 or SEC 1).
    pub key: Option<PathBuf>,
    /// Protocols for ALPN (RFC 7301), the preferred one first; empty for none.
    pub alpn: Vec<Vec<u8>>,
}

/// A client's settings.
pub type ClientTls = Reloading<ClientConfig>;

impl Reloading<ClientConfig> {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub fn load(params: ClientTlsParams) -> Result<Self, TlsError> {
        let mut paths = vec![params.ca];
        match (params.cert, params.key) {
            (Some(given), None) => return Err(TlsError::Incomplete(given, "key")),
            (None, Some(given)) => return Err(TlsError::Incomplete(given, "certificate")),
            (Some(cert), Some(key)) => paths.extend([cert, key]),
            (None, None) => {}
        }
        Self::new(paths, move |files| build(files, &params.alpn))
    }
}

fn build(files: &[Content], alpn: &[Vec<u8>]) -> Result<ClientConfig, TlsError> {
    let (ca, own) = match files {
        [ca] => (ca, None),
        [ca, cert, key] => (ca, Some((cert, key))),
        _ => unreachable!("`load` names one file or three"),
    };
    let builder = ClientConfig::builder_with_provider(files::provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_root_certificates(files::roots(ca)?);
    let mut config = match own {
        Some((cert, key)) => {
            let own = SingleCertAndKey::from(files::certified_key(cert, key)?);
            builder.with_client_cert_resolver(Arc::new(own))
        }
        None => builder.with_no_client_auth(),
    };
    alpn.clone_into(&mut config.alpn_protocols);
    Ok(config)
}
