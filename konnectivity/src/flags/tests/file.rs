//! The configuration file: keys, errors and precedence.

use std::path::Path;

use testkit::tempdir::TempDir;

use super::{agent, server};
use crate::registry::TenantSource;

fn write(dir: &TempDir, text: &str) -> String {
    let path = dir.path().join("k.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn file_keys_are_flags_with_relative_paths() {
    let dir = TempDir::new("flags").unwrap();
    let path = write(
        &dir,
        "uds-name: /run/k.sock\nserver-port: 0\ncluster-cert: tls/a.crt\ncluster-key: tls/a.key\n\
         cluster-ca-cert: ca.crt\nproxy-strategies: [destHost, default]\nkeepalive-time: 1m30s\n\
         max-buffered-bytes: 64MiB\nserver-id: 17\nlogtostderr: true\nv: 2\n",
    );
    let config = server(&format!("--config={path}")).unwrap().config;
    let pair = config.tls.agents_pair.unwrap();
    assert_eq!(pair.cert, dir.path().join("tls/a.crt"));
    assert_eq!(
        (config.id.as_str(), config.max_buffered_bytes),
        ("17", 64 << 20)
    );
    assert_eq!(config.agent_liveness.interval.as_secs(), 90);
    let TenantSource::Single(params) = config.tenants else {
        panic!("a registry");
    };
    assert_eq!(params.spec.uds.unwrap().path, Path::new("/run/k.sock"));
    assert_eq!(params.agents_ca, Some(dir.path().join("ca.crt")));
    assert_eq!(params.spec.strategies.len(), 2);
}

#[test]
fn command_line_wins_over_file() {
    let dir = TempDir::new("flags").unwrap();
    let path = write(
        &dir,
        "agent-id: of-the-file\nproxy-server-port: 1234\nca-cert: ca.crt\n",
    );
    let setup = agent(&format!(
        "--agent-id=own --config {path} --ca-cert=other.crt"
    ))
    .unwrap();
    assert_eq!(
        (setup.config.agent_id.as_str(), setup.config.server_port),
        ("own", 1234)
    );
    assert_eq!(setup.config.ca.as_deref(), Some(Path::new("other.crt")));
}

#[test]
fn file_errors_name_their_line() {
    let dir = TempDir::new("flags").unwrap();
    for (text, expected) in [
        ("agent-id: a\nagent-ids: b\n", "k.yaml:2:"),
        ("agent-id: a\nsync-interval: 10\n", "k.yaml:2:"),
        ("agent-id: a\nagent-id: b\n", "k.yaml:2:"),
        ("check: true\n", "k.yaml:1:"),
        ("config: other.yaml\n", "k.yaml:1:"),
        ("probe-interval: 0\n", "k.yaml: probe-interval: 0s is not"),
        (
            "allow-destinations: []\n",
            "k.yaml: allow-destinations: is empty",
        ),
        ("", "the file is empty"),
    ] {
        let path = write(&dir, text);
        let error = agent(&format!("--config={path}")).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {expected} in {error}");
    }
    let error = agent("--config=/nonexistent/k.yaml").unwrap_err();
    assert!(error.contains("/nonexistent/k.yaml"), "{error}");
}

#[test]
fn registry_excludes_keys_in_file_too() {
    let dir = TempDir::new("flags").unwrap();
    let path = write(&dir, "registry: clusters\nmax-tunnels: 10000\n");
    let error = server(&format!("--config={path}")).unwrap_err();
    assert!(
        error.contains("k.yaml: max-tunnels: must not be given"),
        "{error}"
    );
}

#[test]
fn effective_configuration_is_valid_file() {
    let dir = TempDir::new("flags").unwrap();
    let line = "--agent-id=a --sync-interval=1500ms --ca-cert=/ca.crt \
                --max-buffered-bytes=123456789";
    for allowed in ["", " --allow-destinations=10.0.0.0/8,[fd00::/8]:443"] {
        let first = agent(&format!("{line}{allowed}")).unwrap();
        let text = settings::effective_yaml(&first.effective).unwrap();
        let path = write(&dir, &text);
        let second = agent(&format!("--config={path}")).unwrap();
        assert_eq!(first.effective, second.effective);
        assert_eq!(second.config.connect.interval.as_millis(), 1500);
        assert_eq!(first.config.ca, second.config.ca);
    }
}
