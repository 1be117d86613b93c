//! The settings of a TLS server.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::files::{self, Content};
use crate::reloading::Reloading;

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClientAuth {
    /// None is requested.
    None,
    /// Clients without one are refused.
    Required,
}

/// What a server is made from.
#[derive(Clone, Debug)]
pub struct ServerTlsParams {
    /// The certificate, followed by its chain, PEM.
    pub cert: PathBuf,
    /// The certificate's private key, PEM (PKCS #8, PKCS #1 or SEC 1).
    pub key: PathBuf,
    /// The authorities of client certificates, PEM; any of them is accepted.
    pub client_ca: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub client_auth: ClientAuth,
    /// Protocols for ALPN (RFC 7301), the preferred one first; empty for none.
    pub alpn: Vec<Vec<u8>>,
}

/// A server's settings.
pub type ServerTls = Reloading<ServerConfig>;

impl Reloading<ServerConfig> {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub fn load(params: ServerTlsParams) -> Result<Self, TlsError> {
        let mut paths = vec![params.cert, params.key];
        paths.extend(params.client_ca);
        let (client_auth, alpn) = (params.client_auth, params.alpn);
        Self::new(paths, move |files| build(files, client_auth, &alpn))
    }
}

fn build(
    files: &[Content],
    client_auth: ClientAuth,
    alpn: &[Vec<u8>],
) -> Result<ServerConfig, TlsError> {
    let [cert, key, authorities @ ..] = files else {
        unreachable!("`load` names at least two files")
    };
    let verifier = verifier(client_auth, authorities.first())?;
    let own = SingleCertAndKey::from(files::certified_key(cert, key)?);
    let mut config = ServerConfig::builder_with_provider(files::provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(own));
    alpn.clone_into(&mut config.alpn_protocols);
    Ok(config)
}

fn verifier(
    client_auth: ClientAuth,
    authorities: Option<&Content>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    if client_auth == ClientAuth::None {
        return Ok(Arc::new(NoClientAuth));
    }
    let authorities = authorities.ok_or(TlsError::NoClientAuthority)?;
    let roots = Arc::new(files::roots(authorities)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, files::provider());
    let verifier = builder.build();
    verifier.map_err(|source| TlsError::Verifier(authorities.path.clone(), source))
}
