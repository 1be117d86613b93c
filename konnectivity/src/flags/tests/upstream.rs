//! Names and defaults are those of upstream, but where it has no bound.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::describe::describe;
use super::super::process::NO_EFFECT;
use super::super::server_config::NOT_WITH_REGISTRY;
use super::{AgentFlags, ServerFlags};

const KLOG: [(&str, &str); 13] = [
    ("add-dir-header", "false"),
    ("alsologtostderr", "false"),
    ("log-backtrace-at", ":0"),
    ("log-dir", ""),
    ("log-file", ""),
    ("log-file-max-size", "1800"),
    ("logtostderr", "true"),
    ("one-output", "false"),
    ("skip-headers", "false"),
    ("skip-log-headers", "false"),
    ("stderrthreshold", "2"),
    ("v", "4"),
    ("vmodule", ""),
];

/// Ours, that both programs have.
const BOTH: [(&str, &str); 3] = [
    ("log-format", "text"),
    ("max-buffered-bytes", "256MiB"),
    ("slow-consumer", "close"),
];

const SERVER: [(&str, &str); 50] = [
    ("admin-bind-address", "127.0.0.1"),
    ("admin-port", "8095"),
    ("agent-bind-address", ""),
    ("agent-namespace", ""),
    ("agent-port", "8091"),
    ("agent-service-account", ""),
    ("authentication-audience", ""),
    ("cipher-suites", ""),
    ("cluster-ca-cert", ""),
    ("cluster-cert", ""),
    ("cluster-key", ""),
    ("delete-existing-uds-file", "true"),
    ("enable-contention-profiling", "false"),
    ("enable-lease-controller", "false"),
    ("enable-profiling", "false"),
    ("frontend-keepalive-time", "1h"),
    ("graceful-shutdown-timeout", "0s"),
    ("health-bind-address", ""),
    ("health-port", "8092"),
    (
        "kube-api-content-type",
        "application/vnd.kubernetes.protobuf",
    ),
    ("kubeconfig", ""),
    ("kubeconfig-burst", "0"),
    ("kubeconfig-qps", "0.0"),
    ("lease-label", "k8s-app=konnectivity-server"),
    ("lease-namespace", "kube-system"),
    ("mode", "grpc"),
    ("proxy-strategies", "default"),
    ("server-bind-address", ""),
    ("server-ca-cert", ""),
    ("server-cert", ""),
    ("server-count", "1"),
    ("server-id", ""),
    ("server-key", ""),
    ("server-port", "8090"),
    ("tls-min-version", ""),
    ("uds-name", ""),
    ("warn-on-channel-limit", "true"),
    ("xfr-channel-size", "10"),
    // Upstream waits for ever, or nearly so.
    ("backend-dial-timeout", "10s"),
    ("keepalive-time", "30s"),
    // Ours.
    ("access-log", "off"),
    ("graceful-shutdown-delay", "0s"),
    ("keepalive-timeout", "10s"),
    ("max-agents", "10000"),
    ("max-dials-per-second", "0"),
    ("max-pending-dials", "1000"),
    ("max-tunnels", "10000"),
    ("per-cluster-metrics", "false"),
    ("registry", ""),
    ("workers", "0"),
];

const AGENT: [(&str, &str); 34] = [
    ("admin-bind-address", "127.0.0.1"),
    ("admin-server-port", "8094"),
    ("agent-cert", ""),
    ("agent-id", ""),
    ("agent-identifiers", ""),
    ("agent-key", ""),
    ("alpn-proto", ""),
    ("ca-cert", ""),
    ("count-server-leases", "false"),
    ("enable-contention-profiling", "false"),
    ("enable-profiling", "false"),
    ("health-server-host", ""),
    ("health-server-port", "8093"),
    (
        "kube-api-content-type",
        "application/vnd.kubernetes.protobuf",
    ),
    ("kubeconfig", ""),
    ("lease-label", ""),
    ("lease-label-selector", "k8s-app=konnectivity-server"),
    ("lease-namespace", "kube-system"),
    ("probe-interval", "1s"),
    ("proxy-server-host", "127.0.0.1"),
    ("proxy-server-port", "8091"),
    ("server-count-source", "default"),
    ("service-account-token-path", ""),
    ("sync-forever", "false"),
    ("sync-interval", "1s"),
    ("sync-interval-cap", "10s"),
    ("warn-on-channel-limit", "false"),
    ("xfr-channel-size", "150"),
    // Upstream pings every hour, which notices nothing.
    ("keepalive-time", "0s"),
    // Ours.
    ("allow-destinations", ""),
    ("dial-timeout", "5s"),
    ("grace-period", "25s"),
    ("max-pending-dials", "1000"),
    ("max-tunnels", "10000"),
];

fn assert_flags<S: JsonSchema + Default + Serialize>(expected: &[&[(&str, &str)]]) {
    let described = describe::<S>();
    let defaults: BTreeMap<_, _> = described
        .iter()
        .map(|flag| (flag.name.as_str(), flag.default_text()))
        .collect();
    let listed = expected.iter().copied().flatten();
    let expected: BTreeMap<_, _> = listed
        .map(|(name, default)| (*name, (*default).to_owned()))
        .collect();
    let missing: Vec<_> = expected
        .keys()
        .filter(|name| !defaults.contains_key(*name))
        .collect();
    assert!(missing.is_empty(), "not there: {missing:?}");
    let unknown: Vec<_> = defaults
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .collect();
    assert!(
        unknown.is_empty(),
        "neither upstream's nor listed as ours: {unknown:?}"
    );
    assert_eq!(defaults, expected);
    for flag in &described {
        assert!(flag.help.ends_with('.'), "--{}: {}", flag.name, flag.help);
    }
}

#[test]
fn the_server_has_all_flags_with_their_defaults() {
    assert_flags::<ServerFlags>(&[&SERVER, &BOTH, &KLOG]);
}

#[test]
fn the_agent_has_all_flags_with_their_defaults() {
    assert_flags::<AgentFlags>(&[&AGENT, &BOTH, &KLOG]);
}

#[test]
fn help_tells_what_a_registry_excludes_and_nothing_else() {
    let described = describe::<ServerFlags>();
    let told: Vec<_> = described
        .iter()
        .filter(|flag| flag.help.ends_with("Not with --registry."))
        .map(|flag| flag.name.as_str())
        .collect();
    let excluded: Vec<_> = NOT_WITH_REGISTRY.iter().map(|(flag, _)| *flag).collect();
    assert_eq!(told, excluded);
}

#[test]
fn help_tells_which_flags_have_no_effect() {
    let idle = |flags: Vec<super::super::describe::Flag>| {
        let idle = flags
            .into_iter()
            .filter(|flag| flag.help.starts_with(NO_EFFECT));
        idle.map(|flag| flag.name).collect::<Vec<_>>()
    };
    let mut both = vec![
        "add-dir-header",
        "alsologtostderr",
        "enable-contention-profiling",
        "enable-profiling",
        "kube-api-content-type",
        "log-backtrace-at",
        "log-dir",
        "log-file",
        "log-file-max-size",
        "logtostderr",
        "one-output",
        "skip-headers",
        "skip-log-headers",
        "stderrthreshold",
        "warn-on-channel-limit",
        "xfr-channel-size",
    ];
    let mut agent = [both.as_slice(), &["probe-interval"]].concat();
    agent.sort_unstable();
    assert_eq!(idle(describe::<AgentFlags>()), agent);
    both.extend(["kubeconfig-burst", "kubeconfig-qps"]);
    both.sort_unstable();
    assert_eq!(idle(describe::<ServerFlags>()), both);
}
