//! What operators can ask and set while the gateway runs.

use testkit::http::{Connection, Target};
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Child, Client, Probe, connect_head};

const CONFIG: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
limits: { connections: 1000 }
"#;

fn start() -> (Child, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let routes = format!(
        r#"
clusters:
- {{ name: a, endpoints: [{{ address: "{}", zone: z1, weight: 3 }}] }}
- {{ name: b, endpoints: [] }}
routes:
- {{ serverNames: ["a.test"], cluster: a, allowSources: ["127.0.0.0/8"] }}
- {{ connectDestinations: ["a"], cluster: a }}
- {{ destinations: ["10.1.2.3/32"], port: 443, cluster: a }}
"#,
        upstream.addr()
    );
    (Child::start(CONFIG, &routes), upstream)
}

#[test]
fn open_connections_are_listed() {
    let (child, upstream) = start();
    let tls = Client::established(child.addr("tls"), "a.test");
    let mut tunnel = Client::open(child.addr("node"));
    tunnel.send(connect_head("a").as_bytes());
    assert!(tunnel.read_head().starts_with("HTTP/1.1 200 "));
    tunnel.expect_echo(b"12345");
    let silent = Client::open(child.addr("tls"));
    child.wait_value("rhizome_listener_connections_active", &[], 3.0);
    let all = child.connections();
    assert_eq!(all.len(), 3);
    let of = |client: &Client| {
        let peer = client.addr().to_string();
        all.iter()
            .find(|open| open["peer"] == peer)
            .unwrap()
            .clone()
    };
    let first = of(&tls);
    assert_eq!(first["listener"], "tls");
    assert_eq!(first["client"], first["peer"]);
    assert_eq!(first["serverName"], "a.test");
    assert_eq!(first["cluster"], "a");
    assert_eq!(first["endpoint"], upstream.addr().to_string());
    assert!(first["rxBytes"].as_u64() > Some(0) && first["ageSeconds"].is_f64());
    let second = of(&tunnel);
    assert_eq!(second["connect"], "a");
    assert_eq!(
        (second["rxBytes"].as_u64(), second["txBytes"].as_u64()),
        (Some(5), Some(5))
    );
    assert!(of(&silent)["cluster"].is_null());
    let some = child.admin_json("/connections?limit=2");
    assert_eq!(some["connections"].as_array().unwrap().len(), 2);
    assert_eq!(some["open"], 3);
}

#[test]
fn the_snapshot_and_the_configuration_are_shown() {
    let (child, upstream) = start();
    let snapshot = child.admin_json("/snapshot");
    assert_eq!(snapshot["generation"], 1);
    let cluster = &snapshot["clusters"][0];
    assert_eq!(cluster["name"], "a");
    let endpoint = &cluster["endpoints"][0];
    assert_eq!(endpoint["address"], upstream.addr().to_string());
    assert_eq!(
        (&endpoint["zone"], &endpoint["weight"]),
        (&"z1".into(), &3.into())
    );
    assert_eq!(endpoint["state"], "healthy");
    let routes = snapshot["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 3);
    let guarded = routes
        .iter()
        .find(|route| route["allowSources"][0] == "127.0.0.0/8");
    assert!(
        guarded.unwrap()["matches"]
            .as_str()
            .unwrap()
            .contains("a.test")
    );
    let config = child.admin_json("/config");
    assert_eq!(config["limits"]["connections"], 1000);
    assert_eq!(config["limits"]["preambleTimeout"], "10s");
    assert_eq!(config["listeners"][1]["protocol"], "proxy-or-connect");
}

#[test]
fn the_log_level_can_be_changed() {
    let (child, _upstream) = start();
    let put = |directives: &str| {
        let mut connection = Connection::open(&Target::plain(child.admin)).unwrap();
        connection
            .request("PUT", "/log", Some(directives))
            .unwrap()
            .status
    };
    let refuse = || {
        let mut client = Client::open(child.addr("node"));
        client.send(connect_head("b").as_bytes());
        client.rest();
    };
    refuse();
    let quiet = child.stderr().matches("\"DEBUG\"").count();
    assert_eq!(quiet, 0);
    assert_eq!(put("info,sni_proxy=debug,telemetry=debug"), 200);
    let answer = Probe::ask(child.admin, "GET", "/log").text();
    assert!(answer.contains("sni_proxy=debug"), "{answer}");
    for nonsense in ["sni_proxy=shout", "nonsense", "nonsense=debug", ""] {
        assert_eq!(put(nonsense), 400, "{nonsense:?}");
        let after = Probe::ask(child.admin, "GET", "/log").text();
        assert_eq!(after, answer, "{nonsense:?}");
    }
}

#[test]
fn probes_answer_on_both_addresses() {
    let (child, _upstream) = start();
    for addr in [child.probes, child.admin] {
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(Probe::ask(addr, "GET", path).status, 200, "{path}");
        }
    }
    for path in ["/", "/config", "/snapshot", "/connections", "/log"] {
        assert_eq!(Probe::ask(child.probes, "GET", path).status, 404, "{path}");
        assert_eq!(Probe::ask(child.admin, "GET", path).status, 200, "{path}");
    }
    assert_eq!(Probe::ask(child.probes, "POST", "/drain").status, 404);
    assert_eq!(child.readiness(), 200);
    let mut connection = Connection::open(
        &Target::plain(child.probes).header("Accept", "application/openmetrics-text"),
    );
    let text = connection.as_mut().unwrap().get("/metrics").unwrap().text();
    assert!(
        text.ends_with("# EOF\n"),
        "{}",
        &text[text.len().saturating_sub(50)..]
    );
}
