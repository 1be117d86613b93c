//! `--cipher-suites` and `--tls-min-version`, by Go's names.
//!
//! As in Go, the list is of TLS 1.2 only and the suites of TLS 1.3 are always on. Suites with CBC,
//! which Go still counts as secure, are accepted by name and not offered.

use rustls::CipherSuite;

use super::checks::Checks;

/// Returns whether TLS 1.2 is refused, and its suites that are offered; none is all there are.
pub(crate) fn versions_and_suites(
    min_version: &str,
    names: &[String],
    checks: &mut Checks<'_>,
) -> (bool, Vec<CipherSuite>) {
    let suites = suites(names, checks);
    // A list without any of TLS 1.2 leaves nothing to speak it with.
    let none = !names.is_empty() && suites.is_empty();
    (only_13(min_version, checks) || none, suites)
}

fn only_13(min_version: &str, checks: &mut Checks<'_>) -> bool {
    let message = match min_version {
        "" | "VersionTLS12" => return false,
        "VersionTLS13" => return true,
        "VersionTLS10" | "VersionTLS11" => {
            format!("{min_version} is broken and not offered; VersionTLS12 and VersionTLS13 are")
        }
        _ => format!("{min_version:?} is neither VersionTLS12 nor VersionTLS13"),
    };
    checks.refuse("tls-min-version", message);
    false
}

fn suites(names: &[String], checks: &mut Checks<'_>) -> Vec<CipherSuite> {
    let (mut wanted, mut absent) = (Vec::new(), Vec::new());
    for name in names.iter().map(String::as_str) {
        if let Some(suite) = OFFERED.iter().find(|suite| suite.as_str() == Some(name)) {
            wanted.push(*suite);
        } else if CBC.contains(&name) {
            absent.push(name);
        } else if !TLS13.contains(&name) {
            let offered = OFFERED.iter().filter_map(CipherSuite::as_str);
            let known: Vec<_> = TLS13.into_iter().chain(offered).chain(CBC).collect();
            let known = known.join(", ");
            let message = format!("{name:?} is none that Go calls secure, which are {known}");
            checks.refuse("cipher-suites", message);
        }
    }
    if !absent.is_empty() {
        let absent = absent.join(", ");
        checks.warn(format!("--cipher-suites: not available: {absent}"));
    }
    wanted
}

/// Those of Go's `tls.CipherSuites` that are of TLS 1.3 and always on.
const TLS13: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

/// Those that are of TLS 1.2 and available; rustls has Go's names.
const OFFERED: [CipherSuite; 6] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Those that are of TLS 1.2 and not available.
const CBC: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Environment, read::Given};

    type Settings = ((bool, Vec<CipherSuite>), Vec<String>);

    fn settings(names: &[&str], version: &str) -> Result<Settings, String> {
        let (given, environment) = (Given::default(), Environment::default());
        let mut checks = Checks::new(&given, &environment);
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let settings = versions_and_suites(version, &names, &mut checks);
        let warnings = checks.finish().map_err(|error| error.to_string())?;
        Ok((settings, warnings))
    }

    #[test]
    fn cipher_suites_limit_tls_12_only() {
        let only = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
        let ((only_tls13, suites), warnings) =
            settings(&["TLS_AES_128_GCM_SHA256", only], "").unwrap();
        assert_eq!(suites, [CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]);
        assert!(!only_tls13);
        assert_eq!(warnings, [""; 0]);
        let cbc = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA";
        let ((only_tls13, _), warnings) = settings(&[cbc], "").unwrap();
        assert!(warnings[0].contains(cbc));
        assert!(only_tls13, "none of TLS 1.2 is left");
    }

    #[test]
    fn offered_suites_are_available() {
        let all = rustls::crypto::ring::ALL_CIPHER_SUITES;
        for suite in OFFERED {
            assert!(all.iter().any(|own| own.suite() == suite), "{suite:?}");
            assert!(settings(&[suite.as_str().unwrap()], "").unwrap().0.1 == [suite]);
        }
    }

    #[test]
    fn unknown_suites_are_rejected() {
        for name in ["TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256", ""] {
            let error = settings(&[name], "").unwrap_err();
            assert!(error.starts_with("--cipher-suites: "), "{error}");
            assert!(error.contains("TLS_AES_128_GCM_SHA256"), "{error}");
        }
    }

    #[test]
    fn old_versions_are_rejected_with_reason() {
        for (version, only_tls13) in [("", false), ("VersionTLS12", false), ("VersionTLS13", true)]
        {
            assert_eq!(settings(&[], version).unwrap().0.0, only_tls13);
        }
        for (version, reason) in [
            ("VersionTLS10", "VersionTLS10 is broken"),
            ("VersionTLS11", "VersionTLS11 is broken"),
            ("1.3", "neither"),
        ] {
            let error = settings(&[], version).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
