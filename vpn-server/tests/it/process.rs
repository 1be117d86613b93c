//! The program: its flags, its exit codes, its keys.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::command;
use testkit::tempdir::TempDir;

use crate::support::{files, peers, with};

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vpn-server"));
    for name in [
        "IS_HA",
        "POD_NAME",
        "SHOOT_NODE_NETWORKS",
        "SHOOT_POD_NETWORKS",
        "SHOOT_SERVICE_NETWORKS",
        "VPN_NETWORK",
    ] {
        program.env_remove(name);
    }
    program
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Runs `--check` with `config` in `dir`.
fn check(dir: &TempDir, config: &str) -> Output {
    let path = dir.write("server.yaml", config).unwrap();
    command::output(program().arg("--check").arg("--config").arg(path)).unwrap()
}

fn prepared() -> (TempDir, Value) {
    let dir = TempDir::new("vpn-server").unwrap();
    let config = files(&dir, &Authority::new("ca").unwrap());
    (dir, config)
}

#[test]
fn help_and_version_are_successes() {
    for flag in ["--help", "--version"] {
        let output = command::output(program().arg(flag)).unwrap();
        assert_eq!(code(&output), Some(0), "{flag}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty());
    }
    let help = text(&command::output(program().arg("--help")).unwrap().stdout);
    for word in ["keygen", "SHOOT_POD_NETWORKS", "SIGHUP", "Exit codes"] {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn keygen_never_overwrites_and_restricts_mode() {
    let dir = TempDir::new("keygen").unwrap();
    let path = dir.join("key");
    let output = command::output(program().arg("keygen").arg(&path)).unwrap();
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = std::fs::read_to_string(&path).unwrap();
    let key: tunnel::keys::PrivateKey = written.trim_end().parse().unwrap();
    assert_eq!(text(&output.stdout), format!("{}\n", key.public()));
    assert!(!text(&output.stderr).contains(written.trim_end()));

    let again = command::output(program().arg("keygen").arg(&path)).unwrap();
    assert_eq!(code(&again), Some(1));
    assert!(again.stdout.is_empty());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
}

#[test]
fn check_prints_readable_effective_config() {
    let (dir, config) = prepared();
    let output = check(&dir, &config.to_string());
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let effective = text(&output.stdout);
    for expected in [
        "connectTimeout:",
        "mtu: 1420",
        "table: 51820",
        "peers.yaml: 1 peers",
    ] {
        assert!(effective.contains(expected), "{expected}\n{effective}");
    }
    let again = check(&dir, &effective);
    assert_eq!(text(&again.stdout), effective, "{}", text(&again.stderr));
}

#[test]
fn environment_replaces_missing_keys() {
    let (dir, mut config) = prepared();
    let all = config.as_object_mut().unwrap();
    all.remove("networks");
    all.remove("addresses");
    let path = dir.write("server.yaml", config.to_string()).unwrap();
    let mut program = program();
    program.arg("--check").arg("--config").arg(path);
    let missing = command::output(&mut program).unwrap();
    assert_eq!(code(&missing), Some(64));
    program.env("SHOOT_POD_NETWORKS", "100.96.0.0/11");
    program.env("VPN_NETWORK", "192.168.123.0/24");
    let output = command::output(&mut program).unwrap();
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("192.168.123.1/24"));
}

#[test]
fn invalid_config_exits_64_with_reason() {
    let (dir, config) = prepared();
    let key = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let public = vpn_server::keygen(&dir.join("third")).unwrap().to_string();
    dir.write("twice.yaml", peers(&[("a", &public), ("a", &public)]))
        .unwrap();
    dir.write("junk", "not a key").unwrap();
    for (more, problem) in [
        (json!({ "keys": { "peers": "absent.yaml" } }), "absent.yaml"),
        (
            json!({ "keys": { "peers": "twice.yaml" } }),
            "peers[1].name",
        ),
        (json!({ "keys": { "private": ["junk"] } }), "junk"),
        (json!({ "proxy": { "cert": "absent.crt" } }), "absent.crt"),
        (json!({ "proxy": { "port": 1 } }), "unknown key"),
        (json!({ "routeId": 1 << 20 }), "routeId"),
    ] {
        let output = check(&dir, &with(config.clone(), &more).to_string());
        assert_eq!(code(&output), Some(64), "{more}");
        let told = text(&output.stderr);
        assert!(told.contains(problem), "{problem} is not in {told}");
        assert!(!told.contains(key("own").trim_end()), "{told}");
    }
    for arguments in [["--no-such-flag"], ["no-such-command"]] {
        let output = command::output(program().args(arguments)).unwrap();
        assert_eq!(code(&output), Some(64), "{arguments:?}");
    }
}
