//! The access log: one line per connection on standard output, its fields and their order.

use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Child, Client, LIMIT};

const FIELDS: [&str; 15] = [
    "time",
    "listener",
    "protocol",
    "peer",
    "client",
    "server_name",
    "alpn",
    "destination",
    "connect",
    "cluster",
    "endpoint",
    "rx_bytes",
    "tx_bytes",
    "duration_ms",
    "reason",
];

fn start(format: &str) -> (Child, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = format!(
        r#"
listeners:
- {{ name: tls, address: "[::]:0", protocol: tls }}
- {{ name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }}
- {{ name: vpn, address: "127.0.0.1:0", protocol: connect }}
accessLog: {{ format: {format} }}
"#
    );
    let routes = format!(
        r#"
clusters: [{{ name: "outbound|443||a", endpoints: [{{ address: "{}" }}] }}]
routes:
- {{ serverNames: ["a.test"], cluster: "outbound|443||a" }}
- {{ destinations: ["10.1.2.3/32"], port: 443, cluster: "outbound|443||a" }}
- {{ connectDestinations: ["outbound|1194||a"], cluster: "outbound|443||a" }}
"#,
        upstream.addr()
    );
    (Child::start(&config, &routes), upstream)
}

/// Where `name` starts in a line, however the format writes it.
fn places(line: &str, written: impl Fn(&str) -> String) -> Vec<usize> {
    let place = |name: &&str| line.rfind(&written(name)).unwrap_or(usize::MAX);
    FIELDS.iter().map(place).collect()
}

#[test]
fn json_line_has_documented_fields_in_order() {
    let (child, upstream) = start("json");
    let endpoint = upstream.addr().to_string();
    // Through the dual-stack socket: an IPv4 peer is written as one.
    let port = child.addr("tls").port();
    let mut client = Client::established(([127, 0, 0, 1], port).into(), "A.test");
    let peer = client.addr();
    client.expect_echo(b"0123456789");
    client.finish();
    client.end();
    let line = child.access_line(peer);
    let raw = child.stdout();
    let raw = raw.lines().find(|raw| raw.contains(&peer.to_string()));
    let raw = raw.unwrap();
    assert!(
        places(raw, |name| format!("\"{name}\":")).is_sorted(),
        "{raw}"
    );
    assert_eq!(line.as_object().unwrap().len(), FIELDS.len(), "{raw}");
    let bytes = ClientHello::for_name("A.test").encode().len() + 10;
    assert_eq!(line["listener"], "tls");
    assert_eq!(line["protocol"], "tls");
    assert_eq!(line["client"], peer.to_string());
    assert_eq!(line["server_name"], "A.test", "as it was sent");
    assert_eq!(line["alpn"], "h2,http/1.1");
    assert!(
        line["destination"].is_null() && line["connect"].is_null(),
        "{raw}"
    );
    assert_eq!(line["cluster"], "outbound|443||a");
    assert_eq!(line["endpoint"], endpoint);
    assert_eq!(
        (&line["rx_bytes"], &line["tx_bytes"]),
        (&bytes.into(), &bytes.into())
    );
    assert!(line["duration_ms"].is_u64(), "{raw}");
    assert_eq!(line["reason"], "closed");
    let time = line["time"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
}

#[test]
fn every_route_and_refusal_is_logged() {
    let (child, _upstream) = start("json");
    let header = |dst: &str| {
        let src = "192.0.2.7:5000".parse().unwrap();
        proxy_header::v2(src, dst.parse().unwrap(), &[])
    };
    let line_of = |listener: &str, bytes: &[u8]| {
        let mut client = match child.addr(listener) {
            addr if addr.is_ipv6() => Client::open(([127, 0, 0, 1], addr.port()).into()),
            addr => Client::open(addr),
        };
        client.send(bytes);
        client.finish();
        client.rest();
        child.access_line(client.addr())
    };

    let node = line_of("node", &[header("10.1.2.3:443"), b"data".to_vec()].concat());
    assert_eq!(node["protocol"], "proxy-or-connect");
    assert_eq!(node["destination"], "10.1.2.3:443");
    assert_eq!(
        node["client"], node["peer"],
        "a node's header is no identity"
    );
    assert_eq!(
        (node["rx_bytes"].as_u64(), node["tx_bytes"].as_u64()),
        (Some(4), Some(4))
    );
    assert_eq!(node["cluster"], "outbound|443||a");

    let elsewhere = line_of("node", &header("10.1.2.3:444"));
    assert_eq!(elsewhere["destination"], "10.1.2.3:444");
    assert_eq!(elsewhere["reason"], "unknown_destination");
    assert!(elsewhere["cluster"].is_null() && elsewhere["endpoint"].is_null());

    let head =
        "CONNECT x:1 HTTP/1.1\r\nHost: x\r\nX-Gardener-Destination: outbound|1194||a\r\n\r\n";
    let connect = line_of("vpn", head.as_bytes());
    assert_eq!(connect["protocol"], "connect");
    assert_eq!(connect["connect"], "outbound|1194||a");
    assert_eq!(connect["reason"], "closed");

    let nameless = line_of("tls", &ClientHello::default().encode());
    assert_eq!(nameless["reason"], "no_server_name");
    for field in ["server_name", "alpn", "cluster", "endpoint"] {
        assert!(nameless[field].is_null(), "{field}");
    }
    let unknown = line_of("tls", &ClientHello::for_name("b.test").encode());
    assert_eq!(unknown["server_name"], "b.test");
    assert_eq!(unknown["reason"], "unknown_server_name");
    assert_eq!(
        line_of("tls", b"GET / HTTP/1.1\r\n\r\n")["reason"],
        "not_tls"
    );
    assert_eq!(
        line_of("vpn", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")["reason"],
        "redirected"
    );
}

#[test]
fn long_values_of_clients_are_cut() {
    let (child, _upstream) = start("json");
    let tls = ([127, 0, 0, 1], child.addr("tls").port()).into();
    // As long as a preamble may be, each byte six in JSON.
    let hello = ClientHello {
        alpn: vec!["\u{1}".repeat(250); 200],
        ..ClientHello::for_name("a.test")
    };
    let mut client = Client::open(tls);
    client.expect_echo(&hello.encode());
    client.finish();
    client.end();
    let line = child.access_line(client.addr());
    assert_eq!(line["alpn"].as_str().unwrap().len(), 512);
    assert_eq!(line["reason"], "closed");

    let mut client = Client::open(child.addr("vpn"));
    let long = "x".repeat(60_000);
    client.send(
        format!("CONNECT x:1 HTTP/1.1\r\nHost: x\r\nReversed-VPN: {long}\r\n\r\n").as_bytes(),
    );
    assert!(client.read_head().starts_with("HTTP/1.1 404 "));
    client.finish();
    client.rest();
    let line = child.access_line(client.addr());
    assert_eq!(line["connect"], long[..512]);
    assert_eq!(line["reason"], "unknown_destination");
}

#[test]
fn text_line_has_same_fields_on_one_line() {
    let (child, _upstream) = start("text");
    let mut client = Client::open(child.addr("vpn"));
    let peer = client.addr();
    let head = "CONNECT x:1 HTTP/1.0\r\nReversed-VPN: a b=\"c\"\u{85} reason=closed\r\n\r\n";
    client.send(head.as_bytes());
    assert!(client.read_head().starts_with("HTTP/1.0 404 "));
    client.finish();
    client.rest();
    let line = wait::until_some("the line", LIMIT, || {
        let log = child.stdout();
        let mut lines = log.lines().filter(|line| line.contains("reason="));
        lines.next().map(str::to_owned)
    });
    let line = line.unwrap();
    let start = |name: &str| match name {
        "time" => "time=".to_owned(),
        name => format!(" {name}="),
    };
    assert!(line.starts_with("time="), "{line}");
    assert!(places(&line, start).is_sorted(), "{line}");
    assert!(
        line.contains(&format!(" peer={peer} client={peer} server_name=- alpn=-")),
        "{line}"
    );
    assert!(line.contains(" destination=- connect=\""), "{line}");
    assert!(
        line.contains(" cluster=- endpoint=- rx_bytes=0 tx_bytes=0 "),
        "{line}"
    );
    assert!(line.ends_with(" reason=unknown_destination"), "{line}");
    assert_eq!(child.stdout().lines().count(), 1);
}
