//! `--cipher-suites` and `--tls-min-version`: Go's names, and what of it there is here.
//!
//! As in Go, the list is of TLS 1.2 only and the suites of TLS 1.3 are always on. Suites with CBC,
//! which Go still counts as secure, are accepted by name and not offered.

use rustls::CipherSuite;

use super::checks::Checks;

/// Versions and cipher suites of TLS, of both ports of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Whether TLS 1.2 is refused.
    pub only_tls13: bool,
    /// The suites of TLS 1.2 that are offered; empty for all there are.
    pub cipher_suites: Vec<CipherSuite>,
}

impl TlsSettings {
    pub(crate) fn new(names: &[String], min_version: &str, checks: &mut Checks<'_>) -> Self {
        let cipher_suites = suites(names, checks);
        // A list without any of TLS 1.2 leaves nothing to speak it with.
        let none = !names.is_empty() && cipher_suites.is_empty();
        Self {
            only_tls13: only_13(min_version, checks) || none,
            cipher_suites,
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

fn suites(names: &[String], checks: &mut Checks<'_>) -> Vec<CipherSuite> {
    let (mut wanted, mut absent) = (Vec::new(), Vec::new());
    for name in names {
        match GO_SECURE.iter().find(|(known, _)| known == name) {
            Some((_, Offered::Always)) => {}
            Some((_, Offered::Here(suite))) => wanted.push(*suite),
            Some((_, Offered::Never)) => absent.push(name.as_str()),
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
    wanted
}

/// What becomes of a suite that is asked for.
enum Offered {
    /// It is of TLS 1.3.
    Always,
    /// It is of TLS 1.2, and there.
    Here(CipherSuite),
    /// It is of TLS 1.2, and not there.
    Never,
}

/// What Go's `tls.CipherSuites` returns.
const GO_SECURE: [(&str, Offered); 13] = {
    use CipherSuite as Suite;
    [
        ("TLS_AES_128_GCM_SHA256", Offered::Always),
        ("TLS_AES_256_GCM_SHA384", Offered::Always),
        ("TLS_CHACHA20_POLY1305_SHA256", Offered::Always),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", Offered::Never),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            Offered::Here(Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", Offered::Never),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            Offered::Here(Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            Offered::Here(Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", Offered::Never),
        (
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Offered::Here(Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        ),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", Offered::Never),
        (
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Offered::Here(Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            Offered::Here(Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
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
        let names = [
            "TLS_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        ];
        let (settings, warnings) = settings(&names, "").unwrap();
        assert_eq!(
            settings.cipher_suites,
            [CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]
        );
        assert!(!settings.only_tls13);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_go_has_and_we_have_not_is_warned_of() {
        let (settings, warnings) = settings(&["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"], "").unwrap();
        assert!(warnings[0].contains("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"));
        assert!(settings.only_tls13, "none of TLS 1.2 is left");
    }

    #[test]
    fn every_suite_that_is_said_to_be_here_is() {
        let here = |suite| {
            let all = rustls::crypto::ring::ALL_CIPHER_SUITES;
            all.iter().any(|own| own.suite() == suite)
        };
        for (name, offered) in GO_SECURE {
            match offered {
                Offered::Here(suite) => {
                    assert!(here(suite), "{name}");
                    assert_eq!(format!("{suite:?}"), name);
                }
                Offered::Always | Offered::Never => {}
            }
        }
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
        assert!(!settings(&[], "").unwrap().0.only_tls13);
        assert!(!settings(&[], "VersionTLS12").unwrap().0.only_tls13);
        assert!(settings(&[], "VersionTLS13").unwrap().0.only_tls13);
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
