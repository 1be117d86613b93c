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
    #[must_use]
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
    let dns = cert
        .valid_dns_names()
        .map(|name| SubjectAltName::Dns(name.to_owned()));
    let uris = cert
        .valid_uri_names()
        .map(|name| SubjectAltName::Uri(name.to_owned()));
    Ok(dns.chain(uris).collect())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use testkit::certs::Authority;

    use super::*;

    fn names(pem: &str) -> Vec<SubjectAltName> {
        let cert = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        subject_alt_names(&cert).unwrap().into_iter().collect()
    }

    #[test]
    fn names_of_both_kinds_are_distinguished() {
        let authority = Authority::new("ca").unwrap();
        let server = authority
            .server(&["b.example.com", "*.a.example.com", "10.0.0.1"])
            .unwrap();
        assert_eq!(
            names(&server.cert_pem),
            [
                SubjectAltName::Dns("*.a.example.com".to_owned()),
                SubjectAltName::Dns("b.example.com".to_owned())
            ]
        );
        let client = authority
            .client("gateway", &[], &["spiffe://example.com/gateway"])
            .unwrap();
        assert_eq!(
            names(&client.cert_pem),
            [SubjectAltName::Uri(
                "spiffe://example.com/gateway".to_owned()
            )]
        );
    }

    #[test]
    fn common_name_is_ignored() {
        let authority = Authority::new("ca").unwrap();
        let client = authority.client("gateway", &["group"], &[]).unwrap();
        assert_eq!(names(&client.cert_pem), []);
    }

    #[test]
    fn garbage_has_no_names() {
        let garbage = CertificateDer::from(vec![0x30, 0x82, 1, 2, 3]);
        assert!(matches!(
            subject_alt_names(&garbage),
            Err(TlsError::Names(_))
        ));
    }
}
