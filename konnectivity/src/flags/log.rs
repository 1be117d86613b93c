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

    #[test]
    fn directives_follow_v_vmodule_and_rust_log() {
        let debug = "info,connect=debug,knp_proto=debug,konnectivity=debug,serve=debug,tls=debug";
        let modules = "info,konnectivity::server=debug,knp_proto::link=trace,tls=debug";
        for (v, vmodule, rust_log, expected, warns) in [
            (-1, "", None, "info", false),
            (0, "", None, "info", false),
            (1, "", None, "info", false),
            (4, "", None, "info", false),
            (5, "", None, debug, false),
            (8, "", None, &debug.replace("debug", "trace"), false),
            (2, "server=6,knp_proto::link=8,tls=5", None, modules, false),
            (2, "tunnel*=6,x,=1,a=b", None, "info", true),
            (9, "a=b", Some("warn"), "warn", false),
            (0, "", Some(" "), "info", false),
        ] {
            let vmodule = vmodule.split_terminator(',').map(str::to_owned).collect();
            let flags = LogFlags {
                log_format: LogWord::Text,
                v,
                vmodule,
            };
            let mut warnings = Vec::new();
            let text = directives(&flags, rust_log, &mut warnings);
            assert_eq!((text.as_str(), warnings.len()), (expected, warns.into()));
        }
    }
}
