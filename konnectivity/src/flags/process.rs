//! What every process has: its log, warnings about its flags, and what is in effect as text.

use serde_json::Value;
use telemetry::LogFormat;

use super::Environment;
use super::describe::describe;
use super::read::{Given, Settings};

/// Log, warnings and effective configuration of a process.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Whether the configuration is only to be checked and printed.
    pub check: bool,
    /// How logs are written.
    pub log_format: LogFormat,
    /// What is logged: `RUST_LOG`, or what `-v` and `--vmodule` mean.
    pub log_directives: String,
    /// What to warn of once at start.
    pub warnings: Vec<String>,
    pub(crate) effective: Value,
}

impl ProcessConfig {
    /// Returns the configuration in effect, defaults included and secrets left out; keys are flags.
    #[must_use]
    pub fn effective(&self) -> &Value {
        &self.effective
    }
}

/// What `-v` and `--vmodule` mean as directives of a log filter.
///
/// klog's 4 is the default of both programs and says what happens to a process, which is `info`
/// here; what happens to connections is from 5 on, to packets from 8 on. Libraries of others stay
/// at `info`: what they say of each frame drowns the rest.
pub(crate) fn directives(
    verbosity: i32,
    modules: &[String],
    environment: &Environment,
    warnings: &mut Vec<String>,
) -> String {
    let set = environment.log.as_deref().map(str::trim);
    if let Some(directives) = set.filter(|text| !text.is_empty()) {
        return directives.to_owned();
    }
    let mut directives = vec!["info".to_owned()];
    if verbosity > 4 {
        let level = level(verbosity);
        directives.extend(OURS.iter().map(|name| format!("{name}={level}")));
    }
    let mut unknown = Vec::new();
    for module in modules {
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
        warnings.push(format!("--vmodule: no modules of this program: {unknown}"));
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

/// Crates whose log `-v` is for.
const OURS: [&str; 5] = ["connect", "knp_proto", "konnectivity", "serve", "tls"];

/// Returns one warning of all flags that were given other than their defaults and do nothing.
pub(crate) fn without_effect<S: Settings>(flags: &S, given: &Given) -> Option<String> {
    let values = serde_json::to_value(flags).unwrap_or_default();
    let described = describe::<S>();
    let idle: Vec<_> = described
        .iter()
        .filter(|flag| flag.help.starts_with(NO_EFFECT) && given.has(&flag.name))
        .filter(|flag| values.get(&flag.name) != Some(&flag.default))
        .map(|flag| given.shown(&flag.name))
        .collect();
    (!idle.is_empty()).then(|| format!("accepted, but without effect here: {}", idle.join(", ")))
}

/// How the help of flags begins that do nothing.
pub(crate) const NO_EFFECT: &str = "Accepted, has no effect";

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(verbosity: i32, modules: &[&str], log: Option<&str>) -> (String, usize) {
        let modules: Vec<_> = modules.iter().map(|&name| name.to_owned()).collect();
        let environment = Environment {
            log: log.map(str::to_owned),
            ..Environment::default()
        };
        let mut warnings = Vec::new();
        let text = directives(verbosity, &modules, &environment, &mut warnings);
        (text, warnings.len())
    }

    #[test]
    fn the_default_verbosity_is_info() {
        for verbosity in [-1, 0, 1, 4] {
            assert_eq!(filter(verbosity, &[], None), ("info".to_owned(), 0));
        }
    }

    #[test]
    fn more_verbosity_is_for_our_own_code() {
        let (text, _) = filter(5, &[], None);
        assert!(text.starts_with("info,") && text.contains(",konnectivity=debug"));
        assert!(filter(8, &[], None).0.contains("konnectivity=trace"));
    }

    #[test]
    fn single_modules_can_be_named() {
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
