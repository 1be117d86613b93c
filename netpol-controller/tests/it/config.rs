//! What is refused and by which name, what is in effect, and what the program ends with.

use testkit::tempdir::TempDir;

use crate::child::run;

/// Every key with its default, as the documentation shows it.
const DEFAULTS: &str = r#"
kubeconfig: ""
leaderElection: { enabled: true, namespace: garden, name: rhizome-netpol-controller }
probes: { address: "[::]:8081" }
admin:  { address: "127.0.0.1:9901" }
controllers:
  networkPolicy:
    enabled: true
    compatibility: document
    concurrentSyncs: 5
    namespaceSelectors: []
  namespacePolicies:
    enabled: false
    blockedCIDRs: []
    cluster: { pods: [], services: [], nodes: [] }
    additionalNamespaceSelectors: []
  routing:
    enabled: false
    gateways: []
    xds: { address: "[::]:15010", ca: "", cert: "", key: "" }
"#;

/// Returns exit code, standard output and standard error.
fn outcome(dir: &TempDir, args: &[&str]) -> (Option<i32>, String, String) {
    let output = run(dir.path(), args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn check(config: &str) -> (Option<i32>, String, String) {
    let dir = TempDir::new("config").unwrap();
    dir.write("controller.yaml", config).unwrap();
    outcome(&dir, &["--config", "controller.yaml", "--check"])
}

#[test]
fn the_documented_example_is_the_defaults() {
    let (code, documented, stderr) = check(DEFAULTS);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, empty, stderr) = check("{}\n");
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(documented, empty);
    // What it prints is a configuration, and the same one.
    let (code, again, stderr) = check(&documented);
    assert_eq!((code, again), (Some(0), documented), "{stderr}");
}

#[test]
fn every_key_can_be_given() {
    let config = r#"
leaderElection: { enabled: false, namespace: kube-system, name: x }
controllers:
  networkPolicy:
    compatibility: upstream
    concurrentSyncs: 256
    namespaceSelectors: [{ matchLabels: { "gardener.cloud/role": shoot } },
                         { matchExpressions: [{ key: k, operator: NotIn, values: [a, b] }] }]
    ingressControllerSelector: { namespace: garden, podSelector: { matchLabels: { app: nginx } } }
  namespacePolicies:
    enabled: true
    blockedCIDRs: ["169.254.169.254/32", "fd00::/8"]
    cluster: { pods: ["100.96.0.0/11"], services: ["100.64.0.0/13", "fd01::/112"], nodes: ["10.250.0.0/16"] }
    additionalNamespaceSelectors: [{ matchLabels: { a: b } }]
  routing:
    enabled: true
    gateways:
    - { name: one, namespace: istio-ingress, selector: { istio: ingressgateway }, ports: { tls: 1, node: 2, vpn: 3 }, clients: ["spiffe://example.com/g"] }
    - { name: two, namespace: istio-ingress-z, selector: { istio: z } }
    xds: { address: "127.0.0.1:15010" }
"#;
    let (code, stdout, stderr) = check(config);
    assert_eq!(code, Some(0), "{stderr}");
    for part in [
        "compatibility: upstream",
        "NotIn",
        "169.254.169.254/32",
        "vpn: 8132",
    ] {
        assert!(stdout.contains(part), "{part:?} is not in {stdout}");
    }
}

/// A file in flow style with `inside` under `controllers`.
fn controllers(inside: &str) -> String {
    format!("controllers: {{ {inside} }}\n")
}

fn policy(inside: &str) -> String {
    controllers(&format!("networkPolicy: {{ {inside} }}"))
}

fn general(inside: &str) -> String {
    controllers(&format!("namespacePolicies: {{ {inside} }}"))
}

fn routing(gateways: &str, xds: &str) -> String {
    let xds = format!("xds: {{ {xds} }}");
    controllers(&format!(
        "routing: {{ enabled: true, gateways: [{gateways}], {xds} }}"
    ))
}

const LOOPBACK: &str = r#"address: "127.0.0.1:0""#;
const GATEWAY: &str = "{ name: a, namespace: n, selector: { x: y } }";
const BAD_SELECTOR: &str = "{ matchExpressions: [{ key: k, operator: Near, values: [a] }] }";
const EMPTY_IN: &str = "{ matchExpressions: [{ key: k, operator: In }] }";

fn refused() -> Vec<(String, &'static str)> {
    let gateway = |text: &str| routing(&GATEWAY.replace("selector: { x: y }", text), LOOPBACK);
    vec![
        ("leaderElections: {}\n".to_owned(), "leaderElections"),
        (
            "leaderElection: { namespace: \"\" }\n".to_owned(),
            "leaderElection.namespace",
        ),
        (
            "leaderElection: { name: \"\" }\n".to_owned(),
            "leaderElection.name",
        ),
        (
            "probes: { address: \"localhost:1\" }\n".to_owned(),
            "probes",
        ),
        ("admin: { address: nowhere }\n".to_owned(), "admin"),
        (
            policy("concurrentSyncs: 0"),
            "controllers.networkPolicy.concurrentSyncs",
        ),
        (
            policy("concurrentSyncs: 257"),
            "controllers.networkPolicy.concurrentSyncs",
        ),
        (policy("compatibility: gardener"), "gardener"),
        (
            policy(&format!("namespaceSelectors: [{{}}, {EMPTY_IN}]")),
            "namespaceSelectors[1]",
        ),
        (
            policy(&format!("namespaceSelectors: [{BAD_SELECTOR}]")),
            "Near",
        ),
        (
            policy("ingressControllerSelector: { namespace: \"\", podSelector: {} }"),
            "ingressControllerSelector.namespace",
        ),
        (
            policy(&format!(
                "ingressControllerSelector: {{ namespace: a, podSelector: {EMPTY_IN} }}"
            )),
            "ingressControllerSelector.podSelector",
        ),
        (
            policy("ingressControllerSelector: { namespace: a }"),
            "podSelector",
        ),
        (
            general("enabled: true"),
            "controllers.namespacePolicies.cluster.services",
        ),
        (
            general("blockedCIDRs: [\"10.0.0.0/8\", \"10.0.0.1/8\"]"),
            "controllers.namespacePolicies.blockedCIDRs[1]",
        ),
        (
            general("cluster: { pods: [a] }"),
            "controllers.namespacePolicies.cluster.pods[0]",
        ),
        (
            general("cluster: { services: [\"10.0.0.0/33\"] }"),
            "controllers.namespacePolicies.cluster.services[0]",
        ),
        (
            general("cluster: { nodes: [\"10.0.0.0\", \"::/129\"] }"),
            "controllers.namespacePolicies.cluster.nodes[1]",
        ),
        (
            general(&format!("additionalNamespaceSelectors: [{EMPTY_IN}]")),
            "controllers.namespacePolicies.additionalNamespaceSelectors[0]",
        ),
        (routing("", LOOPBACK), "controllers.routing.gateways"),
        (
            routing(&format!("{GATEWAY}, {GATEWAY}"), LOOPBACK),
            "controllers.routing.gateways[1].name",
        ),
        (
            routing(&GATEWAY.replace("name: a", "name: \"\""), LOOPBACK),
            "controllers.routing.gateways[0].name",
        ),
        (
            routing(
                &GATEWAY.replace("namespace: n", "namespace: \"\""),
                LOOPBACK,
            ),
            "controllers.routing.gateways[0].namespace",
        ),
        (
            gateway("selector: {}"),
            "controllers.routing.gateways[0].selector",
        ),
        (
            gateway("selector: { x: \"y z\" }"),
            "controllers.routing.gateways[0].selector",
        ),
        (
            gateway("selector: { x: y }, ports: { tls: 0 }"),
            "controllers.routing.gateways[0].ports.tls",
        ),
        (
            gateway("selector: { x: y }, ports: { node: 443 }"),
            "controllers.routing.gateways[0].ports.node",
        ),
        (
            gateway("selector: { x: y }, ports: { vpn: 8443 }"),
            "controllers.routing.gateways[0].ports.vpn",
        ),
        (
            routing(GATEWAY, "address: \"[::]:15010\""),
            "controllers.routing.xds.address",
        ),
        (
            routing(GATEWAY, &format!("{LOOPBACK}, ca: a")),
            "controllers.routing.xds",
        ),
        (
            routing(GATEWAY, &format!("{LOOPBACK}, cert: a, key: b")),
            "controllers.routing.xds",
        ),
        (
            routing(GATEWAY, "ca: a, cert: b, key: c"),
            "controllers.routing.gateways[0].clients",
        ),
        (
            routing(
                &GATEWAY.replace("selector", "clients: [\"spiffe://a/b\"], selector"),
                "ca: no-ca, cert: no-cert, key: no-key",
            ),
            "no-",
        ),
        ("kubeconfig: no-kubeconfig\n".to_owned(), "no-kubeconfig"),
    ]
}

#[test]
fn invalid_config_exits_64_and_names_keys() {
    for (config, what) in refused() {
        let (code, stdout, stderr) = check(&config);
        assert_eq!(code, Some(64), "{config}: {stdout}{stderr}");
        assert_eq!(stdout, "", "{config}");
        assert!(stderr.contains(what), "{what} is not in {stderr}");
    }
}

#[test]
fn refused_config_does_not_start() {
    let dir = TempDir::new("config").unwrap();
    let bad = "# first\ncontrollers:\n  networkPolicy: { concurrentSync: 1 }\n";
    dir.write("controller.yaml", bad).unwrap();
    let (code, _, stderr) = outcome(&dir, &["--config", "controller.yaml"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("controller.yaml:3:"), "{stderr}");
    assert!(stderr.contains("concurrentSync"), "{stderr}");
    dir.write("controller.yaml", "kubeconfig: no-kubeconfig\n")
        .unwrap();
    for flags in [
        &["--config", "controller.yaml"][..],
        &["--config", "controller.yaml", "--dry-run"],
    ] {
        let (code, _, stderr) = outcome(&dir, flags);
        assert_eq!(code, Some(64), "{flags:?}: {stderr}");
        assert!(stderr.contains("no-kubeconfig"), "{stderr}");
    }
    let (code, _, stderr) = outcome(&dir, &["--config", "missing.yaml"]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("missing.yaml"), "{stderr}");
}

#[test]
fn config_errors_are_reported_together() {
    let (code, _, stderr) = check(&policy(
        "concurrentSyncs: 0, namespaceSelectors: [{ matchExpressions: [{ key: k, operator: In }] }]",
    ));
    assert_eq!(code, Some(64));
    assert!(stderr.contains("concurrentSyncs"), "{stderr}");
    assert!(stderr.contains("namespaceSelectors[0]"), "{stderr}");
}

#[test]
fn help_exits_0_and_bad_flag_exits_64() {
    let dir = TempDir::new("flags").unwrap();
    let (code, stdout, _) = outcome(&dir, &["--version"]);
    let version = format!("netpol-controller {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((code, stdout), (Some(0), version));
    let (code, stdout, _) = outcome(&dir, &["--help"]);
    assert_eq!(code, Some(0));
    for part in [
        "--check",
        "--dry-run",
        "--log-format",
        "Examples:",
        "Signals:",
        "Exit codes:",
    ] {
        assert!(stdout.contains(part), "{part:?} is not in {stdout}");
    }
    assert_eq!(outcome(&dir, &["--confog", "x"]).0, Some(64));
    assert_eq!(outcome(&dir, &[]).0, Some(64));
}
