//! Ways of writing flags, manifests as they are found, and what comes of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use knp_proto::Strategy;
use telemetry::LogFormat;
use testkit::tempdir::TempDir;

use super::{Environment, Parsed, REGISTRY, ServerConfig, TCP, UDS, agent, server, words};
use crate::agent::CountSource;
use crate::lease::ServerLeaseParams;
use crate::registry::{FrontendMode, SingleParams, TenantSource};

fn single(config: &ServerConfig) -> &SingleParams {
    match &config.tenants {
        TenantSource::Single(params) => params,
        TenantSource::Registry(directory) => panic!("a registry, {}", directory.display()),
    }
}

fn lease(config: &ServerConfig) -> &ServerLeaseParams {
    config.lease.as_ref().unwrap()
}

#[test]
fn values_parse_in_all_pflag_spellings() {
    for line in [
        "--delete-existing-uds-file=false --admin-port=9000 --keepalive-time=1m30s -v=6",
        "--delete-existing-uds-file=0 --admin-port 9000 --keepalive-time 90s -v 6",
        "--delete_existing_uds_file=F --admin_port=9000 --keepalive-time=1.5m -v6",
        "--admin-port=1 --admin-port=9000 --delete-existing-uds-file --delete-existing-uds-file=False --keepalive-time=0h90000ms --v=6",
    ] {
        let setup = server(&format!("{UDS} {line}")).unwrap();
        let config = setup.config;
        assert!(!config.delete_existing_sockets, "{line}");
        assert_eq!(config.admin, "127.0.0.1:9000".parse().unwrap(), "{line}");
        assert_eq!(
            config.agent_liveness.interval,
            Duration::from_secs(90),
            "{line}"
        );
        assert!(
            setup.log_directives.contains("konnectivity=debug"),
            "{line}"
        );
    }
}

#[test]
fn lists_parse_commas_and_repetition() {
    for line in [
        "--proxy-strategies=destHost,defaultRoute,default",
        "--proxy-strategies destHost --proxy-strategies=defaultRoute,default",
        "--proxy-strategies=destHost,,defaultRoute,default,",
    ] {
        let config = server(&format!("{UDS} {line}")).unwrap().config;
        let expected = [
            Strategy::DestHost,
            Strategy::DefaultRoute,
            Strategy::Default,
        ];
        assert_eq!(single(&config).spec.strategies, expected, "{line}");
    }
}

#[test]
fn server_accepts_manifests_of_others() {
    for (manifest, line) in [
        (
            "upstream, HTTP CONNECT with certificates",
            "--logtostderr=true --log-file-max-size=0 --uds-name= --cluster-cert=a.crt \
             --cluster-key=a.key --server-ca-cert=s-ca.crt --server-cert=s.crt --server-key=s.key \
             --cluster-ca-cert=a-ca.crt --mode=http-connect --server-port=8131 --agent-port=8132 \
             --admin-port=8133 --health-port=8134 --v=4",
        ),
        (
            "upstream, gRPC over a socket with tokens",
            "--log-file=/var/log/konnectivity-server.log --logtostderr=false --log-file-max-size=0 \
             --uds-name=/etc/srv/kubernetes/konnectivity-server/konnectivity-server.socket \
             --cluster-cert=/etc/kubernetes/pki/apiserver.crt \
             --cluster-key=/etc/kubernetes/pki/apiserver.key --mode=grpc --server-port=0 \
             --agent-port=8132 --admin-port=8133 --health-port=8134 --agent-namespace=kube-system \
             --agent-service-account=konnectivity-agent --kubeconfig=/etc/kubernetes/konnectivity.conf \
             --authentication-audience=system:konnectivity-server --keepalive-time=1h \
             --frontend-keepalive-time=1h --server-count=3 --enable-lease-controller",
        ),
        (
            "k0s",
            "--uds-name=/run/k0s/konnectivity-server/konnectivity-server.sock \
             --cluster-cert=server.crt --cluster-key=server.key --kubeconfig=konnectivity.conf \
             --mode=grpc --server-port=0 --agent-port=8132 --admin-port=8133 --health-port=8092 \
             --agent-namespace=kube-system --agent-service-account=konnectivity-agent \
             --authentication-audience=system:konnectivity-server --logtostderr=true \
             --stderrthreshold=1 --v=1 --server-id=0123abcd --enable-profiling=false \
             --delete-existing-uds-file=true --proxy-strategies=destHost,default --server-count=1",
        ),
        (
            "KKP",
            "--logtostderr=true -v=3 --cluster-key=/etc/pki/tls.key \
             --cluster-cert=/etc/pki/tls.crt --uds-name=/etc/uds/konnectivity-server.socket \
             --kubeconfig=/etc/kubeconfig/kubeconfig --server-port=0 --mode=grpc \
             --agent-namespace=kube-system --admin-bind-address= --admin-port=8133 \
             --agent-service-account=system-konnectivity-agent --delete-existing-uds-file \
             --authentication-audience=system:konnectivity-server --agent-port=8132 \
             --health-port=8134 --keepalive-time=1m --proxy-strategies=destHost,default \
             --cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256",
        ),
    ] {
        let setup = server(line).unwrap_or_else(|error| panic!("{manifest}: {error}"));
        assert_eq!(setup.config.agents.port(), 8132, "{manifest}");
    }
}

#[test]
fn agent_accepts_manifests_of_others() {
    for (manifest, line) in [
        (
            "upstream",
            "--logtostderr=true --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt \
             --proxy-server-host=35.225.206.7 --proxy-server-port=8132 --sync-interval=5s \
             --sync-interval-cap=30s --probe-interval=5s --agent-identifiers=ipv4=10.0.0.7 \
             --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token",
        ),
        (
            "k0s",
            "--logtostderr=true --ca-cert=ca.crt --proxy-server-host=k0s.example.com \
             --proxy-server-port=8132 --service-account-token-path=token \
             --agent-identifiers=host=node-1&ipv4=10.0.0.7 --agent-id=node-1 --feature_less=",
        ),
        (
            "KKP",
            "--logtostderr=true -v=3 --ca-cert=ca.crt --proxy-server-host=konnectivity.example.com \
             --proxy-server-port=8132 --admin-server-port=8133 --health-server-port=8134 \
             --service-account-token-path=token --keepalive-time=1m \
             --sync-forever --count-server-leases --lease-label=k8s-app=konnectivity-server",
        ),
    ] {
        let line = line.replace(" --feature_less=", "");
        let setup = agent(&line).unwrap_or_else(|error| panic!("{manifest}: {error}"));
        assert_eq!(setup.config.server_port, 8132, "{manifest}");
    }
}

#[test]
fn uds_server_has_no_port_for_api_servers() {
    let line =
        "--agent-namespace=kube-system --agent-service-account=a --authentication-audience=b";
    let setup = server(&format!("{UDS} {line} --enable-lease-controller")).unwrap();
    let config = setup.config;
    assert_eq!(config.frontends, None);
    let cluster = single(&config);
    let uds = cluster.spec.uds.as_ref().unwrap();
    assert_eq!(uds.path, PathBuf::from("/run/k.sock"));
    let token = cluster.spec.tokens.as_ref().unwrap();
    assert_eq!(
        (token.rules.service_account.as_str(), &token.kubeconfig),
        ("a", &None)
    );
    let labels = &lease(&config).labels;
    assert_eq!(labels.to_string(), "k8s-app=konnectivity-server");
    assert_eq!(config.workers, 1);
    assert_eq!(setup.warnings, [""; 0]);
}

#[test]
fn tcp_server_verifies_api_servers() {
    let line = "--cluster-ca-cert=a-ca.crt --mode=http-connect";
    let config = server(&format!("{TCP} {line}")).unwrap().config;
    assert_eq!(config.tls.frontend_mode, FrontendMode::HttpConnect);
    let address = config.frontends.unwrap();
    assert_eq!(address, "[::]:8090".parse::<SocketAddr>().unwrap());
    let cluster = single(&config);
    assert_eq!(cluster.frontends_ca, Some(PathBuf::from("s-ca.crt")));
    assert_eq!(cluster.agents_ca, Some(PathBuf::from("a-ca.crt")));
    assert_eq!(cluster.spec.tokens, None);
}

#[test]
fn unauthenticated_agents_are_warned_about() {
    let setup = server(UDS).unwrap();
    let cluster = single(&setup.config);
    assert_eq!((&cluster.agents_ca, &cluster.spec.tokens), (&None, &None));
    assert!(setup.warnings[0].contains("--cluster-ca-cert"));
}

#[test]
fn registry_needs_no_port_and_uses_all_cpus() {
    let config = server(REGISTRY).unwrap().config;
    assert!(config.frontends.is_none() && config.workers >= 1);
    let TenantSource::Registry(directory) = &config.tenants else {
        panic!("{:?}", config.tenants);
    };
    assert_eq!(directory, &PathBuf::from("clusters"));
    let line = "--server-port=8131 --server-cert=s.crt --server-key=s.key --workers=3";
    let config = server(&format!("{REGISTRY} {line}")).unwrap().config;
    assert_eq!(
        (config.frontends.unwrap().port(), config.workers),
        (8131, 3)
    );
}

#[test]
fn dial_timeout_is_always_bounded() {
    for (line, seconds) in [
        ("", 10),
        ("--backend-dial-timeout=0", 3600),
        ("--backend-dial-timeout=5m", 300),
    ] {
        let config = server(&format!("{UDS} {line}")).unwrap().config;
        assert_eq!(config.dial_timeout, Duration::from_secs(seconds), "{line}");
    }
}

#[test]
fn agent_flags_reach_their_parameters() {
    let setup = agent(
        "--agent-id=a --proxy-server-host=[fd00::1] --keepalive-time=1s --dial-timeout=2s \
         --max-tunnels=7 --allow-destinations=10.0.0.0/8:443,[fd00::/8]:80-90 \
         --grace-period=1m --server-count-source=max --health-server-host=localhost \
         --count-server-leases --lease-label=a=b --log-format=json --max-buffered-bytes=8MiB",
    )
    .unwrap();
    let own = setup.config;
    assert_eq!(
        (own.agent_id.as_str(), own.server_host.as_str()),
        ("a", "fd00::1")
    );
    assert_eq!(
        own.keepalive,
        Some(Duration::from_secs(10)),
        "not more often"
    );
    assert_eq!(own.dial.timeout, Duration::from_secs(2));
    assert_eq!(own.link.dial_timeout, Duration::from_secs(2));
    assert_eq!(
        (own.limits.tunnels, own.limits.buffered_bytes),
        (7, 8 << 20)
    );
    for (address, permitted) in [
        ("10.1.1.1:443", true),
        ("10.1.1.1:80", false),
        ("[fd00::1]:85", true),
        ("192.0.2.1:443", false),
    ] {
        let address: SocketAddr = address.parse().unwrap();
        assert_eq!(own.dial.permits(address), permitted, "{address}");
    }
    assert_eq!(own.grace, Duration::from_secs(60));
    assert_eq!(own.connect.source, CountSource::Max);
    let health: SocketAddr = "127.0.0.1:8093".parse().unwrap();
    assert_eq!(own.health, health);
    assert_eq!(own.leases.unwrap().selector, "a=b", "by its former name");
    assert_eq!(setup.log_format, LogFormat::Json);
    assert_eq!(agent("").unwrap().config.keepalive, None);
}

#[test]
fn name_comes_from_flag_env_file_or_random() {
    let dir = TempDir::new("flags").unwrap();
    let file = dir.write("k.yaml", "server-id: of-the-file\n").unwrap();
    let file = format!("--config={}", file.display());
    let environment = Environment {
        server_id: Some("of-the-environment".to_owned()),
        ..Environment::default()
    };
    let id = |line: &str, environment: &Environment| {
        let args = words("konnectivity-server", &format!("{UDS} {line}"));
        match crate::flags::server(args, environment).unwrap() {
            Parsed::Configured(setup) => setup.config.id,
            Parsed::Print(text) => panic!("{text}"),
        }
    };
    assert_eq!(id("--server-id=own", &environment), "own");
    assert_eq!(id(&format!("{file} --server-id=own"), &environment), "own");
    assert_eq!(id("", &environment), "of-the-environment");
    assert_eq!(id(&file, &environment), "of-the-environment");
    let none = Environment::default();
    assert_eq!(id(&file, &none), "of-the-file");
    let (one, other) = (id("", &none), id("", &none));
    assert_ne!(one, other);
    let shape: Vec<_> = one.split('-').map(str::len).collect();
    assert_eq!(shape, [8, 4, 4, 4, 12], "{one}");
    assert!(one.split('-').nth(2).unwrap().starts_with('4'), "{one}");
}

#[test]
fn flags_without_effect_are_warned_about_once() {
    let line = format!("{TCP} --cluster-ca-cert=a-ca.crt");
    let idle = "--logtostderr=true --enable-profiling=false --xfr-channel-size=10 --log-file=";
    let setup = server(&format!("{line} {idle}")).unwrap();
    assert_eq!(setup.warnings, [""; 0]);
    let idle = "--log-file=/var/log/x --xfr-channel-size=100 --enable-profiling";
    let warnings = server(&format!("{line} {idle}")).unwrap().warnings;
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    for flag in ["--enable-profiling", "--log-file", "--xfr-channel-size"] {
        assert!(warning.contains(flag), "{warning}");
    }
}

#[test]
fn help_and_version_print_texts() {
    let help = server("--help").unwrap_err();
    for text in [
        "--uds-name",
        "[default: 8091]",
        "RUST_LOG",
        "PROXY_SERVER_ID",
        "Examples:",
    ] {
        assert!(help.contains(text), "{text} in {help}");
    }
    assert!(!help.contains("--warn-on-channel-limit"), "hidden");
    let agent = |line: &str| {
        let args = words("konnectivity-agent", line);
        let parsed = crate::flags::agent(args, &Environment::default());
        matches!(parsed, Ok(Parsed::Print(_)))
    };
    assert!(agent("-h") && agent("--version"));
}
