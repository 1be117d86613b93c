//! Secrets (SDS).

use bytes::Bytes;
use prost::Message;
use zeroize::{Zeroize, Zeroizing};

use crate::proto::{DataSource, Secret, TlsCertificate, ValidationContext};
use crate::resource::{Audience, Resource, ResourceType};

/// Encodes a certificate with its chain, and its key; PEM.
#[must_use]
pub fn key_pair(name: &str, certificate: &[u8], key: &[u8]) -> Resource {
    secret(Secret {
        name: name.to_owned(),
        tls_certificate: Some(TlsCertificate {
            certificate_chain: Some(inline(certificate)),
            private_key: Some(inline(key)),
        }),
        validation_context: None,
    })
}

/// Encodes authorities; PEM.
#[must_use]
pub fn authorities(name: &str, pem: &[u8]) -> Resource {
    secret(Secret {
        name: name.to_owned(),
        tls_certificate: None,
        validation_context: Some(ValidationContext {
            trusted_ca: Some(inline(pem)),
        }),
    })
}

fn inline(bytes: &[u8]) -> DataSource {
    DataSource {
        inline_bytes: bytes.to_vec(),
    }
}

/// The body is wiped when its last clone is dropped.
fn secret(mut message: Secret) -> Resource {
    let body = Bytes::from_owner(Zeroizing::new(message.encode_to_vec()));
    if let Some(TlsCertificate { private_key, .. }) = &mut message.tls_certificate {
        private_key
            .iter_mut()
            .for_each(|key| key.inline_bytes.zeroize());
    }
    Resource {
        kind: ResourceType::Secret,
        name: message.name.into(),
        body,
        audience: Audience::Parts,
    }
}
