//! Whose peer a TLS connection is.
//!
//! ```text
//!   port, server name, certificates ─▶ who knows its URI? ─▶ whose authorities vouch? ─▶ Peer
//!                                                              exactly one, in the role of the port
//! ```
//!
//! An agent's server name must agree with its certificate. A frontend's only selects: API servers of
//! many tenants may ask for the name of one Service.
//!
//! The chain is verified here once more, against the tenants as they are now: a handshake tells
//! that some authority vouched and not which, and a resumed session verifies nothing. Tokens are judged
//! elsewhere.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};

use super::spec::{Port, TenantSpec};
use super::tenants::{Claim, MAX_CLAIMS, Tenants, claims_of, uris};

/// Whose peer a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A token must tell; on the agents' port only.
    ByToken {
        /// The tenant that the server name means, which must be the token's.
        hint: Option<Arc<TenantSpec>>,
    },
    /// This tenant's, by certificate, or because its agents need to show nothing.
    Certified(Arc<TenantSpec>),
}

telemetry::labels! {
    /// Why a peer belongs to no tenant.
    #[derive(thiserror::Error)]
    #[non_exhaustive]
    pub(crate) enum IdentityRefused {
        #[error("the certificate is that of several tenants or roles")]
        Ambiguous = "ambiguous",
        #[error("the certificate cannot be read")]
        Malformed = "malformed",
        /// No certificate was presented, and there is no other way.
        #[error("no certificate")]
        NoCertificate = "no_certificate",
        #[error("the server name means another tenant than the certificate")]
        OtherTenant = "other_cluster",
        #[error("no tenant knows a URI of the certificate")]
        UnknownIdentity = "unknown_identity",
        #[error("the server name means no tenant")]
        UnknownServerName = "unknown_server_name",
        #[error("the authorities of the certificate's tenant do not vouch for it")]
        Unverified = "unverified",
        #[error("the certificate is for the other port")]
        WrongRole = "wrong_role",
    }
}

impl Tenants {
    /// Returns whose peer a connection is `now`, after its handshake, by the server name it asked
    /// for and the certificates it presented, leaf first (`peer_certificates()` of rustls).
    ///
    /// # Errors
    /// It belongs to none: close it.
    pub(crate) fn identify(
        &self,
        port: Port,
        server_name: Option<&str>,
        certs: Option<&[CertificateDer<'static>]>,
        now: UnixTime,
    ) -> Result<Peer, IdentityRefused> {
        let meant = self.meant(server_name);
        let unknown = server_name.is_some() && meant.is_none();
        if port == Port::Agents && unknown && !self.by_name.is_empty() {
            return Err(IdentityRefused::UnknownServerName);
        }
        let Some((leaf, intermediates)) = certs.and_then(<[_]>::split_first) else {
            return self.uncertified(port, meant);
        };
        let shown = Shown {
            leaf,
            intermediates,
            now,
        };
        match (meant, port) {
            (Some(spec), Port::Frontends) if self.single.is_none() => self.preferring(spec, &shown),
            (Some(spec), _) => self.among_one(port, spec, &shown),
            (None, _) => self.among_all(port, &shown),
        }
    }

    fn uncertified(
        &self,
        port: Port,
        meant: Option<&Arc<TenantSpec>>,
    ) -> Result<Peer, IdentityRefused> {
        let by_token = match (port, meant) {
            (Port::Frontends, _) => false,
            (Port::Agents, None) => self.any_tokens,
            (Port::Agents, Some(spec)) if spec.admits_any_agent() => {
                return Ok(Peer::Certified(spec.clone()));
            }
            (Port::Agents, Some(spec)) => spec.tokens.is_some(),
        };
        if !by_token {
            return Err(IdentityRefused::NoCertificate);
        }
        let hint = meant.cloned();
        Ok(Peer::ByToken { hint })
    }

    /// The server name, or there being only one, says which tenant it must be.
    fn among_one(
        &self,
        port: Port,
        spec: &Arc<TenantSpec>,
        shown: &Shown<'_>,
    ) -> Result<Peer, IdentityRefused> {
        let Some(certificates) = spec.certificates(port) else {
            // No certificate was requested; one that comes all the same is ignored.
            return self.uncertified(port, Some(spec));
        };
        if certificates.identities.is_none() {
            let spec = spec.clone();
            return one_of(port, &[Claim { spec, port }], shown);
        }
        let uris = uris(shown.leaf).ok_or(IdentityRefused::Malformed)?;
        let claims = claims_of(spec, &uris);
        if claims.is_empty() && !self.index.claims(&uris).is_empty() {
            return Err(IdentityRefused::OtherTenant);
        }
        one_of(port, &claims, shown)
    }

    /// The frontend's server name means `spec`: that tenant if the certificate fits it, otherwise
    /// the one that the certificate says.
    fn preferring(
        &self,
        spec: &Arc<TenantSpec>,
        shown: &Shown<'_>,
    ) -> Result<Peer, IdentityRefused> {
        let uris = uris(shown.leaf).ok_or(IdentityRefused::Malformed)?;
        let port = Port::Frontends;
        one_of(port, &claims_of(spec, &uris), shown).or_else(|_| self.among_all(port, shown))
    }

    fn among_all(&self, port: Port, shown: &Shown<'_>) -> Result<Peer, IdentityRefused> {
        let uris = uris(shown.leaf).ok_or(IdentityRefused::Malformed)?;
        let claims = self.index.claims(&uris);
        // Whether some tenant beyond the bound knows it as well is not known, so none does.
        if claims.len() > MAX_CLAIMS {
            return Err(IdentityRefused::Ambiguous);
        }
        one_of(port, &claims, shown)
    }
}

/// Returns the tenant of the one claim whose authorities vouch.
fn one_of(port: Port, claims: &[Claim], shown: &Shown<'_>) -> Result<Peer, IdentityRefused> {
    if claims.is_empty() {
        return Err(IdentityRefused::UnknownIdentity);
    }
    let mut vouched = claims.iter().filter(|claim| shown.vouched_by(claim));
    match (vouched.next(), vouched.next()) {
        (None, _) => Err(IdentityRefused::Unverified),
        (Some(_), Some(_)) => Err(IdentityRefused::Ambiguous),
        (Some(claim), None) if claim.port == port => Ok(Peer::Certified(claim.spec.clone())),
        (Some(_), None) => Err(IdentityRefused::WrongRole),
    }
}

/// What a peer presented, and when.
struct Shown<'a> {
    leaf: &'a CertificateDer<'static>,
    intermediates: &'a [CertificateDer<'static>],
    now: UnixTime,
}

impl Shown<'_> {
    fn vouched_by(&self, claim: &Claim) -> bool {
        claim.authorities().is_some_and(|authorities| {
            authorities
                .vouch_for(self.leaf, self.intermediates, self.now)
                .is_ok()
        })
    }
}
