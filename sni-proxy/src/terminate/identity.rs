//! Who a client is, by the certificate that it showed.
//!
//! ```text
//!     chain ──▶ verified at the handshake, and again under other authorities or when one ends
//! ```
//!
//! [`Verified`] is made here alone, and nothing else opens the pool whose connections show the gateway's
//! own certificate.

use std::cell::Cell;
use std::time::SystemTime;

use http::HeaderValue;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::secrets::Secrets;
use super::subject::Subject;

/// A client that showed a certificate.
#[derive(Debug)]
pub(crate) struct Presented {
    chain: Vec<CertificateDer<'static>>,
    verified: Result<Verified, Refused>,
    ends: SystemTime,
    /// The secrets under which it was verified last, and when the authority that vouched for it then ends.
    under: Cell<Option<(u64, SystemTime)>>,
}

/// What the certificate says of the client, who is believed for one request.
#[derive(Debug)]
pub(crate) struct Verified(Subject);

impl Verified {
    pub(crate) fn user(&self) -> &HeaderValue {
        &self.0.user
    }

    pub(crate) fn groups(&self) -> &[HeaderValue] {
        &self.0.groups
    }
}

/// Why a client is not believed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// The subject names no user, or what a header cannot carry as it is.
    Subject,
    /// The certificate has ended, or its authority is no longer trusted.
    Untrusted,
}

impl Presented {
    /// Takes what a handshake under `secrets` has verified.
    pub(crate) fn new(chain: Vec<CertificateDer<'static>>, secrets: &Secrets) -> Self {
        let ends = chain.iter().map(|own| tls::not_after(own));
        let ends = ends.min().flatten().unwrap_or(SystemTime::UNIX_EPOCH);
        let subject = chain.first().and_then(|leaf| Subject::of(leaf));
        let verified = subject.map(Verified).ok_or(Refused::Subject);
        // The handshake found one of them good. If there are several it is not known which.
        let under = match &secrets.tls.client_authorities[..] {
            [only] => Some((secrets.serial, only.ends)),
            _ => None,
        };
        Self {
            chain,
            verified,
            ends,
            under: Cell::new(under),
        }
    }

    /// Returns who the client is, for a request at `now`.
    pub(crate) fn verify(&self, secrets: &Secrets, now: SystemTime) -> Result<&Verified, Refused> {
        if now > self.ends {
            return Err(Refused::Untrusted);
        }
        let still = |(serial, ends)| serial == secrets.serial && now <= ends;
        if !self.under.get().is_some_and(still) {
            let (leaf, rest) = self.chain.split_first().ok_or(Refused::Untrusted)?;
            let since = now.duration_since(SystemTime::UNIX_EPOCH);
            let time = UnixTime::since_unix_epoch(since.unwrap_or_default());
            let all = secrets.tls.client_authorities.iter();
            let valid = all.filter(|own| now <= own.ends);
            let vouching =
                { valid }.find(|own| own.verifier.verify_client_cert(leaf, rest, time).is_ok());
            let vouching = vouching.ok_or(Refused::Untrusted)?;
            self.under.set(Some((secrets.serial, vouching.ends)));
        }
        self.verified.as_ref().map_err(|refused| *refused)
    }
}
