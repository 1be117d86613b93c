//! `sni-proxy trace`: what it says of a running gateway, and that it leaves no trace itself.

use std::process::{Command, Output};

use serde_json::Value;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Child, Client, End, LIMIT, Probe, run};

const CONFIG: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
- { name: wg, address: "127.0.0.1:0", protocol: wireguard }
limits: { connections: 1000, idleTimeout: 1h }
"#;

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

struct World {
    child: Child,
    upstreams: [Upstream; 2],
}

impl World {
    fn start() -> Self {
        let upstreams = [(); 2].map(|()| Upstream::start(Behavior::Echo).unwrap());
        let [one, two] = [upstreams[0].addr(), upstreams[1].addr()];
        let refusing = testkit::ports::free(1).unwrap()[0];
        let routes = format!(
            r#"
clusters:
- {{ name: a, balance: round-robin, endpoints: [{{ address: "{one}" }}, {{ address: "{two}" }}] }}
- {{ name: empty, endpoints: [] }}
- {{ name: dead, connectRetries: 0, endpoints: [{{ address: "127.0.0.1:{refusing}" }}] }}
- {{ name: full, maxConnections: 1, endpoints: [{{ address: "{one}" }}] }}
routes:
- {{ serverNames: ["api.a.test"], cluster: a }}
- {{ serverNames: ["*.a.test"], cluster: empty }}
- {{ serverNames: ["dead.test"], cluster: dead }}
- {{ serverNames: ["full.test"], cluster: full }}
- {{ serverNames: ["guarded.test"], cluster: a, allowSources: ["203.0.113.0/24"] }}
- {{ connectDestinations: ["outbound|443||a"], cluster: a }}
- {{ destinations: ["10.1.2.3/32"], port: 443, cluster: a }}
- {{ wireguard: {{ publicKeys: ["{KEY}"], routeId: 77 }}, cluster: a }}
"#
        );
        Self {
            child: Child::start(CONFIG, &routes),
            upstreams,
        }
    }

    fn run(&self, args: &[&str]) -> Output {
        let admin = self.child.admin.to_string();
        let mut all = vec!["trace", "--admin", &admin];
        all.extend(args);
        run(self.child.dir.path(), &all)
    }

    /// Asks, and returns the exit code and the answer.
    fn trace(&self, args: &[&str]) -> (i32, Value) {
        let output = self.run(&[args, &["--output", "json"]].concat());
        let answer = serde_json::from_slice(&output.stdout);
        (output.status.code().unwrap(), answer.unwrap())
    }

    /// Asks, and returns the one endpoint that would be taken.
    fn endpoint(&self, args: &[&str]) -> String {
        let (code, answer) = self.trace(args);
        assert_eq!(code, 0, "{answer}");
        let candidates = answer["cluster"]["candidates"].as_array().unwrap().clone();
        assert_eq!(candidates.len(), 1, "{answer}");
        candidates[0].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_name_is_followed_to_its_endpoint() {
    let world = World::start();
    let (code, answer) = world.trace(&["--sni", "API.a.test."]);
    assert_eq!(code, 0);
    assert_eq!(answer["routed"], true);
    assert_eq!(answer["listener"]["name"], "tls");
    assert_eq!(answer["route"]["matched"], "api.a.test");
    assert_eq!(answer["route"]["cluster"], "a");
    assert_eq!(answer["also"][0]["pattern"], "*.a.test");
    assert_eq!(answer["acl"]["verdict"], "open");
    assert_eq!(answer["limits"]["maxConnections"], 1000);
    assert_eq!(answer["limits"]["idleTimeoutSeconds"], 3600.0);
    assert_eq!(answer["snapshot"]["generation"], 1);
    let source = answer["snapshot"]["source"].as_str().unwrap();
    assert!(source.ends_with("routes.yaml"), "{source}");
    let cluster = &answer["cluster"];
    assert_eq!(cluster["balance"], "round-robin");
    assert_eq!(cluster["endpointsTotal"], 2);
    assert_eq!(cluster["endpoints"][0]["state"], "healthy");
    assert_eq!(cluster["endpoints"][0]["candidate"], true);
    assert_eq!(cluster["endpoints"][1]["note"], "not its turn");
    let text = world.run(&["--sni", "api.a.test"]);
    let text = String::from_utf8(text.stdout).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("routed: 127.0.0.1:"), "{text}");
}

#[test]
fn every_kind_of_target_finds_its_route() {
    let world = World::start();
    for (args, listener, matched) in [
        (["--connect", "outbound|443||a"], "node", "outbound|443||a"),
        (
            ["--destination", "10.1.2.3:443"],
            "node",
            "10.1.2.3/32 port 443",
        ),
        (["--wireguard", "77"], "wg", "route id 77"),
        (["--wireguard", KEY], "wg", KEY),
        (["--sni", "x.y.a.test"], "tls", "*.a.test"),
    ] {
        let (_, answer) = world.trace(&args);
        assert_eq!(answer["listener"]["name"], listener, "{args:?}");
        assert_eq!(answer["route"]["matched"], matched, "{args:?}");
    }
}

#[test]
fn targets_without_route_list_similar_ones() {
    let world = World::start();
    for (args, reason, pattern, note) in [
        (
            ["--sni", "dead.tset"],
            "unknown_server_name",
            "dead.test",
            "differs by 2 characters",
        ),
        (
            ["--sni", "a.test"],
            "unknown_server_name",
            "*.a.test",
            "a wildcard stands for at least one label",
        ),
        (
            ["--connect", "outbound|444||a"],
            "unknown_destination",
            "outbound|443||a",
            "differs by one character",
        ),
        (
            ["--connect", "Outbound|443||A"],
            "unknown_destination",
            "outbound|443||a",
            "values are compared with regard to case",
        ),
        (
            ["--destination", "10.1.2.3:6443"],
            "unknown_destination",
            "10.1.2.3/32 port 443",
            "another port",
        ),
        (
            ["--destination", "10.1.2.4:443"],
            "unknown_destination",
            "10.1.2.3/32 port 443",
            "another address of the same network",
        ),
        (
            ["--wireguard", &KEY.replace("AAEC", "AAED")],
            "unknown_destination",
            KEY,
            "differs by one character",
        ),
    ] {
        let (code, answer) = world.trace(&args);
        assert_eq!(code, 1, "{args:?}");
        assert_eq!(answer["routed"], false, "{args:?}");
        assert_eq!(answer["reason"], reason, "{args:?}");
        let near = answer["nearly"].as_array().unwrap();
        let told = near
            .iter()
            .any(|near| near["pattern"] == pattern && near["note"] == note);
        assert!(told, "{args:?}: {near:?}");
    }
    let (code, answer) = world.trace(&["--sni", ""]);
    assert_eq!(
        (code, answer["reason"].as_str()),
        (1, Some("no_server_name"))
    );
    let text = String::from_utf8(world.run(&["--sni", "dead.tset"]).stdout).unwrap();
    assert!(text.contains("nearly     dead.test to dead"), "{text}");
    assert!(
        text.ends_with("not routed (unknown_server_name): no route matches\n"),
        "{text}"
    );
}

#[test]
fn trace_reports_the_verdict_of_allow_sources() {
    let world = World::start();
    let ask = |source: &[&str]| world.trace(&[&["--sni", "guarded.test"], source].concat());
    let (code, answer) = ask(&["--source", "203.0.113.9"]);
    assert_eq!((code, &answer["acl"]["verdict"]), (0, &"allowed".into()));
    assert_eq!(answer["acl"]["by"], "203.0.113.0/24");
    let (code, answer) = ask(&["--source", "198.51.100.1"]);
    assert_eq!((code, &answer["reason"]), (1, &"source_denied".into()));
    assert!(
        answer["cluster"]["candidates"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let (code, answer) = ask(&[]);
    assert_eq!((code, &answer["acl"]["verdict"]), (0, &"depends".into()));
}

#[test]
fn clusters_that_cannot_serve_say_why() {
    let world = World::start();
    let (code, answer) = world.trace(&["--sni", "other.a.test"]);
    assert_eq!((code, &answer["reason"]), (1, &"no_endpoint".into()));
    let tls = world.child.addr("tls");
    let _held = Client::established(tls, "full.test");
    let (code, answer) = world.trace(&["--sni", "full.test"]);
    assert_eq!((code, &answer["reason"]), (1, &"limit".into()));
    for _ in 0..5 {
        assert_eq!(Client::hello(tls, "dead.test").end(), End::Closed);
    }
    let (code, answer) = world.trace(&["--sni", "dead.test"]);
    let endpoint = &answer["cluster"]["endpoints"][0];
    assert_eq!(endpoint["state"], "ejected");
    assert_eq!(endpoint["failures"], 5);
    assert!(endpoint["ejectedForSeconds"].as_f64().unwrap() > 0.0);
    assert_eq!(code, 0, "it is tried all the same");
    assert_eq!(answer["cluster"]["connectFailures"]["connect_refused"], 5);
}

/// The gateway's own metrics must not show that it was asked.
#[test]
fn trace_changes_no_counter_and_no_balancer() {
    let world = World::start();
    let tls = world.child.addr("tls");
    drop(Client::established(tls, "api.a.test"));
    world.child.wait_idle();
    let counters = || -> Vec<String> {
        let text = Probe::ask(world.child.probes, "GET", "/metrics").text();
        let own = text.lines().filter(|line| line.starts_with("rhizome_"));
        own.filter(|line| !line.starts_with("rhizome_snapshot_age_seconds"))
            .map(str::to_owned)
            .collect()
    };
    let before = counters();
    let next = world.endpoint(&["--sni", "api.a.test"]);
    for args in [
        ["--sni", "api.a.test"],
        ["--sni", "no.test"],
        ["--sni", "dead.test"],
    ] {
        world.trace(&args);
    }
    assert_eq!(world.endpoint(&["--sni", "api.a.test"]), next);
    assert_eq!(counters(), before);
    let held = Client::established(tls, "api.a.test");
    let open = world.child.connections();
    let peer = held.addr().to_string();
    let own = open.iter().find(|open| open["peer"] == peer).unwrap();
    assert_eq!(own["endpoint"], next, "it was told right");
    let after = world.endpoint(&["--sni", "api.a.test"]);
    assert_ne!(after, next, "and then it is the other's turn");
    let addresses = world
        .upstreams
        .each_ref()
        .map(|upstream| upstream.addr().to_string());
    assert!(addresses.contains(&after) && addresses.contains(&next));
}

#[test]
fn a_routing_file_that_is_refused_is_told() {
    let world = World::start();
    world
        .child
        .dir
        .write("routes.yaml", "clusters: 7\n")
        .unwrap();
    world
        .child
        .wait_value("rhizome_snapshot_refused_total", &[], 1.0);
    let (code, answer) = world.trace(&["--sni", "api.a.test"]);
    assert_eq!(code, 0, "the last good one is in effect");
    let refused = answer["snapshot"]["refused"].as_str().unwrap();
    assert!(refused.contains("routes.yaml"), "{refused}");
}

#[test]
fn malformed_questions_exit_with_64() {
    let world = World::start();
    for args in [
        &[][..],
        &["--sni", "a.test", "--connect", "a"],
        &["--destination", "10.1.2.3"],
        &["--wireguard", "abc"],
        &["--sni", "a.test", "--source", "missing"],
        &["--sni", "a.test", "--listener", "gone"],
        &["--sni", "a.test", "--listener", "node"],
        &["--sni", "a.test", "--output", "xml"],
    ] {
        let output = world.run(args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{args:?}"
        );
    }
    let unreachable = run(
        world.child.dir.path(),
        &["trace", "--sni", "a", "--admin", "127.0.0.1:1"],
    );
    assert_eq!(unreachable.status.code(), Some(1));
    let no_config = run(world.child.dir.path(), &["--check"]);
    assert_eq!(no_config.status.code(), Some(64));
}

#[test]
fn a_gateway_is_asked_over_a_unix_socket() {
    let dir = TempDir::new("gateway-socket").unwrap();
    let rest = "probes: { address: \"127.0.0.1:0\" }\nrouting: { file: routes.yaml }\n";
    let socket = format!("unix:{}", dir.join("admin.sock").display());
    let config = format!("admin: {{ address: \"{socket}\" }}\n{rest}{CONFIG}");
    dir.write("sni-proxy.yaml", config).unwrap();
    let routes = "clusters:\n- { name: a, endpoints: [{ address: \"127.0.0.1:9\" }] }\n\
                  routes:\n- { serverNames: [\"a.test\"], cluster: a }\n";
    dir.write("routes.yaml", routes).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sni-proxy"));
    command.current_dir(dir.path());
    command.args(["--config", "sni-proxy.yaml"]);
    let mut guard = ChildGuard::spawn("sni-proxy", &command, &dir.join("log")).unwrap();
    let args = ["trace", "--sni", "a.test", "--admin", &socket];
    let routed = || run(dir.path(), &args).status.code() == Some(0);
    let ready = guard.wait_ready(LIMIT, routed);
    assert!(ready.is_ok(), "{ready:?}\n{}", guard.log());
}
