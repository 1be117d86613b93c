//! The program: flags, exit codes, what `--check` says, SIGHUP, a log that no process reads.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Child, Client, LIMIT, Probe, routes_of, run};

const CONFIG: &str = r#"workers: 1
probes: { address: "127.0.0.1:0" }
admin: { address: "" }
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
routing: { file: conf/routes.yaml }
"#;

const ROUTES: &str = r#"clusters:
- { name: a, endpoints: [{ address: "127.0.0.1:9" }] }
routes:
- { serverNames: [a.test], cluster: a }
"#;

fn directory(config: &str, routes: &str) -> TempDir {
    let dir = TempDir::new("process").unwrap();
    dir.write("sni-proxy.yaml", config).unwrap();
    dir.write("conf/routes.yaml", routes).unwrap();
    dir
}

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

const RUN: [&str; 2] = ["--config", "sni-proxy.yaml"];
const CHECK: [&str; 3] = ["--config", "sni-proxy.yaml", "--check"];

#[test]
fn invalid_config_exits_with_64_and_names_line() {
    for (config, place, what) in [
        (
            CONFIG.replace("workers", "wrokers"),
            "sni-proxy.yaml:1:",
            "wrokers",
        ),
        (
            CONFIG.replace("protocol: tls", "protocol: tsl"),
            "sni-proxy.yaml:5:",
            "tsl",
        ),
        (
            CONFIG.replace("127.0.0.1:0", "127.0.0.1"),
            "sni-proxy.yaml:2:",
            "127.0.0.1",
        ),
        (
            format!("{CONFIG}limits: {{ connections: -1 }}\n"),
            "sni-proxy.yaml:7:",
            "connections",
        ),
        (
            format!("{CONFIG}routing: {{ file: x }}\n"),
            "sni-proxy.yaml:7:",
            "routing",
        ),
        (
            format!("{CONFIG}limits: {{ preambleTimeout: 0s }}\n"),
            "sni-proxy.yaml",
            "preambleTimeout",
        ),
    ] {
        let dir = directory(&config, ROUTES);
        for args in [RUN.as_slice(), CHECK.as_slice()] {
            let (code, stdout, stderr) = outcome(&dir, args);
            assert_eq!(code, Some(64), "{stderr}");
            assert_eq!(stdout, "");
            assert!(
                stderr.contains(place) && stderr.contains(what),
                "{what}: {stderr}"
            );
        }
    }
    let dir = directory(CONFIG, ROUTES);
    let (code, _, stderr) = outcome(&dir, &["--config", "missing.yaml"]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("missing.yaml"), "{stderr}");
}

#[test]
fn handover_directory_is_checked_and_named() {
    let dir = directory(CONFIG, ROUTES);
    let socket = dir.join("own/handover.sock").display().to_string();
    let text = format!("{CONFIG}handover: {{ socket: {socket} }}\n");
    dir.write("sni-proxy.yaml", text).unwrap();
    let named = |what: &str| {
        for args in [RUN.as_slice(), CHECK.as_slice()] {
            let (code, stdout, stderr) = outcome(&dir, args);
            assert_eq!((code, stdout.as_str()), (Some(64), ""), "{stderr}");
            assert!(stderr.contains(what) && stderr.contains("own"), "{stderr}");
        }
    };
    named("looking at");
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::create_dir(dir.join("own")).unwrap();
    std::fs::set_permissions(dir.join("own"), mode(0o755)).unwrap();
    named("mode 0700");
    std::fs::set_permissions(dir.join("own"), mode(0o700)).unwrap();
    let (code, _, stderr) = outcome(&dir, &CHECK);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn invalid_routes_exit_with_64_and_name_place() {
    for (routes, place, what) in [
        (
            ROUTES.replace("serverNames", "names"),
            "conf/routes.yaml:4:",
            "names",
        ),
        (
            ROUTES.replace("127.0.0.1:9", "127.0.0.1:x"),
            "conf/routes.yaml",
            "endpoints[0]",
        ),
        (
            ROUTES.replace("cluster: a", "cluster: nowhere"),
            "conf/routes.yaml",
            "nowhere",
        ),
        (
            format!("{ROUTES}- {{ serverNames: [A.TEST.], cluster: a }}\n"),
            "conf/routes.yaml",
            "a.test",
        ),
        (
            format!("{ROUTES}- {{ cluster: a }}\n"),
            "conf/routes.yaml",
            "routes[1]",
        ),
        (String::new(), "conf/routes.yaml", ""),
    ] {
        let dir = directory(CONFIG, &routes);
        for args in [RUN.as_slice(), CHECK.as_slice()] {
            let (code, stdout, stderr) = outcome(&dir, args);
            assert_eq!(code, Some(64), "{routes}: {stderr}");
            assert_eq!(stdout, "");
            assert!(
                stderr.contains(place) && stderr.contains(what),
                "{what}: {stderr}"
            );
        }
    }
    // An option that the kernel does not know is one of the configuration, and not found out by
    // connections that fail.
    let cluster = "{ name: a, ";
    let routes = ROUTES.replace(
        cluster,
        &format!("{cluster}tcp: {{ congestion: nonesuch }}, "),
    );
    for (config, routes, key) in [
        (CONFIG, routes.as_str(), "clusters[0].tcp"),
        (
            &format!("{CONFIG}tcp: {{ congestion: nonesuch }}\n"),
            ROUTES,
            "tcp",
        ),
        (
            &CONFIG.replace(
                "protocol: tls",
                "protocol: tls, tcp: { congestion: nonesuch }",
            ),
            ROUTES,
            "listeners[0].tcp",
        ),
        (
            CONFIG,
            &ROUTES.replace("cluster: a", "cluster: a, allowSources: []"),
            "routes[0].allowSources",
        ),
        (
            CONFIG,
            &ROUTES.replace("cluster: a", "cluster: a, allowSources: null"),
            "allowSources",
        ),
    ] {
        let (code, _, stderr) = outcome(&directory(config, routes), &CHECK);
        assert_eq!(code, Some(64), "{key}: {stderr}");
        assert!(stderr.contains(key), "{key}: {stderr}");
    }
    let dir = directory(CONFIG, ROUTES);
    std::fs::remove_file(dir.join("conf/routes.yaml")).unwrap();
    let (code, _, stderr) = outcome(&dir, &CHECK);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("conf/routes.yaml"), "{stderr}");
}

#[test]
fn check_prints_effective_config() {
    let dir = directory(CONFIG, ROUTES);
    let (code, stdout, stderr) = outcome(&dir, &CHECK);
    assert_eq!(code, Some(0), "{stderr}");
    for part in [
        "workers: 1",
        "preambleTimeout: 10s",
        "connections: 750000",
        "otherwise: redirect",
        "keepalive: 55s",
        "conf/routes.yaml: 1 clusters, 1 routes",
    ] {
        assert!(stdout.contains(part), "{part:?} is not in {stdout}");
    }
    // What it prints is a configuration, and the same one.
    dir.write("sni-proxy.yaml", &stdout).unwrap();
    let (code, again, stderr) = outcome(&dir, &CHECK);
    assert_eq!((code, again), (Some(0), stdout), "{stderr}");
}

#[test]
fn bind_failure_exits_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let listener = "tls, address: \"127.0.0.1:0\"";
    for config in [
        CONFIG.replace(listener, &format!("tls, address: \"{addr}\"")),
        CONFIG.replace(
            "probes: { address: \"127.0.0.1:0\" }",
            &format!("probes: {{ address: \"{addr}\" }}"),
        ),
    ] {
        let (code, _, stderr) = outcome(&directory(&config, ROUTES), &RUN);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&addr), "{stderr}");
    }
}

#[test]
fn help_exits_with_0_and_bad_flag_with_64() {
    let dir = directory(CONFIG, ROUTES);
    let (code, stdout, _) = outcome(&dir, &["--version"]);
    assert_eq!(code, Some(0));
    assert_eq!(stdout, format!("sni-proxy {}\n", env!("CARGO_PKG_VERSION")));
    let (code, stdout, _) = outcome(&dir, &["--help"]);
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("--check") && stdout.contains("Examples:"),
        "{stdout}"
    );
    assert_eq!(outcome(&dir, &["--confog", "x"]).0, Some(64));
    assert_eq!(outcome(&dir, &[]).0, Some(64));
}

#[test]
fn a_hang_up_reads_the_routes_again() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;
    let mut child = Child::start(config, &routes_of(&[("a", upstream.addr())]));
    let mut stream = Client::established(child.addr("tls"), "a.test");
    let age = |child: &Child| child.value("rhizome_snapshot_age_seconds", &[]);
    wait::until("the snapshot to age", LIMIT, || age(&child) > 1.0).unwrap();
    child.signal(Signal::HUP);
    wait::until("the file to be read again", LIMIT, || age(&child) < 1.0).unwrap();
    stream.expect_echo(b"nothing else happens");
    assert_eq!(child.readiness(), 200);
}

#[test]
fn gateway_serves_while_the_log_is_not_read() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = r#"
workers: 2
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
drain: { delay: 0s, timeout: 1s }
"#;
    let routes = routes_of(&[("a", upstream.addr())]);
    let (mut child, _pipe) = Child::start_unread(config, &routes);
    let addr = child.addr("tls");
    let mut held = Client::established(addr, "a.test");
    // What is wrong with this is more than a pipe takes. A line is dropped when the queue is full
    // as well.
    let wrong = routes + &"- { cluster: a }\n".repeat(3000);
    child.dir.write("routes.yaml", wrong).unwrap();
    let refused = |child: &Child| child.value("rhizome_snapshot_refused_total", &[]);
    wait::until("lines to be dropped", LIMIT, || {
        let before = refused(&child);
        child.signal(Signal::HUP);
        wait::until("the file to be read", LIMIT, || refused(&child) > before).unwrap();
        child.value("rhizome_log_dropped_total", &[]) > 0.0
    })
    .unwrap();
    assert_eq!(Probe::ask(child.probes, "GET", "/healthz").status, 200);
    held.expect_echo(b"a connection that is open goes on");
    Client::established(addr, "a.test");
    let clock = Stopwatch::start();
    child.signal(Signal::TERM);
    assert_eq!(child.wait_exit().code(), Some(0));
    assert!(
        clock.elapsed() < Duration::from_secs(10),
        "{:?}",
        clock.elapsed()
    );
}
