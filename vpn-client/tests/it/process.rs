//! The program: its flags, its exit codes, its keys.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::{Value, json};
use testkit::command;
use testkit::tempdir::TempDir;

/// Variables that the program looks at; tests set what they mean.
const VARIABLES: [&str; 11] = [
    "RUST_LOG",
    "ENDPOINT",
    "IS_HA",
    "OPENVPN_PORT",
    "POD_NAME",
    "REVERSED_VPN_HEADER",
    "REVERSED_VPN_HEADER_KEY",
    "SHOOT_NODE_NETWORKS",
    "SHOOT_POD_NETWORKS",
    "SHOOT_SERVICE_NETWORKS",
    "VPN_NETWORK",
];

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vpn-client"));
    for variable in VARIABLES {
        program.env_remove(variable);
    }
    program
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a key with the program; returns its public key.
fn keygen(dir: &TempDir, name: &str) -> String {
    let output = command::output(program().arg("keygen").arg(dir.join(name))).unwrap();
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    text(output).trim_end().to_owned()
}

/// Returns a configuration whose key is the file `client` beside it.
fn config(server: &str) -> Value {
    json!({
        "addresses": ["192.168.123.64/24"],
        "endpoint": { "address": "127.0.0.1" },
        "servers": [{
            "name": "a", "publicKeys": [server], "value": "outbound|1194||a",
            "addresses": ["192.168.123.1"],
        }],
        "keys": { "private": "client" },
        "networks": { "pods": ["100.96.0.0/11"] },
    })
}

fn run(dir: &TempDir, arguments: &[&str], config: &str) -> Output {
    let file = dir.write("vpn-client.yaml", config).unwrap();
    let mut program = program();
    program.args(arguments).arg("--config").arg(file);
    command::output(&mut program).unwrap()
}

#[test]
fn help_and_version_are_successes() {
    for flag in ["--help", "--version"] {
        let output = command::output(program().arg(flag)).unwrap();
        assert_eq!(code(&output), Some(0), "{flag}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty());
    }
}

#[test]
fn keygen_writes_once_for_owner_only() {
    let dir = TempDir::new("vpn-client").unwrap();
    let public = keygen(&dir, "client");
    assert_eq!(public.len(), 44);
    let file = dir.join("client");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let private = std::fs::read_to_string(&file).unwrap();
    assert_eq!(private.trim_end().len(), 44);
    assert_ne!(private.trim_end(), public);

    let again = command::output(program().arg("keygen").arg(&file)).unwrap();
    assert_eq!(code(&again), Some(1));
    assert!(errors(&again).contains("exists") && again.stdout.is_empty());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), private);
    assert_ne!(keygen(&dir, "other"), public);
}

#[test]
fn check_prints_what_is_in_effect() {
    let dir = TempDir::new("vpn-client").unwrap();
    let server = keygen(&dir, "client");
    let output = run(&dir, &["--check"], &config(&server).to_string());
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    let effective = text(output);
    for expected in [
        "device: rhizome0",
        "tcpPort: 8132",
        "udpPort: 51820",
        "mtu: 1420",
    ] {
        assert!(
            effective.contains(expected),
            "{expected} is not in\n{effective}"
        );
    }
    // What is printed can be read back, and means the same.
    let again = run(&dir, &["--check"], &effective);
    assert_eq!(code(&again), Some(0), "{}", errors(&again));
    assert_eq!(text(again), effective);
}

#[test]
fn environment_fills_missing_keys() {
    let dir = TempDir::new("vpn-client").unwrap();
    let server = keygen(&dir, "client");
    let servers = json!([{ "name": "a", "publicKeys": [server] }]);
    let least = json!({ "servers": servers, "keys": { "private": "client" } });
    let file = dir.write("vpn-client.yaml", least.to_string()).unwrap();
    let mut program = program();
    program.arg("--check").arg("--config").arg(file);
    program.env("ENDPOINT", "api.example.com");
    program.env("OPENVPN_PORT", "8443");
    program.env("REVERSED_VPN_HEADER", "outbound|1194||a");
    program.env("SHOOT_POD_NETWORKS", "100.96.0.0/11");
    let output = command::output(&mut program).unwrap();
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    let effective = text(output);
    for expected in [
        "address: api.example.com",
        "tcpPort: 8443",
        "192.168.123.64/24",
    ] {
        assert!(
            effective.contains(expected),
            "{expected} is not in\n{effective}"
        );
    }
}

#[test]
fn invalid_configuration_exits_with_64() {
    let dir = TempDir::new("vpn-client").unwrap();
    let server = keygen(&dir, "client");
    dir.write("empty", "").unwrap();
    let with = |key: &str, value: Value| {
        let mut config = config(&server);
        config[key] = value;
        config.to_string()
    };
    for (what, text) in [
        ("empty", String::new()),
        ("unclosed", "keys: {".to_owned()),
        ("unknown", with("unknown", json!(1))),
        ("servers", with("servers", json!([]))),
        ("networks", with("networks", json!({}))),
        ("addresses", with("addresses", json!(["fd00::1/96"]))),
        ("absent", with("keys", json!({ "private": "absent" }))),
        ("empty", with("keys", json!({ "private": "empty" }))),
    ] {
        for arguments in [["--check"].as_slice(), &[]] {
            let output = run(&dir, arguments, &text);
            assert_eq!(code(&output), Some(64), "{arguments:?} {text}");
            assert!(
                errors(&output).contains(what),
                "{what}: {}",
                errors(&output)
            );
        }
    }
    for arguments in [["--no-such-flag"], ["no-such-command"], ["keygen"]] {
        let output = command::output(program().args(arguments)).unwrap();
        assert_eq!(code(&output), Some(64), "{arguments:?}");
    }
    let missing = command::output(program().args(["--config", "/nonexistent.yaml"])).unwrap();
    assert_eq!(code(&missing), Some(64));
}

#[test]
fn unknown_key_is_named_with_its_line() {
    let dir = TempDir::new("vpn-client").unwrap();
    let text = "keys: { private: client }\nservers: []\nendpoint:\n  address: a\n  retries: 3\n";
    let output = run(&dir, &["--check"], text);
    assert_eq!(code(&output), Some(64));
    let told = errors(&output);
    assert!(
        told.contains("vpn-client.yaml:5:") && told.contains("retries"),
        "{told}"
    );
}

#[test]
fn no_key_is_ever_shown() {
    let dir = TempDir::new("vpn-client").unwrap();
    let server = keygen(&dir, "client");
    let private = std::fs::read_to_string(dir.join("client")).unwrap();
    let output = run(&dir, &["--check"], &config(&server).to_string());
    let shown = errors(&output) + &text(output);
    assert!(!shown.contains(private.trim_end()));
    // Nor what stands in a file that should hold one.
    let secret = "0123456789abcdef0123456789abcdef";
    dir.replace("client", secret).unwrap();
    let output = run(&dir, &["--check"], &config(&server).to_string());
    assert_eq!(code(&output), Some(64));
    assert!(!errors(&output).contains(secret), "{}", errors(&output));
}

#[test]
fn without_ipv6_there_is_nothing_to_set_up() {
    let dir = TempDir::new("vpn-client").unwrap();
    let server = keygen(&dir, "client");
    let output = run(&dir, &["setup"], &config(&server).to_string());
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
}
