//! The proxy's certificates: authorities, and what they sign.
//!
//! ```text
//!   Random ─▶ authority ─▶ leaf: what servers show, what API servers show
//! ```
//!
//! Keys are ECDSA P-256, which every TLS library takes. An authority signs for these two uses and
//! for no other authority. Nothing is parsed: what is needed of an authority again is remembered
//! beside it.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use super::state::{Authority, Leaf, Moment, Secret};

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("making a certificate")]
pub(crate) struct CertificateError(#[from] rcgen::Error);

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// API servers and other clients of the proxy.
    Client,
    /// The proxy.
    Server,
}

/// Makes an authority of that subject, valid for `days`.
pub(super) fn authority(
    key: &KeyPair,
    name: String,
    now: Moment,
    days: u32,
) -> Result<Authority, CertificateError> {
    let (from, until) = validity(now, days);
    let mut params = authority_params(&name);
    dates(&mut params, from, until);
    Ok(Authority {
        certificate: params.self_signed(key)?.pem(),
        key: Secret::new(key.serialize_pem()),
        name,
        from,
        until,
    })
}

/// Has `authority` sign a certificate for `names`, valid for `days` and no longer than its own.
pub(super) fn leaf(
    authority: &Authority,
    key: &KeyPair,
    what: Use,
    names: Vec<String>,
    now: Moment,
    days: u32,
) -> Result<Leaf, CertificateError> {
    let (from, until) = validity(now, days);
    let until = until.min(authority.until);
    let mut params = CertificateParams::new(match what {
        Use::Client => Vec::new(),
        Use::Server => names.clone(),
    })?;
    let (usage, subject) = match what {
        Use::Client => (ExtendedKeyUsagePurpose::ClientAuth, CLIENT),
        Use::Server => (ExtendedKeyUsagePurpose::ServerAuth, SERVER),
    };
    params.distinguished_name = subject_of(subject);
    params.extended_key_usages = vec![usage];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    dates(&mut params, from, until);
    let signer = KeyPair::from_pem(authority.key.text())?;
    let issuer = Issuer::new(authority_params(&authority.name), signer);
    Ok(Leaf {
        issuer: authority.name.clone(),
        certificate: params.signed_by(key, &issuer)?.pem(),
        key: Secret::new(key.serialize_pem()),
        names,
        from,
        until,
    })
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject_of(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn subject_of(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn validity(now: Moment, days: u32) -> (Moment, Moment) {
    let until = now.0.saturating_add(u64::from(days) * DAY);
    (Moment(now.0.saturating_sub(SKEW)), Moment(until))
}

fn dates(params: &mut CertificateParams, from: Moment, until: Moment) {
    let date = |moment: Moment| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(moment.0);
    params.not_before = date(from);
    params.not_after = date(until);
}

const DAY: u64 = 24 * 60 * 60;

/// How far clocks may be behind ours, in seconds.
const SKEW: u64 = 5 * 60;

/// The subject of what servers show.
const SERVER: &str = "vpn-seed-server";

/// The subject of what API servers show.
const CLIENT: &str = "kube-apiserver";
