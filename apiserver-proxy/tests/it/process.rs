//! The program: its flags, its exit codes, its signals.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::{Value, json};
use testkit::command;
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::proxy::{
    LIMIT, Program, by_connect, by_proxy_header, config, connect, finish, metrics, program, with,
    write,
};

/// Runs the binary with `arguments` and a configuration file of `text`.
fn run(arguments: &[&str], text: &str) -> Output {
    let dir = TempDir::new("apiserver-proxy").unwrap();
    let mut program = program();
    program.args(arguments);
    program.arg("--config").arg(write(&dir, text));
    command::output(&mut program).unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_and_version_are_successes() {
    for flag in ["--help", "--version"] {
        let output = command::output(program().arg(flag)).unwrap();
        assert_eq!(code(&output), Some(0), "{flag}");
        assert!(
            output.stderr.is_empty() && !output.stdout.is_empty(),
            "{flag}"
        );
    }
}

#[test]
fn check_prints_what_is_in_effect() {
    let text = config(by_connect("api.example.com.:8443"), json!({})).to_string();
    let output = run(&["--check"], &text);
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    let effective = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "mode: http-connect",
        "connectTimeout:",
        "connections: 10000",
    ] {
        assert!(
            effective.contains(expected),
            "{expected} is not in\n{effective}"
        );
    }
    // What is printed can be read back, and means the same.
    let again = run(&["--check"], &effective);
    assert_eq!(code(&again), Some(0), "{}", errors(&again));
    assert_eq!(String::from_utf8(again.stdout).unwrap(), effective);
}

#[test]
fn a_configuration_that_cannot_be_used_is_64() {
    let good = config(by_proxy_header("127.0.0.1:9"), json!({}));
    let with_key = |key: &str, value: Value| with(good.clone(), json!({ key: value })).to_string();
    for text in [
        String::new(),
        "listen: [".to_owned(),
        with_key("listen", json!([])),
        with_key("listen", json!(["10.1.2.3"])),
        with_key("listen", json!(["127.0.0.1:443", "127.0.0.1:443"])),
        with_key("upstream", json!({ "address": "x:1", "mode": "socks" })),
        with_key(
            "upstream",
            json!({ "address": "x:1", "mode": "http-connect" }),
        ),
        with_key("noTrack", json!("sometimes")),
        with_key("interface", json!({ "manage": false, "kind": "veth" })),
        with_key(
            "interface",
            json!({ "manage": false, "name": "longer-than-the-kernel-takes" }),
        ),
        with_key("interface", json!({ "manage": false, "name": "a/b" })),
        with_key("limits", json!({ "connections": 0 })),
        with_key("tcp", json!({ "congestion": "nonesuch" })),
        with_key("listen", json!(["127.0.0.1:9"])),
    ] {
        for arguments in [["--check"].as_slice(), &[]] {
            let output = run(arguments, &text);
            assert_eq!(code(&output), Some(64), "{arguments:?} {text}");
            assert!(!errors(&output).is_empty());
        }
    }
    for arguments in [["--no-such-flag"], ["no-such-command"]] {
        let output = command::output(program().args(arguments)).unwrap();
        assert_eq!(code(&output), Some(64), "{arguments:?}");
    }
    let missing = command::output(program().args(["--config", "/nonexistent.yaml"])).unwrap();
    assert_eq!(code(&missing), Some(64));
}

#[test]
fn handover_directory_is_checked_and_named() {
    let dir = TempDir::new("apiserver-proxy-handover").unwrap();
    let socket = dir.join("handover.sock");
    let more = json!({ "handover": { "socket": socket.display().to_string() } });
    let text = config(by_proxy_header("127.0.0.1:9"), more).to_string();
    let mode = |mode| std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    for arguments in [["--check"].as_slice(), &[]] {
        let output = run(arguments, &text);
        assert_eq!(code(&output), Some(64), "{}", errors(&output));
        assert!(errors(&output).contains(dir.path().to_str().unwrap()));
    }
    mode(0o700);
    let output = run(&["--check"], &text);
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
}

#[test]
fn gateway_is_needed_by_proxy_alone() {
    let text = r#"{ "listen": ["127.0.0.1:0"] }"#;
    for arguments in [["--check"].as_slice(), &[]] {
        let output = run(arguments, text);
        assert_eq!(code(&output), Some(64));
        assert!(errors(&output).contains("upstream"), "{}", errors(&output));
    }
    for arguments in [["--check", "keep"].as_slice(), &["setup"]] {
        let output = run(arguments, text);
        assert_eq!(code(&output), Some(0), "{}", errors(&output));
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let text = "listen: [\"127.0.0.1:0\"]\nupstream:\n  address: 127.0.0.1:9\n  mode: proxy-protocol\n  \
                retries: 3\n";
    let output = run(&["--check"], text);
    assert_eq!(code(&output), Some(64));
    let told = errors(&output);
    assert!(
        told.contains("proxy.yaml:5:") && told.contains("retries"),
        "{told}"
    );
}

#[test]
fn system_errors_exit_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let upstream = by_proxy_header("127.0.0.1:9");
    for (what, more) in [
        ("listener", json!({ "listen": [taken] })),
        // RFC 5737: an address for documentation, which no device holds.
        ("192.0.2.1", json!({ "listen": ["192.0.2.1:0"] })),
        ("probes", json!({ "probes": { "address": taken } })),
        ("admin", json!({ "admin": { "address": taken } })),
    ] {
        let output = run(&[], &config(upstream.clone(), more).to_string());
        assert_eq!(code(&output), Some(1), "{what}");
        assert!(errors(&output).contains(what), "{}", errors(&output));
    }
}

#[test]
fn setup_fails_without_unmanaged_address() {
    let more = json!({ "listen": ["192.0.2.1:443"] });
    let text = config(by_proxy_header("127.0.0.1:9"), more).to_string();
    let output = run(&["setup"], &text);
    assert_eq!(code(&output), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("192.0.2.1"), "{}", errors(&output));
}

#[test]
fn setup_and_cleanup_skip_loopback_addresses() {
    let text = config(by_proxy_header("127.0.0.1:9"), json!({ "interface": {} })).to_string();
    assert_eq!(code(&run(&["setup"], &text)), Some(0));
    assert!(!std::path::Path::new("/sys/class/net/apiserver-proxy").exists());
}

#[test]
fn a_hangup_is_survived() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let mut program = Program::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let client = connect(program.addr);
    gateway.wait_accepted(1, LIMIT).unwrap();
    program.child.signal(Signal::HUP).unwrap();
    wait::until("the probe to answer", LIMIT, || {
        let value = metrics(program.probes).value("rhizome_listener_connections_active", &[]);
        value == Some(1.0)
    })
    .unwrap();
    assert!(!finish(client).is_empty());
    assert!(program.child.exit_status().unwrap().is_none());
}
