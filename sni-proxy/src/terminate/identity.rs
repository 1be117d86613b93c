//! Who a client is, by the certificate that it showed.
//!
//! ```text
//!     subject ─▶ user: the last CN; groups: each O that is not empty      as kube-apiserver takes them
//!     chain ──▶ verified at the handshake, and again under other authorities or when one ends
//! ```
//!
//! [`Verified`] is made here alone, and nothing else opens the pool whose connections show the gateway's
//! own certificate.

use std::cell::Cell;
use std::time::SystemTime;

use http::HeaderValue;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate};

use super::secrets::Secrets;

/// A client that showed a certificate.
#[derive(Debug)]
pub(crate) struct Presented {
    chain: Vec<CertificateDer<'static>>,
    verified: Result<Verified, Refused>,
    ends: SystemTime,
    /// The secrets under which it was verified last.
    under: Cell<u64>,
}

/// What the certificate says of the client, who is believed for one request.
#[derive(Debug)]
pub(crate) struct Verified {
    user: HeaderValue,
    groups: Vec<HeaderValue>,
}

impl Verified {
    pub(crate) fn user(&self) -> &HeaderValue {
        &self.user
    }

    pub(crate) fn groups(&self) -> &[HeaderValue] {
        &self.groups
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
        let verified = chain.first().ok_or(Refused::Subject).and_then(read);
        Self {
            chain,
            verified,
            ends,
            under: Cell::new(secrets.serial),
        }
    }

    /// Returns who the client is, for a request at `now`.
    pub(crate) fn verify(&self, secrets: &Secrets, now: SystemTime) -> Result<&Verified, Refused> {
        if now > self.ends {
            return Err(Refused::Untrusted);
        }
        if self.under.get() != secrets.serial {
            let verifier = secrets.tls.verifier.as_ref().ok_or(Refused::Untrusted)?;
            let (leaf, rest) = self.chain.split_first().ok_or(Refused::Untrusted)?;
            let since = now.duration_since(SystemTime::UNIX_EPOCH);
            let now = UnixTime::since_unix_epoch(since.unwrap_or_default());
            let verified = verifier.verify_client_cert(leaf, rest, now);
            verified.map_err(|_| Refused::Untrusted)?;
            self.under.set(secrets.serial);
        }
        self.verified.as_ref().map_err(|refused| *refused)
    }
}

fn read(cert: &CertificateDer<'static>) -> Result<Verified, Refused> {
    let (_, cert) = X509Certificate::from_der(cert).map_err(|_| Refused::Subject)?;
    let subject = cert.subject();
    let user = subject.iter_common_name().last().ok_or(Refused::Subject)?;
    let user = text(user)?.ok_or(Refused::Subject)?;
    let groups = subject.iter_organization().map(text);
    let groups = groups.filter_map(Result::transpose);
    Ok(Verified {
        user,
        groups: groups.collect::<Result<_, _>>()?,
    })
}

/// Returns an attribute as a header carries it; `None` if it is empty.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<Option<HeaderValue>, Refused> {
    let value = attribute.attr_value();
    let known = [Tag::Utf8String, Tag::PrintableString, Tag::Ia5String];
    if !known.contains(&value.tag()) {
        return Err(Refused::Subject);
    }
    let text = std::str::from_utf8(value.data).map_err(|_| Refused::Subject)?;
    if text.chars().any(char::is_control) || text != text.trim() {
        return Err(Refused::Subject);
    }
    if text.is_empty() {
        return Ok(None);
    }
    let value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| Refused::Subject)?;
    Ok(Some(value))
}
