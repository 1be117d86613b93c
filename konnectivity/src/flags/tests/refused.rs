//! Every rule says which flag, what it was given, and what is allowed.

use super::{REGISTRY, TCP, UDS, agent, server};
use crate::flags::server_config::NOT_WITH_REGISTRY;

const TOKEN: &str = "--agent-namespace=a --agent-service-account=b --authentication-audience=c";

/// Command lines of a server, each with part of the error.
const SERVER: &str = r#"
 => --cluster-cert: must be given
 => --server-ca-cert: must be given for --server-port
 => --server-cert: must be given for --server-port
UDS --server-port=8090 => --server-port: 8090 is not 0
UDS --server-ca-cert=x => --server-ca-cert: must not be given with --uds-name
UDS --server-cert=x => --server-cert: must not be given with --uds-name
UDS --server-key=x => --server-key: must not be given with --uds-name
TCP --server-key= => --server-key: must be given with --server-cert
TCP --cluster-cert= => --cluster-cert: must be given with --cluster-key
TCP --server-port=443 => --server-port: 443 is neither 0 nor from 1024 to 49151
TCP --agent-port=49152 => --agent-port: 49152 is neither
TCP --admin-port=80 => --admin-port: 80 is neither
TCP --health-port=70000 => --health-port: 70000 is neither
TCP --health-port=-1 => '-1' for '--health-port <N>': 
TCP --health-port=x => 'x' for '--health-port <N>': invalid digit
TCP --agent-bind-address=a.b => --agent-bind-address: "a.b" is not an IP address
UDS --agent-namespace=a => --agent-service-account: must be given
UDS --authentication-audience=a => --agent-namespace: must be given
UDS TOKEN --cluster-ca-cert=x => --cluster-ca-cert: must not be given
UDS --proxy-strategies= => --proxy-strategies: at least one
UDS --proxy-strategies=default,x => unknown proxy strategy "x"
UDS --mode=http => 'http' for '--mode <grpc|http-connect>'
UDS --cipher-suites=RC4 => --cipher-suites: "RC4"
UDS --tls-min-version=VersionTLS11 => --tls-min-version: VersionTLS11 is broken
UDS --xfr-channel-size=0 => --xfr-channel-size: 0 is not at least 1
UDS --xfr-channel-size=-5 => --xfr-channel-size: -5 is not at least 1
UDS --enable-contention-profiling => --enable-contention-profiling: must not
UDS --backend-dial-timeout=-1s => '-1s' for '--backend-dial-timeout <DURATION>': must not be negative
UDS --backend-dial-timeout=2h => --backend-dial-timeout: 2h is longer than 1h
UDS --graceful-shutdown-timeout=10 => '10' for '--graceful-shutdown-timeout <DURATION>': a unit
UDS --keepalive-timeout=0 => --keepalive-timeout: 0s is not more than 0
UDS --max-buffered-bytes=1MiB => --max-buffered-bytes: 1MiB is not at least 4MiB
UDS --max-buffered-bytes=64K => '64K' for '--max-buffered-bytes <SIZE>': `64K` is not a size
UDS --max-tunnels=0 => --max-tunnels: 0 is not at least 1
UDS --workers=1025 => --workers: 1025 is more than 1024
UDS --server-id=aö => --server-id: 
UDS --enable-lease-controller --lease-label=x => --lease-label: 
UDS --delete-existing-uds-file=maybe => 'maybe' for '--delete-existing-uds-file[=<BOOL>]': true or false is expected
UDS --kubeconfg=x => --kubeconfig
UDS left-over => unexpected argument 'left-over'
REGISTRY --server-port=8131 => --server-cert: must be given for --server-port
"#;

/// Command lines of an agent, each with part of the error.
const AGENT: &str = r#"
--agent-cert=a => --agent-key: must be given with --agent-cert
--agent-key=a => --agent-cert: must be given with --agent-key
--proxy-server-port=0 => --proxy-server-port: 0 is not from 1 to 65535
--health-server-port=65536 => --health-server-port: 65536 is not from 0 to 65535
--proxy-server-host=a/b => --proxy-server-host: "a/b" is neither
--agent-identifiers=ip=1.2.3.4 => --agent-identifiers: unknown identifier "ip"
--sync-interval=11s => --sync-interval: 11s is longer than --sync-interval-cap, 10s
--sync-interval=0 => --sync-interval: 0s is not more than 0
--probe-interval=0s => --probe-interval: 0s is not more than 0
--xfr-channel-size=0 => --xfr-channel-size: 0 is not at least 1
--enable-contention-profiling => --enable-contention-profiling: must not
--server-count-source=min => 'min' for '--server-count-source <default|max>'
--allow-destinations= => --allow-destinations: is empty
--allow-destinations=10.0.0.0/8, => --allow-destinations: 
--allow-destinations=*.example.com:443 => --allow-destinations: 
--allow-destinations=fd00::/8:443 => --allow-destinations: 
--count-server-leases --lease-label-selector= => --lease-label-selector: is empty
--dial-timeout=0 => --dial-timeout: 0s is not more than 0
--max-pending-dials=0 => --max-pending-dials: 0 is not at least 1
"#;

fn assert_refused(cases: &str, refuse: impl Fn(&str) -> String) {
    for case in cases.lines().skip(1) {
        let (line, expected) = case.split_once("=> ").unwrap();
        let error = refuse(line);
        assert!(error.contains(expected), "{line}: {expected} in {error}");
    }
}

#[test]
fn server_errors_name_the_flag() {
    let names = [
        ("UDS", UDS),
        ("TCP", TCP),
        ("REGISTRY", REGISTRY),
        ("TOKEN", TOKEN),
    ];
    assert_refused(SERVER, |line| {
        let words = line.split(' ').map(|word| {
            let name = names.iter().find(|(name, _)| *name == word);
            name.map_or(word, |(_, flags)| flags)
        });
        server(&words.collect::<Vec<_>>().join(" ")).unwrap_err()
    });
}

#[test]
fn agent_errors_name_the_flag() {
    assert_refused(AGENT, |line| agent(line).unwrap_err());
}

#[test]
fn all_errors_are_reported_at_once() {
    let error = server(&format!("{TCP} --admin-port=1 --health-port=2")).unwrap_err();
    assert!(
        error.contains("--admin-port") && error.contains("--health-port"),
        "{error}"
    );
}

#[test]
fn registry_excludes_flags_of_one_cluster() {
    for (flag, key) in NOT_WITH_REGISTRY {
        let value = match flag {
            "enable-lease-controller" => "true",
            "max-agents"
            | "max-tunnels"
            | "max-pending-dials"
            | "max-dials-per-second"
            | "server-count" => "5",
            "proxy-strategies" => "default",
            _ => "a=b",
        };
        let error = server(&format!("{REGISTRY} --{flag}={value}")).unwrap_err();
        let expected = format!("--{flag}: must not be given with --registry");
        assert!(error.contains(&expected) && error.contains(key), "{error}");
    }
}

#[test]
fn process_outside_pods_needs_kubeconfig() {
    let line = format!("{UDS} {TOKEN}");
    let args = super::words("konnectivity-server", &line);
    let outside = super::Environment::default();
    let parsed = super::configured(crate::flags::server(args, &outside));
    assert!(parsed.unwrap_err().contains("--kubeconfig: must be given"));
    assert!(server(&line).is_ok(), "in a pod");
}

#[test]
fn malformed_flags_are_reported_at_once() {
    let error = server(&format!(
        "{UDS} --health-port=x --max-tunnels 1 --workers y --wrong=1"
    ));
    let error = error.unwrap_err();
    for part in ["'--health-port", "'--workers", "'--wrong'"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    assert_eq!(error.lines().count(), 3, "{error}");
}
