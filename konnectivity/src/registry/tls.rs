//! TLS settings of the two ports.
//!
//! ```text
//!   flags: pair, versions, suites ─▶ TlsPorts ─┐
//!   a tenant's, or all tenants', authorities ─┴▶ Verifier ─▶ ServerConfig, with tickets of its own
//! ```
//!
//! Every set of settings seals its session tickets with keys of its own, so that a session resumes
//! only under the rules it was begun under. Sessions are not kept here: rustls' usual cache of 256
//! takes 31 KiB a tenant when empty and half a MiB when full of chains, these settings 1.5 KiB
//! (measured over 2,000). Names of authorities are never sent: they would tell a stranger which
//! tenants are here, and 10,000 of them do not fit the field.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert,
    ResolvesServerCertUsingSni,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
};
use tls::{ClientAuth, ServerTls, ServerTlsParams};

use super::RegistryError;
use super::authorities::{Authorities, provider};
use super::spec::{FrontendMode, Port, TenantSpec};
use super::tenants::Index;

/// A server's certificate with its chain, and its key, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairPaths {
    /// The certificate's file.
    pub(crate) cert: PathBuf,
    /// The key's file.
    pub(crate) key: PathBuf,
}

/// What is the same for every tenant.
#[derive(Clone, Debug)]
pub(crate) struct TlsParams {
    /// The pair of the agents' port (`--cluster-cert`, `--cluster-key`).
    pub(crate) agents_pair: Option<PairPaths>,
    /// The pair of the frontends' port (`--server-cert`, `--server-key`); none when they come by
    /// sockets only.
    pub(crate) frontends_pair: Option<PairPaths>,
    /// What is spoken on the frontends' port.
    pub(crate) frontend_mode: FrontendMode,
    /// Whether TLS 1.2 is refused.
    pub(crate) only_tls13: bool,
    /// The suites of TLS 1.2 that are allowed; empty for all. As in Go, those of 1.3 cannot be
    /// chosen, and suites that no one here implements are passed over.
    pub(crate) cipher_suites: Vec<CipherSuite>,
}

/// What every set of settings of a port begins with.
pub(super) struct TlsPorts {
    /// The certificate and what ALPN agrees on, by [`Port`].
    ports: [Option<ServerTls>; 2],
    provider: Arc<CryptoProvider>,
    versions: &'static [&'static SupportedProtocolVersion],
    refusing: Arc<ServerConfig>,
}

/// Whose certificates are taken in a handshake.
#[derive(Debug)]
pub(super) enum Trust {
    /// Those of one tenant.
    One(Arc<Authorities>),
    /// Those of any tenant; the authorities of `first` are asked before all others.
    All {
        index: Arc<Index>,
        first: Option<Arc<TenantSpec>>,
    },
}

impl TlsPorts {
    /// Reads the pairs.
    ///
    /// # Errors
    /// What is wrong with them, or with the suites.
    pub(super) fn new(params: &TlsParams) -> Result<Self, RegistryError> {
        let versions = if params.only_tls13 {
            ONLY_TLS13
        } else {
            rustls::ALL_VERSIONS
        };
        let provider = Arc::new(restricted(&params.cipher_suites));
        let refusing = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(RegistryError::Suites)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let frontends = match params.frontend_mode {
            FrontendMode::Grpc => "h2",
            FrontendMode::HttpConnect => "http/1.1",
        };
        Ok(Self {
            ports: [
                load_pair(params.agents_pair.as_ref(), "h2")?,
                load_pair(params.frontends_pair.as_ref(), frontends)?,
            ],
            provider,
            versions,
            refusing: Arc::new(refusing),
        })
    }

    /// Returns settings for `port`. Without `mandatory`, peers may come without a certificate;
    /// without `trust`, none is requested.
    pub(super) fn config(
        &self,
        port: Port,
        trust: Option<Trust>,
        mandatory: bool,
    ) -> Arc<ServerConfig> {
        let Some(pair) = &self.ports[port as usize] else {
            return self.refusing();
        };
        let verifier: Arc<dyn ClientCertVerifier> = match trust {
            None => Arc::new(NoClientAuth),
            Some(trust) => Arc::new(Verifier {
                trust,
                mandatory,
                algorithms: self.provider.signature_verification_algorithms,
            }),
        };
        // The versions were tried when the ports were made.
        let Ok(builder) = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(self.versions)
        else {
            return self.refusing();
        };
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(CurrentPair(pair.clone())));
        config.alpn_protocols = pair.config().alpn_protocols.clone();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // Without random numbers there are no tickets, and soon no handshakes either.
        if let Ok(ticketer) = rustls::crypto::ring::Ticketer::new() {
            config.ticketer = ticketer;
        }
        // Who dials in a row gets one with every connection.
        config.send_tls13_tickets = 1;
        Arc::new(config)
    }

    /// Returns settings under which every handshake fails.
    pub(super) fn refusing(&self) -> Arc<ServerConfig> {
        self.refusing.clone()
    }

    /// Returns the certificates of the ports that have one.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Port, &ServerTls)> {
        let pair = |port| Some((port, self.ports[port as usize].as_ref()?));
        Port::ALL.into_iter().filter_map(pair)
    }
}

fn load_pair(pair: Option<&PairPaths>, alpn: &str) -> Result<Option<ServerTls>, RegistryError> {
    let load = |pair: &PairPaths| {
        ServerTls::load(ServerTlsParams {
            cert: pair.cert.clone(),
            key: pair.key.clone(),
            client_ca: None,
            client_auth: ClientAuth::None,
            alpn: vec![alpn.as_bytes().to_vec()],
        })
    };
    pair.map(load).transpose().map_err(RegistryError::Pair)
}

static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

fn restricted(suites: &[CipherSuite]) -> CryptoProvider {
    let mut provider = provider().as_ref().clone();
    if !suites.is_empty() {
        provider
            .cipher_suites
            .retain(|suite| suite.tls13().is_some() || suites.contains(&suite.suite()));
    }
    provider
}

/// The port's certificate as it is now, so that a new one needs no new settings.
#[derive(Debug)]
struct CurrentPair(ServerTls);

impl ResolvesServerCert for CurrentPair {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.config().cert_resolver.resolve(hello)
    }
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    mandatory: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let vouched = match &self.trust {
            Trust::One(authorities) => authorities.vouch_for(leaf, intermediates, now),
            Trust::All { index, first } => {
                index.vouch_for(first.as_ref(), leaf, intermediates, now)
            }
        };
        vouched.map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
