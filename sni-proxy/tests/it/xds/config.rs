//! What the configuration may say of a server of routes, and what `--check` makes of it.

use testkit::certs::Authority;
use testkit::tempdir::TempDir;

use super::control::LISTENERS;
use crate::support::run;

const CHECK: [&str; 3] = ["--config", "sni-proxy.yaml", "--check"];

/// A directory with certificates and the configuration of this routing block.
fn directory(routing: &str) -> TempDir {
    let dir = TempDir::new("xds-config").unwrap();
    let authority = Authority::new("one").unwrap();
    authority.write(&dir.join("ca.crt")).unwrap();
    let own = authority.client("gateway", &[], &["spiffe://example.com/gateway"]);
    own.unwrap().write(dir.path(), "tls").unwrap();
    let other = authority.client("other", &[], &[]).unwrap();
    other.write(dir.path(), "other").unwrap();
    dir.write("broken.crt", "-----BEGIN CERTIFICATE-----\nnothing\n")
        .unwrap();
    let config = format!("workers: 1\n{LISTENERS}routing: {routing}\n");
    dir.write("sni-proxy.yaml", config).unwrap();
    std::fs::create_dir(dir.join("cache")).unwrap();
    dir
}

fn outcome(dir: &TempDir, args: &[&str]) -> (Option<i32>, String, String) {
    let output = run(dir.path(), args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn check_reads_certificates_without_connecting() {
    for routing in [
        "{ xds: { server: \"https://controller.test:15010\", ca: ca.crt, cert: tls.crt, key: tls.key, node: gateway-0, gateway: blue, cache: cache } }",
        "{ xds: { server: \"https://[fd00::1]:15010\", ca: ca.crt, node: gateway-0, gateway: blue } }",
        "{ xds: { server: \"http://127.0.0.1:15010\", node: gateway-0, gateway: blue } }",
    ] {
        let dir = directory(routing);
        let (code, stdout, stderr) = outcome(&dir, &CHECK);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(
            stdout.contains("blue") && stdout.contains("15010"),
            "{stdout}"
        );
        // What it prints is a configuration, and the same one.
        dir.write("sni-proxy.yaml", &stdout).unwrap();
        let (code, again, stderr) = outcome(&dir, &CHECK);
        assert_eq!((code, again), (Some(0), stdout), "{stderr}");
    }
}

#[test]
fn a_check_finds_a_cache_that_cannot_be_written() {
    let xds = "server: \"http://localhost:15010\", node: gateway-0, gateway: blue";
    for (cache, code) in [
        ("cache", Some(0)),
        ("nowhere", Some(64)),
        ("ca.crt", Some(64)),
    ] {
        let dir = directory(&format!("{{ xds: {{ {xds}, cache: {cache} }} }}"));
        let (ended, _, stderr) = outcome(&dir, &CHECK);
        assert_eq!(ended, code, "{cache}: {stderr}");
        assert_eq!(stderr.contains("routing.xds.cache"), code == Some(64));
        let left = std::fs::read_dir(dir.join("cache")).unwrap();
        assert_eq!(left.count(), 0, "a check leaves no trace");
    }
}

#[test]
fn too_many_listeners_are_refused() {
    let listener = |number| {
        format!("  - {{ name: more-{number}, address: \"127.0.0.1:0\", protocol: tls }}\n")
    };
    let more: String = (0..65).map(listener).collect();
    let routing = "{ xds: { server: \"http://[::1]:1\", node: n } }";
    let dir = directory(routing);
    let config = format!("workers: 1\nlisteners:\n{more}routing: {routing}\n");
    dir.write("sni-proxy.yaml", config).unwrap();
    let (code, _, stderr) = outcome(&dir, &CHECK);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("listeners: more than 64"), "{stderr}");
}

#[test]
fn invalid_xds_config_exits_with_64() {
    let server = "server: \"https://controller.test:15010\"";
    for (routing, key) in [
        ("{}".to_owned(), "routing"),
        (
            "{ file: routes.yaml, xds: { server: \"http://127.0.0.1:1\", node: n } }".to_owned(),
            "routing",
        ),
        (
            format!("{{ xds: {{ {server}, node: n }} }}"),
            "routing.xds.ca",
        ),
        (
            format!("{{ xds: {{ {server}, ca: ca.crt, cert: tls.crt, node: n }} }}"),
            "routing.xds",
        ),
        (
            format!("{{ xds: {{ {server}, ca: ca.crt, key: tls.key, node: n }} }}"),
            "routing.xds",
        ),
        (
            format!("{{ xds: {{ {server}, ca: ca.crt, node: \"\" }} }}"),
            "routing.xds.node",
        ),
        (
            format!("{{ xds: {{ {server}, ca: ca.crt, node: n, gateway: \"\" }} }}"),
            "routing.xds.gateway",
        ),
        (
            format!("{{ xds: {{ {server}, ca: ca.crt, node: n, token: t }} }}"),
            "token",
        ),
        (format!("{{ xds: {{ {server}, ca: ca.crt }} }}"), "node"),
        (
            "{ xds: { server: \"http://127.0.0.1:1\", ca: ca.crt, node: n } }".to_owned(),
            "routing.xds.server",
        ),
        (
            "{ xds: { server: \"http://127.0.0.1:1\", cert: tls.crt, key: tls.key, node: n } }"
                .to_owned(),
            "routing.xds.server",
        ),
        (
            "{ xds: { server: \"controller.test:15010\", node: n } }".to_owned(),
            "routing.xds.server",
        ),
        (
            "{ xds: { server: \"http://controller.test:15010\", node: n } }".to_owned(),
            "routing.xds.server: must be https",
        ),
        (
            "{ xds: { server: \"http://10.0.0.1:15010\", node: n } }".to_owned(),
            "routing.xds.server: must be https",
        ),
        (
            "{ xds: { server: \"http://controller.test\", node: n } }".to_owned(),
            "routing.xds.server",
        ),
        (
            "{ xds: { server: \"http://c.test:1/path\", node: n } }".to_owned(),
            "routing.xds.server",
        ),
        (
            "{ xds: { server: \"ftp://c.test:1\", node: n } }".to_owned(),
            "routing.xds.server",
        ),
    ] {
        let dir = directory(&routing);
        for args in [&CHECK[..2], &CHECK[..]] {
            let (code, stdout, stderr) = outcome(&dir, args);
            assert_eq!(code, Some(64), "{routing}: {stderr}");
            assert_eq!(stdout, "", "{routing}");
            assert!(stderr.contains(key), "{routing}: {key} is not in {stderr}");
        }
    }
}

#[test]
fn unusable_certificates_exit_with_64() {
    for (files, named) in [
        ("ca: missing.crt", "missing.crt"),
        ("ca: broken.crt", "broken.crt"),
        ("ca: ca.crt, cert: missing.crt, key: tls.key", "missing.crt"),
        ("ca: ca.crt, cert: tls.crt, key: missing.key", "missing.key"),
        ("ca: ca.crt, cert: tls.crt, key: other.key", "other.key"),
    ] {
        let dir = directory(&format!(
            "{{ xds: {{ server: \"https://127.0.0.1:1\", {files}, node: n }} }}"
        ));
        for args in [&CHECK[..2], &CHECK[..]] {
            let (code, stdout, stderr) = outcome(&dir, args);
            assert_eq!(code, Some(64), "{files}: {stderr}");
            assert_eq!(stdout, "", "{files}");
            assert!(
                stderr.contains(named),
                "{files}: {named} is not in {stderr}"
            );
        }
    }
}
