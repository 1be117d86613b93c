//! The crates whose log there may be: a directive for any other is a mistake.
//!
//! A list, because a crate is known to the logger only once it has logged. Which of them a program
//! is made of is not looked at.

/// Returns whether `target` is a module of one of the crates.
pub(super) fn is_known(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    CRATES.split(' ').any(|known| known == name)
}

/// Those of the workspace, and those of others that log by `tracing`.
const CRATES: &str = "\
    apiserver_proxy boringtun connect h2 hickory_net hickory_proto hickory_resolver hickory_server \
    http2_proto http2_server hyper_util knp_proto konnectivity kube_client kube_runtime net_config \
    netpol_controller preamble relay route serve settings sni_proxy telemetry tls tonic tower \
    tower_http tunnel tunnel_proto udp vpn_client vpn_provision vpn_server xds";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Crates of the workspace that are in no program.
    const TOOLS: &str = "deploy monitoring rhizome-bench rhizome-micro testkit xtask";

    #[test]
    fn crates_are_those_of_the_lock_file() {
        let lock = include_str!("../../../../Cargo.lock");
        let expected: BTreeSet<String> = lock
            .split("[[package]]")
            .skip(1)
            .filter(|package| {
                let is_ours = !package.contains("\nsource = ");
                is_ours || package.contains("\n \"tracing\",")
            })
            .filter_map(|package| package.split('"').nth(1))
            .filter(|name| !TOOLS.split(' ').any(|tool| tool == *name))
            .map(|name| name.replace('-', "_"))
            .collect();
        let expected: Vec<String> = expected.into_iter().collect();
        assert_eq!(CRATES, expected.join(" "));
    }

    #[test]
    fn modules_are_known_by_their_crate() {
        for target in ["serve", "konnectivity::server::agents", "hickory_server"] {
            assert!(is_known(target), "{target}");
        }
        for target in ["", "level", "::serve", "serv", "serve.tcp", "sni-proxy"] {
            assert!(!is_known(target), "{target}");
        }
    }
}
