//! The node proxies' port: a PROXY header's destination, or CONNECT.

use std::net::SocketAddr;

use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Client, End, Gateway, connect_head};

const LISTENER: &str = r#"
listeners:
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
"#;

const CLUSTERS: [&str; 5] = ["net", "host", "port", "six", "named"];

fn start() -> (Gateway, Vec<Upstream>) {
    let greeters = CLUSTERS.map(|name| {
        let greeting = name.as_bytes().to_vec();
        Upstream::start(Behavior::EndsWriteFirst { greeting }).unwrap()
    });
    let mut routes = String::from("clusters:\n");
    for (name, upstream) in CLUSTERS.iter().zip(&greeters) {
        let addr = upstream.addr();
        routes += &format!("- {{ name: {name}, endpoints: [{{ address: \"{addr}\" }}] }}\n");
    }
    routes += r#"
routes:
- { destinations: ["10.0.0.0/8"], cluster: net }
- { destinations: ["10.1.2.3/32"], cluster: host }
- { destinations: ["10.1.2.3/32"], port: 443, cluster: port }
- { destinations: ["fd00::/64", "10.9.0.0/16"], port: 6443, cluster: six }
- { connectDestinations: ["named"], cluster: named }
"#;
    (Gateway::start(LISTENER, &routes), greeters.into())
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn answer_to(gateway: &Gateway, bytes: &[u8]) -> String {
    let mut client = Client::open(gateway.addr("node"));
    client.send(bytes);
    String::from_utf8(client.rest()).unwrap()
}

#[test]
fn the_longest_prefix_wins_and_then_the_port() {
    let (gateway, upstreams) = start();
    for (destination, cluster) in [
        ("10.1.2.3:443", "port"),
        ("10.1.2.3:444", "host"),
        ("10.1.2.4:443", "net"),
        ("10.9.1.1:6443", "six"),
        ("10.9.1.1:6444", "net"),
        ("[fd00::5]:6443", "six"),
        ("[::ffff:10.1.2.3]:443", "port"),
    ] {
        let (source, to) = match at(destination) {
            to if to.is_ipv4() => (at("192.0.2.1:1000"), to),
            to => (at("[2001:db8::1]:1000"), to),
        };
        for header in [
            proxy_header::v1(source, to),
            proxy_header::v2(source, to, &[]),
            proxy_header::v2(source, to, &[(0x04, b"padding"), (0xea, b"vpce")]),
        ] {
            assert_eq!(answer_to(&gateway, &header), cluster, "{destination}");
        }
    }
    assert_eq!(
        answer_to(&gateway, connect_head("named").as_bytes()),
        "HTTP/1.1 200 OK\r\n\r\nnamed"
    );
    // What follows the header goes on; the header does not.
    let header = proxy_header::v1(at("192.0.2.1:1"), at("10.1.2.3:443"));
    let before = upstreams[2].beginnings().len();
    let mut client = Client::open(gateway.addr("node"));
    client.drip(&[header, b"payload".to_vec()].concat());
    client.finish();
    assert_eq!(client.rest(), b"port");
    gateway.wait_idle();
    assert_eq!(upstreams[2].beginnings()[before], b"payload");
}

#[test]
fn a_header_that_leads_nowhere_is_closed() {
    let (gateway, upstreams) = start();
    let unix = proxy_header::v2_raw(0x21, 0x31, &[0; 216]);
    let unspec = proxy_header::v2_raw(0x21, 0x00, &[]);
    let elsewhere = proxy_header::v2(at("192.0.2.1:1"), at("192.0.2.2:443"), &[]);
    let six = proxy_header::v2(at("[2001:db8::1]:1"), at("[fd00::5]:443"), &[]);
    let cases = [
        proxy_header::v2_local(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(),
        unix,
        unspec,
        elsewhere,
        six,
    ];
    let count = u32::try_from(cases.len()).unwrap();
    for header in &cases {
        let mut client = Client::open(gateway.addr("node"));
        client.send(header);
        assert_eq!(client.end(), End::Closed, "{header:02x?}");
    }
    gateway.wait_closed("node", "unknown_destination", count);
    assert!(upstreams.iter().all(|upstream| upstream.accepted() == 0));
}

/// CRC32C (Castagnoli, reflected), bit by bit from its polynomial.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}

#[test]
fn a_checksum_is_verified() {
    assert_eq!(
        crc32c(b"123456789"),
        0xe306_9283,
        "RFC 3720 B.4's algorithm"
    );
    let (gateway, _upstreams) = start();
    let zeroed = proxy_header::v2(at("192.0.2.1:1"), at("10.1.2.3:443"), &[(0x03, &[0; 4])]);
    let sum = crc32c(&zeroed);
    let with = |sum: u32| {
        let tlv = sum.to_be_bytes();
        proxy_header::v2(at("192.0.2.1:1"), at("10.1.2.3:443"), &[(0x03, &tlv)])
    };
    assert_eq!(answer_to(&gateway, &with(sum)), "port");
    assert_eq!(answer_to(&gateway, &with(sum ^ 1)), "");
    gateway.wait_closed("node", "bad_proxy_header", 1);
}

#[test]
fn a_damaged_header_is_refused() {
    let (gateway, upstreams) = start();
    let cases: [&[u8]; 4] = [
        b"PROXY TCP4 192.0.2.1 10.1.2.3 1 70000\r\n",
        b"PROXY TCP6 192.0.2.1 10.1.2.3 1 443\r\n",
        &proxy_header::v2_raw(0x11, 0x11, &[0; 12]),
        &proxy_header::v2_raw(0x21, 0x11, &[0; 11]),
    ];
    for header in cases {
        let mut client = Client::open(gateway.addr("node"));
        client.send(header);
        client.end();
    }
    gateway.wait_closed("node", "bad_proxy_header", 4);
    // Neither a header nor HTTP.
    let mut client = Client::open(gateway.addr("node"));
    client.send(b"\x16\x03\x01\x02\x00\x01");
    client.end();
    gateway.wait_closed("node", "malformed", 1);
    assert!(upstreams.iter().all(|upstream| upstream.accepted() == 0));
}
