//! Names and defaults are those of upstream, except where it has no bound.

use std::collections::BTreeMap;

use super::super::docs::schema;
use super::super::read::{Flags, NO_EFFECT, command, defaults, help};
use super::super::server_config::NOT_WITH_REGISTRY;
use super::super::{AgentFlags, ServerFlags};

/// Flags of klog with their defaults.
const KLOG: &str = "\
    add-dir-header=false alsologtostderr=false log-backtrace-at=:0 log-dir= log-file= \
    log-file-max-size=1800 logtostderr=true one-output=false skip-headers=false \
    skip-log-headers=false stderrthreshold=2 v=4 vmodule=";

/// Our flags of both programs.
const BOTH: &str = "\
    log-format=text max-buffered-bytes=256MiB slow-consumer-timeout=30s";

/// Upstream's flags of the server, except where upstream has no or a useless bound, then ours.
const SERVER: &str = "\
    admin-bind-address=127.0.0.1 admin-port=8095 agent-bind-address= agent-namespace= \
    agent-port=8091 agent-service-account= authentication-audience= cipher-suites= \
    cluster-ca-cert= cluster-cert= cluster-key= delete-existing-uds-file=true \
    enable-contention-profiling=false enable-lease-controller=false enable-profiling=false \
    frontend-keepalive-time=1h graceful-shutdown-timeout=0s health-bind-address= \
    health-port=8092 kube-api-content-type=application/vnd.kubernetes.protobuf kubeconfig= \
    kubeconfig-burst=0 kubeconfig-qps=0.0 lease-label=k8s-app=konnectivity-server \
    lease-namespace=kube-system mode=grpc proxy-strategies=default server-bind-address= \
    server-ca-cert= server-cert= server-count=1 server-id= server-key= server-port=8090 \
    tls-min-version= uds-name= warn-on-channel-limit=true xfr-channel-size=10 \
    backend-dial-timeout=10s keepalive-time=30s \
    access-log=off graceful-shutdown-delay=0s keepalive-timeout=10s max-agents=10000 \
    max-dials-per-second=0 max-pending-dials=1000 max-tunnels=10000 per-cluster-metrics=false \
    registry= workers=0";

/// The same of the agent.
const AGENT: &str = "\
    admin-bind-address=127.0.0.1 admin-server-port=8094 agent-cert= agent-id= agent-identifiers= \
    agent-key= alpn-proto= ca-cert= count-server-leases=false enable-contention-profiling=false \
    enable-profiling=false health-server-host= health-server-port=8093 \
    kube-api-content-type=application/vnd.kubernetes.protobuf kubeconfig= lease-label= \
    lease-label-selector=k8s-app=konnectivity-server lease-namespace=kube-system \
    probe-interval=1s proxy-server-host=127.0.0.1 proxy-server-port=8091 \
    server-count-source=default service-account-token-path= sync-forever=false sync-interval=1s \
    sync-interval-cap=10s warn-on-channel-limit=false xfr-channel-size=150 \
    keepalive-time=0s \
    allow-destinations= dial-timeout=5s grace-period=25s max-pending-dials=1000 \
    max-tunnels=10000";

/// All flags that are keys, with their defaults and help.
fn described<S: Flags>() -> BTreeMap<String, (String, String)> {
    let (command, keys) = (command::<S>(), defaults::<S>());
    let flags = command.get_arguments().filter_map(|arg| {
        let name = arg.get_long().filter(|name| keys.contains_key(*name))?;
        let default = arg.get_default_values().join(",".as_ref());
        Some((name.to_owned(), (default.into_string().unwrap(), help(arg))))
    });
    flags.collect()
}

fn names(flags: &BTreeMap<String, (String, String)>, with: impl Fn(&str) -> bool) -> Vec<&str> {
    let found = flags.iter().filter(|(_, (_, help))| with(help));
    found.map(|(name, _)| name.as_str()).collect()
}

fn assert_flags<S: Flags>(expected: &[&str]) {
    let described = described::<S>();
    let defaults: BTreeMap<_, _> = described
        .iter()
        .map(|(name, (default, _))| (name.as_str(), default.as_str()))
        .collect();
    let words = expected.iter().flat_map(|list| list.split_whitespace());
    let expected: BTreeMap<_, _> = words.filter_map(|flag| flag.split_once('=')).collect();
    let missing: Vec<_> = expected
        .keys()
        .filter(|name| !defaults.contains_key(*name))
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let unknown: Vec<_> = defaults
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .collect();
    assert!(
        unknown.is_empty(),
        "neither upstream's nor ours: {unknown:?}"
    );
    assert_eq!(defaults, expected);
    // clap drops the full stop of a doc comment; the schema has the sentence.
    let schema: serde_json::Value = serde_json::from_str(&schema::<S>()).unwrap();
    for name in described.keys() {
        let text = schema["properties"][name]["description"].as_str().unwrap();
        assert!(text.ends_with('.'), "--{name}: {text}");
    }
}

#[test]
fn server_has_all_flags_with_their_defaults() {
    assert_flags::<ServerFlags>(&[SERVER, BOTH, KLOG]);
}

#[test]
fn agent_has_all_flags_with_their_defaults() {
    assert_flags::<AgentFlags>(&[AGENT, BOTH, KLOG]);
}

#[test]
fn help_names_exactly_what_registry_excludes() {
    let described = described::<ServerFlags>();
    let named = names(&described, |help| help.ends_with("Not with --registry"));
    assert_eq!(named, NOT_WITH_REGISTRY.map(|(flag, _)| flag));
}

#[test]
fn help_names_flags_without_effect() {
    let idle = "add-dir-header alsologtostderr enable-contention-profiling enable-profiling \
                kube-api-content-type log-backtrace-at log-dir log-file log-file-max-size \
                logtostderr one-output skip-headers skip-log-headers stderrthreshold \
                warn-on-channel-limit xfr-channel-size";
    let sorted = |own: &[&'static str]| {
        let mut flags: Vec<_> = idle.split_whitespace().chain(own.iter().copied()).collect();
        flags.sort_unstable();
        flags
    };
    let (agent, server) = (described::<AgentFlags>(), described::<ServerFlags>());
    let without_effect = |help: &str| help.starts_with(NO_EFFECT);
    assert_eq!(names(&agent, without_effect), sorted(&["probe-interval"]));
    let own = ["kubeconfig-burst", "kubeconfig-qps"];
    assert_eq!(names(&server, without_effect), sorted(&own));
}
