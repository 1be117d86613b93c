//! What ending TLS in front of a server needs: the server's own certificate, the authorities of its clients,
//! and two ways on to the server, without and with a certificate.
//!
//! Watches nothing: who asks for a reload has another value.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::TlsError;
use crate::files::{self, Content, KeyPair, Origin, Piece};
use crate::reloading::Reloading;
use crate::secret::SecretStore;

/// The lowest version of TLS that is spoken with clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MinVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Where it comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TerminatingParams {
    /// The server's certificate.
    pub certificate: KeyPair,
    /// The authorities of client certificates; any of them is accepted. Without them none is asked for.
    pub client_ca: Option<Origin>,
    /// The lowest version for clients.
    pub min_version: MinVersion,
    /// The authorities of the server behind.
    pub upstream_ca: Origin,
    /// What is shown to it.
    pub identity: Option<KeyPair>,
}

impl TerminatingParams {
    /// Returns what `wrap` makes of it, none before the first [`Reloading::reload`] that succeeds; `secrets`
    /// has those that are named.
    pub fn reloading<T: 'static>(
        &self,
        secrets: &SecretStore,
        wrap: impl Fn(Terminating) -> T + Send + Sync + 'static,
    ) -> Reloading<Option<Arc<T>>> {
        let mut pieces = Vec::from(<[Piece; 2]>::from(self.certificate.clone()));
        pieces.push(self.upstream_ca.clone().into());
        pieces.extend(self.client_ca.clone().map(Piece::from));
        let identity = self.identity.clone().map(<[Piece; 2]>::from);
        pieces.extend(identity.into_iter().flatten());
        let min_version = self.min_version;
        Reloading::unread(pieces, secrets.clone(), None, move |contents| {
            let built = Terminating::build(contents, min_version)?;
            Ok(Some(Arc::new(wrap(built))))
        })
    }
}

/// Settings toward the server behind, for both protocols and for HTTP/1.1 alone.
#[derive(Clone, Debug)]
pub struct UpstreamTls {
    /// Offers HTTP/2, then HTTP/1.1.
    pub any: Arc<ClientConfig>,
    /// Offers HTTP/1.1.
    pub http1: Arc<ClientConfig>,
}

/// One authority of client certificates. Path validation leaves its own end out (RFC 5280 section 6.1.1), which an API
/// server does not.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    /// Verifies client certificates of this authority alone.
    pub verifier: Arc<dyn ClientCertVerifier>,
    /// When it ends.
    pub ends: SystemTime,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Terminating {
    /// Settings toward clients: HTTP/2, then HTTP/1.1; a certificate is optional, and verified. Sessions can be
    /// resumed with these settings alone, by tickets whose keys change.
    pub server: Arc<ServerConfig>,
    /// The authorities of clients, which verify client certificates again; none where none is asked for.
    pub client_authorities: Vec<ClientAuthority>,
    /// Toward the server behind, without a certificate.
    pub plain: UpstreamTls,
    /// The same with the identity; absent without one.
    pub mutual: Option<UpstreamTls>,
    /// When the server's certificate ends.
    pub serving_ends: SystemTime,
    /// When the identity ends.
    pub identity_ends: Option<SystemTime>,
    /// When the first of the authorities ends.
    pub authorities_end: SystemTime,
}

impl Terminating {
    fn build(contents: &[Content], min_version: MinVersion) -> Result<Self, TlsError> {
        let [cert, key, upstream, rest @ ..] = contents else {
            unreachable!("`reloading` names three pieces at least")
        };
        let (client_ca, identity) = match rest {
            [] => (None, None),
            [ca] => (Some(ca), None),
            [cert, key] => (None, Some((cert, key))),
            [ca, cert, key] => (Some(ca), Some((cert, key))),
            _ => unreachable!("`reloading` names six pieces at most"),
        };
        let (own, serving_ends) = valid_pair(cert, key)?;
        let identity = identity
            .map(|(cert, key)| valid_pair(cert, key))
            .transpose()?;
        let mut authorities_end = ends(upstream)?;
        let (mut verifier, mut client_authorities) = (None, Vec::new());
        if let Some(authorities) = client_ca {
            let path = &authorities.path;
            authorities_end = authorities_end.min(ends(authorities)?);
            let built = |roots| {
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), files::provider());
                let built = builder.allow_unauthenticated().build();
                built.map_err(|source| TlsError::Verifier(path.clone(), source))
            };
            verifier = Some(built(files::roots(authorities)?)?);
            for authority in files::chain(authorities)? {
                let ends = not_after(&authority);
                let ends = ends.ok_or_else(|| TlsError::NoCertificate(path.clone()))?;
                let mut roots = RootCertStore::empty();
                // The whole bundle was taken as roots already.
                if roots.add(authority).is_ok() {
                    let verifier: Arc<dyn ClientCertVerifier> = built(roots)?;
                    client_authorities.push(ClientAuthority { verifier, ends });
                }
            }
        }
        let versions: &[&SupportedProtocolVersion] = match min_version {
            MinVersion::Tls12 => &[&version::TLS13, &version::TLS12],
            MinVersion::Tls13 => &[&version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(files::provider())
            .with_protocol_versions(versions)
            .map_err(TlsError::Versions)?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        server.alpn_protocols = ANY.map(<[u8]>::to_vec).to_vec();
        server.ticketer = Ticketer::new().map_err(TlsError::Versions)?;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        let roots = Arc::new(files::roots(upstream)?);
        let identity_ends = identity.as_ref().map(|(_, ends)| *ends);
        let mutual = identity.map(|(key, _)| toward(&roots, Some(key)));
        Ok(Self {
            server: Arc::new(server),
            client_authorities,
            plain: toward(&roots, None)?,
            mutual: mutual.transpose()?,
            serving_ends,
            identity_ends,
            authorities_end,
        })
    }

    /// Returns whether the certificates that are shown are valid at `now`.
    pub fn is_valid(&self, now: SystemTime) -> bool {
        now <= self.serving_ends && self.identity_ends.is_none_or(|ends| now <= ends)
    }
}

fn toward(
    roots: &Arc<RootCertStore>,
    identity: Option<CertifiedKey>,
) -> Result<UpstreamTls, TlsError> {
    let builder = ClientConfig::builder_with_provider(files::provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_root_certificates(Arc::clone(roots));
    let mut any = match identity {
        Some(key) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))),
        None => builder.with_no_client_auth(),
    };
    // Without buffers of its own rustls does not forget such a session that a server no longer takes as it was.
    any.resumption = Resumption::default().tls12_resumption(Tls12Resumption::Disabled);
    any.alpn_protocols = ANY.map(<[u8]>::to_vec).to_vec();
    let mut http1 = any.clone();
    http1.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(UpstreamTls {
        any: Arc::new(any),
        http1: Arc::new(http1),
    })
}

/// Reads a certificate and its key, and when it ends, which is not over yet.
pub(crate) fn valid_pair(
    cert: &Content,
    key: &Content,
) -> Result<(CertifiedKey, SystemTime), TlsError> {
    let pair = files::certified_key(cert, key)?;
    let ends = pair.cert.first().and_then(not_after);
    let ends = ends.ok_or_else(|| TlsError::NoCertificate(cert.path.clone()))?;
    if ends < SystemTime::now() {
        return Err(TlsError::Expired(cert.path.clone()));
    }
    Ok((pair, ends))
}

/// Returns when the first certificate of a bundle ends.
fn ends(bundle: &Content) -> Result<SystemTime, TlsError> {
    let all = files::chain(bundle)?;
    let first = all.iter().filter_map(not_after).min();
    first.ok_or_else(|| TlsError::NoCertificate(bundle.path.clone()))
}

/// Returns when a certificate ends (RFC 5280 section 4.1.2.5), if it can be read.
pub fn not_after(cert: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    let seconds = u64::try_from(cert.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

const HTTP1: &[u8] = b"http/1.1";
const ANY: [&[u8]; 2] = [b"h2", HTTP1];
