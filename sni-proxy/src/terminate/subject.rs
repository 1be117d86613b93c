//! The subject of a client's certificate, as an authenticating proxy passes it on.
//!
//! ```text
//!     DER ─▶ user: the last CN; groups: each O that is not empty      as kube-apiserver takes them
//! ```
//!
//! What a header cannot carry as it is makes the whole unusable: nothing is trimmed, cut or left out. Verifies
//! nothing.

use http::HeaderValue;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate};

#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) user: HeaderValue,
    pub(crate) groups: Vec<HeaderValue>,
}

impl Subject {
    /// Reads it from a certificate; `None` if it names no user, or cannot be passed on.
    pub(crate) fn of(cert: &[u8]) -> Option<Self> {
        let (_, cert) = X509Certificate::from_der(cert).ok()?;
        let subject = cert.subject();
        let user = text(subject.iter_common_name().last()?).ok()??;
        let groups = subject.iter_organization().map(text);
        let groups = groups.filter_map(Result::transpose);
        Some(Self {
            user,
            groups: groups.collect::<Result<_, _>>().ok()?,
        })
    }
}

/// An attribute that cannot be a header.
#[derive(Debug)]
pub(crate) struct NoHeader;

/// Returns an attribute as a header carries it; `None` if it is empty.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<Option<HeaderValue>, NoHeader> {
    let value = attribute.attr_value();
    let known = [Tag::Utf8String, Tag::PrintableString, Tag::Ia5String];
    if !known.contains(&value.tag()) {
        return Err(NoHeader);
    }
    header_text(std::str::from_utf8(value.data).map_err(|_| NoHeader)?)
}

/// Returns a name as a header carries it, exactly; `None` if it is empty.
pub(crate) fn header_text(text: &str) -> Result<Option<HeaderValue>, NoHeader> {
    if text.chars().any(char::is_control) || text != text.trim() {
        return Err(NoHeader);
    }
    if text.is_empty() {
        return Ok(None);
    }
    let value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| NoHeader)?;
    Ok(Some(value))
}
