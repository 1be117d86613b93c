//! Decodes secrets (SDS). Faults name fields, and never what is in them.

use tls::Secret;
use zeroize::Zeroizing;

use crate::decode::fault::{Fault, Within};
use crate::proto::{self, DataSource};

/// Bytes of the largest secret, which is Kubernetes' own limit.
pub(super) const MAX_SECRET_BYTES: usize = 1 << 20;

pub(super) fn read(mut message: proto::Secret) -> Result<Secret, Fault> {
    let name = &message.name;
    match (
        message.tls_certificate.take(),
        message.validation_context.take(),
    ) {
        (Some(pair), None) => {
            let key = Zeroizing::new(bytes(pair.private_key));
            let certificate = bytes(pair.certificate_chain);
            if certificate.is_empty() || key.is_empty() {
                let why = "certificate_chain and private_key are needed, as inline_bytes";
                return Err(Fault::at("tls_certificate", why));
            }
            Ok(Secret::key_pair(name, certificate, key))
        }
        (None, Some(context)) => {
            let authorities = bytes(context.trusted_ca);
            if authorities.is_empty() {
                let why = Fault::new("it is needed, as inline_bytes");
                return Err(why).within("validation_context.trusted_ca");
            }
            Ok(Secret::authorities(name, authorities))
        }
        _ => Err(Fault::new(
            "one of tls_certificate and validation_context is needed",
        )),
    }
}

fn bytes(source: Option<DataSource>) -> Vec<u8> {
    source.unwrap_or_default().inline_bytes
}
