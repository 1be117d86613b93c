//! Who a client is, by the certificate that it showed.
//!
//! ```text
//!     chain ──▶ verified at a full handshake, and again under other authorities or when one ends
//! ```
//!
//! [`Verified`] is made here alone, and nothing else opens the pool whose connections show the gateway's
//! own certificate.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::secrets::Secrets;
use super::subject::Subject;

/// A client that showed a certificate.
#[derive(Debug)]
pub(crate) struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    verified: Result<Verified, Refused>,
    checked: Cell<Option<Checked>>,
}

/// For what the chain was verified last.
#[derive(Clone, Copy, Debug)]
struct Checked {
    /// The secrets.
    serial: u64,
    from: SystemTime,
    /// The end of the authority that vouched for it then, or the first of a certificate of the chain: whether that
    /// one matters is for the verifier to say.
    until: SystemTime,
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

impl ClientIdentity {
    /// Takes the chain of a handshake under `secrets`, which has verified it at that time or later, or not at all
    /// where a session was resumed.
    pub(crate) fn new(
        chain: Vec<CertificateDer<'static>>,
        secrets: &Secrets,
        verified: Option<SystemTime>,
    ) -> Self {
        let subject = chain.first().and_then(|leaf| Subject::of(leaf));
        // The handshake found one of them good. If there are several it is not known which.
        let checked = match (&secrets.tls.client_authorities[..], verified) {
            ([only], Some(now)) => Some(Checked::at(now, &chain, secrets.serial, only.ends)),
            _ => None,
        };
        Self {
            verified: subject.map(Verified).ok_or(Refused::Subject),
            chain,
            checked: Cell::new(checked),
        }
    }

    /// Returns who the client is, for a request at `now`.
    pub(crate) fn verify(&self, secrets: &Secrets, now: SystemTime) -> Result<&Verified, Refused> {
        let still =
            |own: Checked| own.serial == secrets.serial && (own.from..=own.until).contains(&now);
        if !self.checked.get().is_some_and(still) {
            let (leaf, rest) = self.chain.split_first().ok_or(Refused::Untrusted)?;
            let since = now.duration_since(SystemTime::UNIX_EPOCH);
            let time = UnixTime::since_unix_epoch(since.unwrap_or_default());
            let all = secrets.tls.client_authorities.iter();
            let valid = all.filter(|own| now <= own.ends);
            let vouching =
                { valid }.find(|own| own.verifier.verify_client_cert(leaf, rest, time).is_ok());
            let vouching = vouching.ok_or(Refused::Untrusted)?;
            let checked = Checked::at(now, &self.chain, secrets.serial, vouching.ends);
            self.checked.set(Some(checked));
        }
        self.verified.as_ref().map_err(|refused| *refused)
    }
}

impl Checked {
    fn at(
        now: SystemTime,
        chain: &[CertificateDer<'static>],
        serial: u64,
        authority_ends: SystemTime,
    ) -> Self {
        let ends = chain.iter().filter_map(|own| tls::not_after(own));
        // Valid through the second in which it ends (RFC 5280 section 4.1.2.5).
        let ends = ends.filter(|ends| *ends + Duration::from_secs(1) > now);
        Self {
            serial,
            from: now,
            until: ends.min().map_or(now, |ends| ends.min(authority_ends)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use testkit::certs::Authority;
    use testkit::tempdir::TempDir;
    use tls::{KeyPair, MinVersion, Origin, SecretStore, TerminatingParams};

    use super::*;
    use crate::terminate::secrets::Store;

    /// Beside an authority that outlives it.
    #[test]
    fn certificate_is_refused_after_its_last_second() {
        let dir = TempDir::new("identity").unwrap();
        let clients = Authority::new("clients").unwrap();
        clients.write(&dir.join("clients.crt")).unwrap();
        let own = clients.server(&["api.test"]).unwrap();
        let own = own.write(dir.path(), "own").unwrap();
        let authorities = Origin::File(dir.join("clients.crt"));
        let params = TerminatingParams {
            certificate: KeyPair::Files {
                cert: own.cert,
                key: own.key,
            },
            client_ca: Some(authorities.clone()),
            min_version: MinVersion::Tls12,
            upstream_ca: authorities,
            identity: None,
        };
        let store = Store::new(&params, &SecretStore::default(), None);
        let secrets = store.last().unwrap();
        let jane = clients.ending_client("jane", Duration::from_secs(3600));
        let pem = jane.unwrap().cert_pem + clients.pem();
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes());
        let chain: Vec<_> = chain.map(Result::unwrap).collect();
        let ends = tls::not_after(&chain[0]).unwrap();
        let before = ends - Duration::from_secs(2);
        let client = ClientIdentity::new(chain, &secrets, Some(before));
        for (after, refused) in [
            (0, None),
            (900, None),
            (1000, Some(Refused::Untrusted)),
            (900, None),
        ] {
            let at = ends + Duration::from_millis(after);
            assert_eq!(client.verify(&secrets, at).err(), refused, "{after} ms");
        }
    }
}
