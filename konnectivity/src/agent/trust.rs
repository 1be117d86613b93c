//! What servers must prove, and what the agent shows them: files, read again when they change.
//!
//! ```text
//! --ca-cert, or the host's own authorities ──┐
//! --agent-cert, --agent-key ─────────────────┴──▶ ClientTls ──▶ each handshake
//! --service-account-token-path ──────────────────▶ authorization() ──▶ each connect
//! ```

use std::io;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use tls::{ClientTls, ClientTlsParams, TlsError};

use super::config::AgentConfig;
use crate::api_server::read_limited;

/// Where hosts keep the authorities they trust, in the order Go looks.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A token is some 1 KiB; heads of requests may not hold much more than this anyway.
const MAX_TOKEN_BYTES: u64 = 32 << 10;

/// Why there are no TLS settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// No file with authorities was named, and the host has none.
    #[error("no ca-cert was given and this host has no bundle of authorities of its own")]
    NoSystemBundle,
    /// A file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TokenError {
    /// The file holds something that no header can.
    #[error("the token in {0} holds bytes that cannot be sent")]
    NoHeader(PathBuf),
    /// The file cannot be read.
    #[error("reading the token {0}")]
    Read(PathBuf, #[source] io::Error),
}

/// Reads what the agent trusts and shows: its TLS settings.
pub(crate) fn load(config: &AgentConfig) -> Result<ClientTls, TrustError> {
    let ca = match &config.ca {
        Some(ca) => ca.clone(),
        None => (SYSTEM_BUNDLES.iter().map(PathBuf::from))
            .find(|path| path.is_file())
            .ok_or(TrustError::NoSystemBundle)?,
    };
    let extras = config.alpn.iter().filter(|name| *name != "h2");
    let alpn = std::iter::once(b"h2".to_vec())
        .chain(extras.map(|name| name.clone().into_bytes()))
        .collect();
    Ok(ClientTls::load(ClientTlsParams {
        ca,
        cert: config.cert.clone(),
        key: config.key.clone(),
        alpn,
    })?)
}

/// Reads the token and returns it as a header. White space around it, such as the end of the line,
/// is not part of it.
pub(super) fn authorization(path: &Path) -> Result<HeaderValue, TokenError> {
    let contents = read_limited(path, MAX_TOKEN_BYTES)
        .map_err(|source| TokenError::Read(path.to_owned(), source))?;
    let value = [b"Bearer ", contents.trim_ascii()].concat();
    let mut value =
        HeaderValue::from_bytes(&value).map_err(|_| TokenError::NoHeader(path.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_line_is_not_part_of_a_token() {
        let dir = testkit::tempdir::TempDir::new("token").unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "abc.def\n").unwrap();
        assert_eq!(authorization(&path).unwrap(), "Bearer abc.def");
        assert!(authorization(&path).unwrap().is_sensitive());
        std::fs::write(&path, "abc\ndef").unwrap();
        assert!(matches!(
            authorization(&path),
            Err(TokenError::NoHeader { .. })
        ));
        std::fs::write(&path, vec![b'a'; 40 << 10]).unwrap();
        assert!(matches!(authorization(&path), Err(TokenError::Read { .. })));
        assert!(authorization(&dir.path().join("none")).is_err());
    }
}
