//! Messages of TLS: `envoy.extensions.transport_sockets.tls.v3`, with secrets by name alone.

use std::fmt;

use super::core::{ConfigSource, StringMatcher};
use super::known::messages;

/// Values of `TlsParameters.TlsProtocol`.
pub(crate) mod tls_protocol {
    pub(crate) const AUTO: i32 = 0;
    pub(crate) const TLS_1_2: i32 = 3;
    pub(crate) const TLS_1_3: i32 = 4;
}

/// Value of `SubjectAltNameMatcher.SanType` for a DNS name.
pub(crate) const SAN_DNS: i32 = 2;

messages! {
    /// `DownstreamTlsContext`.
    struct DownstreamTlsContext {
        1 common: Option<CommonTlsContext> [message] as "common_tls_context";
        2 require_client_certificate: Option<bool> [message];
    } ignored {
        6 session_timeout, 7 disable_stateless_session_resumption, 8 ocsp_staple_policy,
        9 full_scan_certs_on_sni_mismatch, 10 disable_stateful_session_resumption,
        11 prefer_client_ciphers,
    } refused {
        3 require_sni, 4 session_ticket_keys, 5 session_ticket_keys_sds_secret_config,
    }

    /// `UpstreamTlsContext`.
    struct UpstreamTlsContext {
        1 common: Option<CommonTlsContext> [message] as "common_tls_context";
        2 sni: String [string];
    } ignored {
        4 max_session_keys, 5 enforce_rsa_key_usage,
    } refused {
        3 allow_renegotiation, 6 auto_host_sni, 7 auto_sni_san_validation,
    }

    /// `CommonTlsContext`.
    struct CommonTlsContext {
        1 tls_params: Option<TlsParameters> [message];
        4 alpn_protocols: Vec<String> [string, repeated];
        6 tls_certificate_sds_secret_configs: Vec<SdsSecretConfig> [message, repeated];
        7 validation_context_sds_secret_config: Option<SdsSecretConfig> [message];
        8 combined_validation_context: Option<CombinedValidationContext> [message];
    } refused {
        2 tls_certificates, 3 validation_context, 9 tls_certificate_certificate_provider,
        10 validation_context_certificate_provider,
        11 tls_certificate_certificate_provider_instance,
        12 validation_context_certificate_provider_instance, 13 custom_handshaker,
        14 tls_certificate_provider_instance, 15 key_log, 16 custom_tls_certificate_selector,
    }

    /// `TlsParameters`.
    #[derive(Copy)]
    struct TlsParameters {
        /// See [`tls_protocol`].
        1 tls_minimum_protocol_version: i32 [int32];
    } refused {
        2 tls_maximum_protocol_version, 3 cipher_suites, 4 ecdh_curves, 5 signature_algorithms,
        6 compliance_policies,
    }

    /// `CommonTlsContext.CombinedCertificateValidationContext`.
    struct CombinedValidationContext {
        1 default_validation_context: Option<NameValidation> [message];
        2 validation_context_sds_secret_config: Option<SdsSecretConfig> [message];
    } refused {
        3 validation_context_certificate_provider,
        4 validation_context_certificate_provider_instance,
    }

    /// `CertificateValidationContext` that says which names are accepted.
    struct NameValidation {
        15 match_typed_subject_alt_names: Vec<SubjectAltNameMatcher> [message, repeated];
    } refused {
        1 trusted_ca, 2 verify_certificate_hash, 3 verify_certificate_spki,
        6 require_signed_certificate_timestamp, 7 crl, 8 allow_expired_certificate,
        9 match_subject_alt_names, 10 trust_chain_verification, 11 watched_directory,
        12 custom_validator_config, 13 ca_certificate_provider_instance,
        14 only_verify_leaf_cert_crl, 16 max_verify_depth, 17 system_root_certs,
    }

    /// `SubjectAltNameMatcher`.
    struct SubjectAltNameMatcher {
        /// 2 is DNS.
        1 san_type: i32 [int32];
        2 matcher: Option<StringMatcher> [message];
    } refused {
        3 oid,
    }

    /// `SdsSecretConfig`.
    struct SdsSecretConfig {
        1 name: String [string];
        2 sds_config: Option<ConfigSource> [message];
    }

    /// `Secret`.
    #[prost(skip_debug)]
    struct Secret {
        1 name: String [string];
        2 tls_certificate: Option<TlsCertificate> [message];
        4 validation_context: Option<ValidationContext> [message];
    } refused {
        3 session_ticket_keys, 5 generic_secret,
    }

    /// `TlsCertificate`.
    #[prost(skip_debug)]
    struct TlsCertificate {
        1 certificate_chain: Option<DataSource> [message];
        2 private_key: Option<DataSource> [message];
    } refused {
        3 password, 4 ocsp_staple, 5 signed_certificate_timestamp, 6 private_key_provider,
        7 watched_directory, 8 pkcs12,
    }

    /// `CertificateValidationContext` that has authorities.
    #[prost(skip_debug)]
    struct ValidationContext {
        1 trusted_ca: Option<DataSource> [message];
    } refused {
        2 verify_certificate_hash, 3 verify_certificate_spki,
        6 require_signed_certificate_timestamp, 7 crl, 8 allow_expired_certificate,
        9 match_subject_alt_names, 10 trust_chain_verification, 11 watched_directory,
        12 custom_validator_config, 13 ca_certificate_provider_instance,
        14 only_verify_leaf_cert_crl, 15 match_typed_subject_alt_names, 16 max_verify_depth,
        17 system_root_certs,
    }

    /// `envoy.config.core.v3.DataSource`.
    #[prost(skip_debug)]
    struct DataSource {
        2 inline_bytes: Vec<u8> [bytes = "vec"];
    } refused {
        1 filename, 3 inline_string, 4 environment_variable, 5 watched_directory,
    }
}

macro_rules! hidden {
    ($($name:ident),*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )* };
}

hidden!(DataSource, Secret, TlsCertificate, ValidationContext);
