//! What the endpoints of server and agent have in common beside [`telemetry::Endpoints`].

use telemetry::Fact;
use telemetry::admin::Extra;

/// Answers with a text as Go programs send it: no newline at the end, unless `body` has one.
pub(crate) fn text(status: u16, body: impl Into<String>) -> Extra {
    (status, "text/plain; charset=utf-8", body.into())
}

/// Makes a line of the page.
pub(crate) fn fact(name: &str, value: String) -> Fact {
    let name = name.to_owned();
    Fact { name, value }
}

/// Returns whether a probe asks for a list of checks, as Kubernetes' programs understand it.
pub(crate) fn is_verbose(query: Option<&str>) -> bool {
    let mut keys = query.into_iter().flat_map(|query| query.split('&'));
    keys.any(|pair| pair.split('=').next() == Some("verbose"))
}

/// Answers for the paths of Go's profiles, which `--enable-profiling` would switch on: there are
/// none, and what there is instead is said.
pub(crate) fn profiles(path: &str) -> Option<Extra> {
    let below = path.strip_prefix("/debug/pprof")?;
    (below.is_empty() || below.starts_with('/')).then(|| text(404, NO_PROFILES))
}

/// What is answered for Go's profiles.
pub(crate) const NO_PROFILES: &str = "there are no Go profiles in this program; \
     see /status, /connections, /snapshot and /metrics\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_profiles_are_answered() {
        for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/heap"] {
            assert_eq!(profiles(path).map(|answer| answer.0), Some(404), "{path}");
        }
        for path in ["/debug", "/debug/pprofile", "/metrics"] {
            assert_eq!(profiles(path), None, "{path}");
        }
    }
}
