//! `--cipher-suites` and `--tls-min-version`: Go's names, and what of it there is here.
//!
//! As in Go, the list is of TLS 1.2 only and the suites of TLS 1.3 are always on. Suites with CBC,
//! which Go still counts as secure, are accepted by name and not offered.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion, version};

use super::checks::Checks;

/// Versions and cipher suites of TLS, of both ports of a server.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    only_13: bool,
    suites: Vec<SupportedCipherSuite>,
}

impl TlsSettings {
    /// Returns the protocol versions, for `ServerConfig::builder_with_provider`.
    #[must_use]
    pub fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.only_13 {
            ONLY_13
        } else {
            rustls::ALL_VERSIONS
        }
    }

    /// Returns ring's cryptography with the cipher suites asked for.
    #[must_use]
    pub fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider {
            cipher_suites: self.suites.clone(),
            ..ring::default_provider()
        })
    }

    pub(crate) fn new(names: &[String], min_version: &str, checks: &mut Checks<'_>) -> Self {
        Self {
            only_13: only_13(min_version, checks),
            suites: suites(names, checks),
        }
    }
}

fn only_13(min_version: &str, checks: &mut Checks<'_>) -> bool {
    let flag = "tls-min-version";
    match min_version {
        "" | "VersionTLS12" => return false,
        "VersionTLS13" => return true,
        "VersionTLS10" | "VersionTLS11" => checks.refuse(
            flag,
            format!("{min_version} is broken and not there; VersionTLS12 and VersionTLS13 are"),
        ),
        _ => checks.refuse(
            flag,
            format!("{min_version:?} is neither VersionTLS12 nor VersionTLS13"),
        ),
    }
    false
}

fn suites(names: &[String], checks: &mut Checks<'_>) -> Vec<SupportedCipherSuite> {
    let (mut wanted, mut absent) = (Vec::new(), Vec::new());
    for name in names {
        match GO_SECURE.iter().find(|(known, _)| known == name) {
            Some((_, Some(suite))) => wanted.push(*suite),
            Some((_, None)) => absent.push(name.as_str()),
            None => {
                let known: Vec<_> = GO_SECURE.iter().map(|(name, _)| *name).collect();
                let known = known.join(", ");
                checks.refuse(
                    "cipher-suites",
                    format!("{name:?} is none that Go calls secure, which are {known}"),
                );
            }
        }
    }
    if !absent.is_empty() {
        let absent = absent.join(", ");
        checks.warn(format!(
            "--cipher-suites: not there and not offered: {absent}"
        ));
    }
    let all = ring::ALL_CIPHER_SUITES.iter().copied();
    all.filter(|own| own.tls13().is_some() || names.is_empty() || wanted.contains(&own.suite()))
        .collect()
}

static ONLY_13: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// What Go's `tls.CipherSuites` returns, and its number where ring has it.
const GO_SECURE: [(&str, Option<CipherSuite>); 13] = {
    use CipherSuite as Suite;
    [
        (
            "TLS_AES_128_GCM_SHA256",
            Some(Suite::TLS13_AES_128_GCM_SHA256),
        ),
        (
            "TLS_AES_256_GCM_SHA384",
            Some(Suite::TLS13_AES_256_GCM_SHA384),
        ),
        (
            "TLS_CHACHA20_POLY1305_SHA256",
            Some(Suite::TLS13_CHACHA20_POLY1305_SHA256),
        ),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", None),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            Some(Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", None),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            Some(Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            Some(Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", None),
        (
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Some(Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        ),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", None),
        (
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Some(Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            Some(Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::read::Given;

    fn settings(names: &[&str], version: &str) -> Result<(TlsSettings, Vec<String>), String> {
        let given = Given::default();
        let mut checks = Checks::new(&given);
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let settings = TlsSettings::new(&names, version, &mut checks);
        match checks.finish() {
            Ok(warnings) => Ok((settings, warnings)),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_list_limits_tls_12_and_leaves_13_alone() {
        let name = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
        let (settings, warnings) = settings(&[name], "").unwrap();
        let suites = settings.provider().cipher_suites.clone();
        let old: Vec<_> = suites.iter().filter(|own| own.tls13().is_none()).collect();
        assert_eq!(old.len(), 1);
        assert_eq!(
            old[0].suite(),
            CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
        );
        assert_eq!(suites.len(), 4);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_go_has_and_we_have_not_is_warned_of() {
        let (_, warnings) = settings(&["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"], "").unwrap();
        assert!(warnings[0].contains("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for name in [
            "TLS_RSA_WITH_AES_128_GCM_SHA256",
            "ECDHE-RSA-AES128-GCM-SHA256",
            "",
        ] {
            let error = settings(&[name], "").unwrap_err();
            assert!(error.starts_with("--cipher-suites: "), "{error}");
            assert!(error.contains("TLS_AES_128_GCM_SHA256"), "{error}");
        }
    }

    #[test]
    fn old_versions_are_refused_with_the_reason() {
        assert_eq!(settings(&[], "").unwrap().0.versions().len(), 2);
        assert_eq!(settings(&[], "VersionTLS12").unwrap().0.versions().len(), 2);
        assert_eq!(settings(&[], "VersionTLS13").unwrap().0.versions().len(), 1);
        for version in ["VersionTLS10", "VersionTLS11"] {
            let error = settings(&[], version).unwrap_err();
            assert!(
                error.contains(version) && error.contains("broken"),
                "{error}"
            );
        }
        assert!(settings(&[], "1.3").is_err());
    }
}
