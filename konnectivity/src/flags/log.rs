//! `-v` and `--vmodule` as a log filter.

use super::shared::LogFlags;

/// What `-v` and `--vmodule` mean as directives of a log filter.
///
/// klog's 4 is the default of both programs and logs events of the process, which is `info` here;
/// events of connections are logged from 5 on, packets from 8 on. Third-party crates stay at
/// `info`: their lines per frame would drown the rest.
pub(crate) fn directives(
    flags: &LogFlags,
    rust_log: Option<&str>,
    warnings: &mut Vec<String>,
) -> String {
    let rust_log = rust_log.map(str::trim);
    if let Some(directives) = rust_log.filter(|text| !text.is_empty()) {
        return directives.to_owned();
    }
    let mut directives = vec!["info".to_owned()];
    if flags.v > 4 {
        let level = level(flags.v);
        directives.extend(OURS.iter().map(|name| format!("{name}={level}")));
    }
    let mut unknown = Vec::new();
    for module in &flags.vmodule {
        let known = module.split_once('=').and_then(|(name, verbosity)| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
            let verbosity = verbosity.parse().ok()?;
            (!name.is_empty() && name.bytes().all(plain)).then_some((name, verbosity))
        });
        match known {
            Some((name, verbosity)) if OURS.contains(&name) || name.contains("::") => {
                directives.push(format!("{name}={}", level(verbosity)));
            }
            Some((name, verbosity)) => {
                directives.push(format!("konnectivity::{name}={}", level(verbosity)));
            }
            None => unknown.push(module.as_str()),
        }
    }
    if !unknown.is_empty() {
        let unknown = unknown.join(",");
        warnings.push(format!("--vmodule: not modules of this program: {unknown}"));
    }
    directives.join(",")
}

const fn level(verbosity: i32) -> &'static str {
    match verbosity {
        i32::MIN..=4 => "info",
        5..=7 => "debug",
        8.. => "trace",
    }
}

/// Crates that `-v` applies to.
const OURS: [&str; 5] = ["connect", "knp_proto", "konnectivity", "serve", "tls"];

#[cfg(test)]
mod tests {
    use super::super::shared::LogWord;
    use super::*;

    fn filter(verbosity: i32, modules: &[&str], log: Option<&str>) -> (String, usize) {
        let flags = LogFlags {
            log_format: LogWord::Text,
            v: verbosity,
            vmodule: modules.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut warnings = Vec::new();
        let text = directives(&flags, log, &mut warnings);
        (text, warnings.len())
    }

    #[test]
    fn default_verbosity_is_info() {
        for verbosity in [-1, 0, 1, 4] {
            assert_eq!(filter(verbosity, &[], None), ("info".to_owned(), 0));
        }
    }

    #[test]
    fn verbosity_applies_to_own_crates() {
        let (text, _) = filter(5, &[], None);
        assert!(text.starts_with("info,") && text.contains(",konnectivity=debug"));
        assert!(filter(8, &[], None).0.contains("konnectivity=trace"));
    }

    #[test]
    fn vmodule_sets_single_modules() {
        let (text, warnings) = filter(2, &["server=6", "knp_proto::link=8", "tls=5"], None);
        assert_eq!(
            text,
            "info,konnectivity::server=debug,knp_proto::link=trace,tls=debug"
        );
        assert_eq!(warnings, 0);
        assert_eq!(
            filter(2, &["tunnel*=6", "x", "=1", "a=b"], None),
            ("info".to_owned(), 1)
        );
    }

    #[test]
    fn rust_log_wins() {
        assert_eq!(filter(9, &["a=b"], Some("warn")), ("warn".to_owned(), 0));
        assert_eq!(filter(0, &[], Some(" ")), ("info".to_owned(), 0));
    }
}
