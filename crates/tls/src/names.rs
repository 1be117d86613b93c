//! The names that a certificate carries.

use std::collections::BTreeSet;
use std::fmt;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::error::TlsError;

/// A subject alternative name, RFC 5280 section 4.2.1.6, of the kinds that identify peers.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SubjectAltName {
    /// A DNS name, as written.
    Dns(String),
    /// A URI such as a SPIFFE id, as written.
    Uri(String),
}

impl SubjectAltName {
    /// Returns the name as written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Dns(name) | Self::Uri(name) => name,
        }
    }
}

impl fmt::Display for SubjectAltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the DNS and URI names of a certificate. Names that are not well formed, and those of
/// other kinds, are left out.
///
/// # Errors
/// [`TlsError::Names`] when it is no certificate.
pub fn subject_alt_names(cert: &CertificateDer<'_>) -> Result<BTreeSet<SubjectAltName>, TlsError> {
    let cert = EndEntityCert::try_from(cert).map_err(TlsError::Names)?;
    let dns = cert.valid_dns_names().map(str::to_owned);
    let uris = cert.valid_uri_names().map(str::to_owned);
    let dns = dns.map(SubjectAltName::Dns);
    Ok(dns.chain(uris.map(SubjectAltName::Uri)).collect())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use testkit::certs::Authority;

    use super::*;

    #[test]
    fn dns_and_uri_names_alone_are_read() {
        let authority = Authority::new("ca").unwrap();
        let hosts = ["b.example.com", "*.a.example.com", "10.0.0.1"];
        let uri = "spiffe://example.com/gateway";
        let dns = |name: &str| SubjectAltName::Dns(name.to_owned());
        for (identity, expected) in [
            (
                authority.server(&hosts),
                vec![dns("*.a.example.com"), dns("b.example.com")],
            ),
            (
                authority.client("gateway", &[], &[uri]),
                vec![SubjectAltName::Uri(uri.to_owned())],
            ),
            // The common name and the organization are no names.
            (authority.client("gateway", &["group"], &[]), vec![]),
        ] {
            let pem = identity.unwrap().cert_pem;
            let cert = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            let names: Vec<_> = subject_alt_names(&cert).unwrap().into_iter().collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn garbage_has_no_names() {
        let garbage = CertificateDer::from(vec![0x30, 0x82, 1, 2, 3]);
        let names = subject_alt_names(&garbage);
        assert!(matches!(names, Err(TlsError::Names(_))));
    }
}
