//! What a CONNECT is answered, and what becomes of any other request.

use testkit::upstream::{Behavior, Upstream};

use crate::support::{Client, Gateway, LIMIT, connect_head};

const LISTENERS: &str = r#"
listeners:
- { name: vpn, address: "127.0.0.1:0", protocol: connect }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
"#;

fn start(extra: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let (addr, refusing) = (upstream.addr(), testkit::ports::free(1).unwrap()[0]);
    let routes = format!(
        r#"
clusters:
- {{ name: a, endpoints: [{{ address: "{addr}" }}] }}
- {{ name: none, endpoints: [] }}
- {{ name: refusing, endpoints: [{{ address: "127.0.0.1:{refusing}" }}] }}
- {{ name: full, maxConnections: 1, endpoints: [{{ address: "{addr}" }}] }}
routes:
- {{ connectDestinations: ["outbound|1194||a"], cluster: a }}
- {{ connectDestinations: ["none"], cluster: none }}
- {{ connectDestinations: ["refusing"], cluster: refusing }}
- {{ connectDestinations: ["full"], cluster: full }}
- {{ connectDestinations: ["theirs"], cluster: a, allowSources: ["203.0.113.0/24"] }}
- {{ connectDestinations: ["ours"], cluster: a, allowSources: ["127.0.0.0/30"] }}
"#
    );
    (
        Gateway::start(&format!("{LISTENERS}{extra}"), &routes),
        upstream,
    )
}

/// Sends `request`, ends, and returns the whole answer.
fn answer(gateway: &Gateway, listener: &str, request: &str) -> String {
    let mut client = Client::open(gateway.addr(listener));
    client.send(request.as_bytes());
    String::from_utf8(client.rest()).unwrap()
}

fn status(answer: &str) -> &str {
    answer.split("\r\n").next().unwrap()
}

#[test]
fn each_connect_outcome_has_status_and_reason() {
    let (gateway, upstream) = start("");
    let _held = {
        let mut client = Client::open(gateway.addr("vpn"));
        assert_eq!(client.connect("full"), "HTTP/1.1 200 OK\r\n\r\n");
        client
    };
    for listener in ["vpn", "node"] {
        for (value, code, reason) in [
            ("unheard-of", "404 ", "unknown_destination"),
            ("OUTBOUND|1194||a", "404 ", "unknown_destination"),
            ("theirs", "403 ", "source_denied"),
            ("none", "503 ", "no_endpoint"),
            ("refusing", "503 ", "connect_refused"),
            ("full", "503 ", "limit"),
        ] {
            let labels = [("listener", listener), ("reason", reason)];
            let name = "rhizome_connections_closed_total";
            let before = gateway.value(name, &labels);
            let text = answer(&gateway, listener, &connect_head(value));
            let wanted = format!("HTTP/1.1 {code}");
            assert!(text.starts_with(&wanted), "{value}: {text}");
            assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
            gateway.wait_value(name, &labels, before + 1.0);
        }
    }
    assert_eq!(upstream.accepted(), 1);
}

#[test]
fn a_request_that_is_wrong_is_told_so() {
    let (gateway, upstream) = start("limits: { preambleBytes: 2048 }\n");
    let connect = |headers: &str| format!("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    let long = format!("X: {}\r\n", "x".repeat(3000));
    let many = "X: y\r\n".repeat(150);
    for (headers, code) in [
        (
            "Reversed-VPN: ours\r\nX-Gardener-Destination: theirs\r\n",
            "400",
        ),
        ("Reversed-VPN: ours\r\nReversed-VPN: theirs\r\n", "400"),
        ("Reversed-VPN: ours\r\nno colon here\r\n", "400"),
        ("Reversed-VPN: ours\r\n folded\r\n", "400"),
        ("Reversed-VPN : ours\r\n", "400"),
        ("Host: b\r\n", "400"),
        (long.as_str(), "431"),
        (many.as_str(), "431"),
    ] {
        let text = answer(&gateway, "vpn", &connect(headers));
        assert!(
            text.starts_with(&format!("HTTP/1.1 {code} ")),
            "{headers:.40}: {text}"
        );
    }
    gateway.wait_closed("vpn", "malformed", 6);
    gateway.wait_closed("vpn", "preamble_too_long", 2);
    assert_eq!(upstream.accepted(), 0);
}

#[test]
fn destination_may_be_in_either_header() {
    let (gateway, _upstream) = start("");
    for headers in [
        "Reversed-VPN: outbound|1194||a\r\n",
        "x-gardener-destination:outbound|1194||a\r\n",
        "REVERSED-VPN:  outbound|1194||a \t\r\n",
        "Reversed-VPN: ours\r\nX-Gardener-Destination: ours\r\n",
        "Reversed-VPN: ours\r\nReversed-VPN: ours\r\n",
    ] {
        for (version, expected) in [("1.1", "HTTP/1.1 200 OK"), ("1.0", "HTTP/1.0 200 OK")] {
            for listener in ["vpn", "node"] {
                let mut client = Client::open(gateway.addr(listener));
                let head = format!("CONNECT any:443 HTTP/{version}\r\nHost: any\r\n{headers}\r\n");
                client.send(head.as_bytes());
                assert_eq!(status(&client.read_head()), expected, "{headers}");
                client.expect_echo(b"tunnelled");
            }
        }
    }
    let old = "CONNECT any:443 HTTP/1.0\r\nReversed-VPN: unheard-of\r\n\r\n";
    assert_eq!(
        status(&answer(&gateway, "vpn", old)),
        "HTTP/1.0 404 Not Found"
    );
}

#[test]
fn configured_headers_replace_the_usual_ones() {
    let (gateway, _upstream) = start("connect: { headers: [X-Where] }\n");
    let ask = |header: &str| {
        let mut client = Client::open(gateway.addr("vpn"));
        client
            .send(format!("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n{header}: ours\r\n\r\n").as_bytes());
        client.read_head()
    };
    assert!(ask("x-where").starts_with("HTTP/1.1 200 "));
    assert!(ask("Reversed-VPN").starts_with("HTTP/1.1 308 "));
}

#[test]
fn bytes_after_connect_head_reach_endpoint() {
    let (gateway, upstream) = start("");
    let mut client = Client::open(gateway.addr("vpn"));
    let early = vec![b'e'; 10_000];
    client.send(&[connect_head("ours").as_bytes(), &early].concat());
    assert_eq!(client.read_head(), "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(client.receive(early.len()), early);
    let mut slow = Client::open(gateway.addr("vpn"));
    slow.drip(connect_head("ours").as_bytes());
    slow.drip(b"x");
    assert!(slow.read_head().starts_with("HTTP/1.1 200 "));
    assert_eq!(slow.receive(1), b"x");
    assert_eq!(upstream.beginnings()[0], early);
}

#[test]
fn any_other_request_is_redirected_to_https() {
    let (gateway, upstream) = start("");
    for (request, location) in [
        (
            "GET /a/b?c HTTP/1.1\r\nHost: api.test\r\n\r\n",
            "https://api.test/a/b?c",
        ),
        (
            "GET / HTTP/1.1\r\nHost: api.test:8132\r\n\r\n",
            "https://api.test/",
        ),
        (
            "HEAD /x HTTP/1.0\r\nHost: [fd00::1]:80\r\n\r\n",
            "https://[fd00::1]/x",
        ),
        (
            "CONNECT other:443 HTTP/1.1\r\nHost: api.test\r\n\r\n",
            "https://api.test/",
        ),
        (
            "POST /p HTTP/1.1\r\nHost: api.test\r\nContent-Length: 3\r\n\r\nabc",
            "https://api.test/p",
        ),
    ] {
        for listener in ["vpn", "node"] {
            let text = answer(&gateway, listener, request);
            assert_eq!(status(&text).split(' ').nth(1), Some("308"), "{text}");
            let wanted = format!("\r\nLocation: {location}\r\n");
            assert!(text.contains(&wanted), "{request}: {text}");
        }
    }
    gateway.wait_closed("vpn", "redirected", 5);
    gateway.wait_closed("node", "redirected", 5);
    assert_eq!(upstream.accepted(), 0);
}

#[test]
fn or_it_is_closed_without_a_word() {
    let (gateway, _upstream) = start("connect: { otherwise: close }\n");
    for request in [
        "GET /a HTTP/1.1\r\nHost: api.test\r\n\r\n",
        "GET /a HTTP/1.0\r\n\r\n",
        "CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n",
    ] {
        assert_eq!(answer(&gateway, "vpn", request), "", "{request}");
    }
    let mut client = Client::open(gateway.addr("vpn"));
    assert!(client.connect("ours").starts_with("HTTP/1.1 200 "));
}

#[test]
fn sources_are_checked_on_every_kind_of_route() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let addr = upstream.addr();
    let config = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: lb, address: "127.0.0.1:0", protocol: tls, proxyProtocol: optional }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
trustedProxies: ["127.0.0.1/32"]
"#;
    let routes = format!(
        r#"
clusters: [{{ name: a, endpoints: [{{ address: "{addr}" }}] }}]
routes:
- {{ serverNames: ["a.test"], cluster: a, allowSources: ["127.0.0.4/30", "203.0.113.0/24"] }}
- {{ destinations: ["10.0.0.1/32"], cluster: a, allowSources: ["127.0.0.4/30", "203.0.113.0/24"] }}
"#
    );
    let gateway = Gateway::start(config, &routes);
    let hello = testkit::client_hello::ClientHello::for_name("a.test").encode();
    let header = |source: &str| {
        let source = format!("{source}:9").parse().unwrap();
        testkit::proxy_header::v2(source, "10.0.0.1:443".parse().unwrap(), &[])
    };
    let told = |source: &str| [header(source), hello.clone()].concat();
    for (listener, from, bytes, allowed) in [
        ("tls", "127.0.0.5", hello.clone(), true),
        ("tls", "127.0.0.8", hello.clone(), false),
        ("lb", "127.0.0.1", told("203.0.113.200"), true),
        ("lb", "127.0.0.1", told("203.0.114.1"), false),
        ("lb", "127.0.0.1", hello.clone(), false),
        ("node", "127.0.0.5", told("192.0.2.1"), true),
        // A node's header is data: its source opens no door.
        ("node", "127.0.0.1", told("203.0.113.1"), false),
    ] {
        let mut client = Client::from_ip(from, gateway.addr(listener));
        client.send(&bytes);
        if allowed {
            assert_eq!(client.receive(hello.len()), hello, "{listener} from {from}");
        } else {
            client.end();
        }
    }
    gateway.wait_closed("tls", "source_denied", 1);
    gateway.wait_closed("lb", "source_denied", 2);
    gateway.wait_closed("node", "source_denied", 1);
    upstream.wait_closed(LIMIT).unwrap();
}
