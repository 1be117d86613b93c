//! A load balancer's PROXY header: who may send one, where, and whose address counts then.
//!
//! ```text
//!     mode of the listener × trusted or not × protocol × what is sent  ─▶  reason, client, cluster
//! ```
//!
//! Every case is one connection, found again in the access log by its peer.

use std::net::SocketAddr;

use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Child, Client, connect_head};

const TRUSTED: &str = "127.0.0.2";
const UNTRUSTED: &str = "127.0.0.1";
/// What the load balancer says of the client; its destination is routed too, to `first`.
const CLIENT: &str = "198.51.100.9:4711";

/// What is sent after an optional load balancer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A CONNECT for `named`.
    Connect,
    /// The end.
    Eof,
    /// A ClientHello for `tls.test`.
    Hello,
    /// A node proxy's header that leads to `second`, and data.
    NodeHeader,
    /// What is neither, and the end.
    Other,
    /// The beginning of a CONNECT, and silence.
    Part,
    /// Nothing.
    Silence,
}

/// What is expected to be logged: the reason, whether the client is the header's source, and the
/// cluster.
type Expected = (&'static str, bool, Option<&'static str>);

const FIRST: Expected = ("closed", false, Some("first"));
const UNTRUSTED_PROXY: Expected = ("untrusted_proxy", false, None);

/// One row of the matrix: listener, trusted, header before, what then, expected.
type Row = (&'static str, bool, bool, Then, Expected);

fn rows() -> Vec<Row> {
    use Then::{Connect, Eof, Hello, NodeHeader, Other, Part, Silence};
    let mut rows = vec![
        // A node listener that may have a load balancer in front: what follows decides.
        (
            "node-optional",
            true,
            true,
            Connect,
            ("closed", true, Some("named")),
        ),
        (
            "node-optional",
            true,
            true,
            NodeHeader,
            ("closed", true, Some("second")),
        ),
        ("node-optional", true, true, Other, FIRST),
        ("node-optional", true, true, Hello, FIRST),
        ("node-optional", true, true, Part, FIRST),
        ("node-optional", true, true, Silence, FIRST),
        ("node-optional", true, true, Eof, FIRST),
        // One that always has.
        (
            "node-required",
            true,
            true,
            Connect,
            ("closed", true, Some("named")),
        ),
        (
            "node-required",
            true,
            true,
            NodeHeader,
            ("closed", true, Some("second")),
        ),
        (
            "node-required",
            true,
            true,
            Other,
            ("malformed", true, None),
        ),
        (
            "node-required",
            true,
            true,
            Part,
            ("preamble_timeout", true, None),
        ),
        (
            "node-required",
            true,
            true,
            Silence,
            ("preamble_timeout", true, None),
        ),
        ("node-required", true, true, Eof, ("closed", true, None)),
        (
            "node-required",
            true,
            false,
            Connect,
            ("bad_proxy_header", false, None),
        ),
        (
            "node-required",
            true,
            false,
            Other,
            ("bad_proxy_header", false, None),
        ),
        (
            "node-required",
            true,
            false,
            Silence,
            ("preamble_timeout", false, None),
        ),
        // Server names.
        ("tls-off", true, true, Hello, ("not_tls", false, None)),
        (
            "tls-off",
            true,
            false,
            Hello,
            ("closed", false, Some("tls")),
        ),
        (
            "tls-optional",
            true,
            true,
            Hello,
            ("closed", true, Some("tls")),
        ),
        (
            "tls-optional",
            true,
            false,
            Hello,
            ("closed", false, Some("tls")),
        ),
        ("tls-optional", true, true, Other, ("not_tls", true, None)),
        (
            "tls-optional",
            true,
            true,
            Silence,
            ("preamble_timeout", true, None),
        ),
        (
            "tls-optional",
            true,
            true,
            NodeHeader,
            ("not_tls", true, None),
        ),
        ("tls-optional", false, true, Hello, UNTRUSTED_PROXY),
        (
            "tls-optional",
            false,
            false,
            Hello,
            ("closed", false, Some("tls")),
        ),
        (
            "tls-required",
            true,
            true,
            Hello,
            ("closed", true, Some("tls")),
        ),
        ("tls-required", true, true, Other, ("not_tls", true, None)),
        (
            "tls-required",
            true,
            false,
            Hello,
            ("bad_proxy_header", false, None),
        ),
        // CONNECT alone.
        ("vpn-off", true, true, Connect, ("malformed", false, None)),
        (
            "vpn-off",
            true,
            false,
            Connect,
            ("closed", false, Some("named")),
        ),
        (
            "vpn-optional",
            true,
            true,
            Connect,
            ("closed", true, Some("named")),
        ),
        (
            "vpn-optional",
            true,
            false,
            Connect,
            ("closed", false, Some("named")),
        ),
        ("vpn-optional", false, true, Connect, UNTRUSTED_PROXY),
        (
            "vpn-optional",
            false,
            false,
            Connect,
            ("closed", false, Some("named")),
        ),
        (
            "vpn-required",
            true,
            true,
            Connect,
            ("closed", true, Some("named")),
        ),
        (
            "vpn-required",
            true,
            true,
            NodeHeader,
            ("malformed", true, None),
        ),
        (
            "vpn-required",
            true,
            false,
            Connect,
            ("bad_proxy_header", false, None),
        ),
    ];
    // Where no load balancer is expected, or the peer may not be one, a header is the node's and
    // all that follows is data.
    for (listener, trusted) in [
        ("node-off", true),
        ("node-off", false),
        ("node-optional", false),
    ] {
        for then in [Connect, NodeHeader, Other, Hello, Eof] {
            rows.push((listener, trusted, true, then, FIRST));
        }
        rows.push((
            listener,
            trusted,
            false,
            Connect,
            ("closed", false, Some("named")),
        ));
        rows.push((
            listener,
            trusted,
            false,
            NodeHeader,
            ("closed", false, Some("second")),
        ));
    }
    for listener in ["node-required", "tls-required", "vpn-required"] {
        for (header, then) in [
            (true, Hello),
            (true, Connect),
            (false, Connect),
            (false, Silence),
        ] {
            rows.push((listener, false, header, then, UNTRUSTED_PROXY));
        }
    }
    rows
}

fn config() -> String {
    let mut text = String::from("listeners:\n");
    for (short, protocol) in [
        ("tls", "tls"),
        ("node", "proxy-or-connect"),
        ("vpn", "connect"),
    ] {
        for mode in ["off", "optional", "required"] {
            text += &format!(
                "- {{ name: {short}-{mode}, address: \"127.0.0.1:0\", protocol: {protocol}, \
                 proxyProtocol: {mode} }}\n"
            );
        }
    }
    text + &format!(
        "trustedProxies: [\"{TRUSTED}/32\"]\n\
         limits: {{ preambleTimeout: 1s }}\naccessLog: {{ format: json }}\n"
    )
}

fn start() -> (Child, [Upstream; 4]) {
    let upstreams = [(); 4].map(|()| Upstream::start(Behavior::Echo).unwrap());
    let mut routes = String::from("clusters:\n");
    for (name, upstream) in ["first", "second", "named", "tls"].iter().zip(&upstreams) {
        let addr = upstream.addr();
        routes += &format!("- {{ name: {name}, endpoints: [{{ address: \"{addr}\" }}] }}\n");
    }
    routes += r#"
routes:
- { destinations: ["10.0.0.1/32", "fd00::1/128"], port: 443, cluster: first }
- { destinations: ["10.0.0.2/32"], port: 443, cluster: second }
- { connectDestinations: ["named"], cluster: named }
- { serverNames: ["tls.test"], cluster: tls }
"#;
    (Child::start(&config(), &routes), upstreams)
}

/// Returns the bytes that are sent.
fn bytes_of(then: Then) -> Vec<u8> {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    match then {
        Then::Connect => connect_head("named").into_bytes(),
        Then::Hello => ClientHello::for_name("tls.test").encode(),
        Then::NodeHeader => {
            let header = proxy_header::v2(at("100.64.0.1:5"), at("10.0.0.2:443"), &[]);
            [header, b"data".to_vec()].concat()
        }
        // Starts as a header of version 2 does.
        Then::Other => b"\r\n\r\nGET".to_vec(),
        Then::Part => b"CONN".to_vec(),
        Then::Eof | Then::Silence => Vec::new(),
    }
}

fn header(version: u8) -> Vec<u8> {
    let (source, destination) = (CLIENT.parse().unwrap(), "10.0.0.1:443".parse().unwrap());
    match version {
        1 => proxy_header::v1(source, destination),
        _ => proxy_header::v2(source, destination, &[(0x04, b"pad")]),
    }
}

/// Plays one row and compares what the access log says.
fn play(child: &Child, row: Row, version: u8) {
    let (listener, trusted, with_header, then, (reason, told, cluster)) = row;
    let from = if trusted { TRUSTED } else { UNTRUSTED };
    let mut client = Client::from_ip(from, child.addr(listener));
    let peer = client.addr();
    let before = if with_header {
        header(version)
    } else {
        Vec::new()
    };
    let sent = [before, bytes_of(then)].concat();
    let _ = client.try_send(&sent);
    match then {
        Then::Part | Then::Silence if cluster.is_some() => {
            // The node proxy's header counts once the time is over; what came behind it is data.
            let data = bytes_of(then);
            assert_eq!(client.receive(data.len()), data, "{row:?}");
            client.expect_echo(b"more");
            client.finish();
            client.end();
        }
        Then::Part | Then::Silence => {
            client.end();
        }
        _ if cluster.is_some() => {
            client.finish();
            client.rest();
        }
        Then::Eof => {
            client.finish();
            client.end();
        }
        Then::Connect | Then::Hello | Then::NodeHeader | Then::Other => {}
    }
    let line = child.access_line_at(listener, peer);
    let client = if told {
        CLIENT.to_owned()
    } else {
        peer.to_string()
    };
    let seen = (&line["reason"], &line["client"], &line["cluster"]);
    let wanted = (&reason.into(), &client.into(), &cluster.into());
    assert_eq!(seen, wanted, "{row:?} with version {version}: {line}");
}

#[test]
fn proxy_modes_follow_documentation() {
    let (child, upstreams) = start();
    std::thread::scope(|scope| {
        for row in rows() {
            for version in [1, 2] {
                let child = &child;
                scope.spawn(move || play(child, row, version));
            }
        }
    });
    // Without a load balancer's header, the second header and a CONNECT are the endpoint's.
    let first = upstreams[0].beginnings();
    for data in [
        bytes_of(Then::Connect),
        bytes_of(Then::NodeHeader),
        bytes_of(Then::Other),
    ] {
        assert!(
            first.contains(&data),
            "{:?}",
            String::from_utf8_lossy(&data)
        );
    }
    // Headers never reach an endpoint otherwise.
    let second = upstreams[1].beginnings();
    assert!(
        second.iter().all(|beginning| beginning == b"data"),
        "{second:?}"
    );
    let tls = upstreams[3].beginnings();
    assert!(
        tls.iter()
            .all(|beginning| *beginning == bytes_of(Then::Hello))
    );
}

#[test]
fn headers_may_arrive_byte_by_byte() {
    let (child, _upstreams) = start();
    let node = bytes_of(Then::NodeHeader);
    for version in [1, 2] {
        let mut client = Client::from_ip(TRUSTED, child.addr("node-optional"));
        client.drip(&[header(version), node.clone()].concat());
        assert_eq!(client.receive(4), b"data");
        let peer = client.addr();
        client.finish();
        client.end();
        let line = child.access_line(peer);
        assert_eq!(line["client"], CLIENT);
        assert_eq!(line["destination"], "10.0.0.2:443");
    }
}

#[test]
fn local_command_is_served_as_peer() {
    let (child, _upstreams) = start();
    for header in [proxy_header::v2_local(), b"PROXY UNKNOWN\r\n".to_vec()] {
        for (listener, then, cluster) in [
            ("tls-required", Then::Hello, "tls"),
            ("node-optional", Then::Connect, "named"),
            ("node-optional", Then::NodeHeader, "second"),
            ("vpn-optional", Then::Connect, "named"),
        ] {
            let mut client = Client::from_ip(TRUSTED, child.addr(listener));
            let peer = client.addr();
            client.send(&[header.clone(), bytes_of(then)].concat());
            client.finish();
            client.rest();
            let line = child.access_line(peer);
            assert_eq!(line["client"], peer.to_string(), "{line}");
            assert_eq!(line["cluster"], cluster, "{line}");
        }
        // On a node listener nothing behind it leaves it without a destination.
        let mut client = Client::from_ip(TRUSTED, child.addr("node-optional"));
        let peer = client.addr();
        client.send(&header);
        client.finish();
        client.end();
        assert_eq!(child.access_line(peer)["reason"], "unknown_destination");
    }
}
