//! The PROXY header toward an endpoint: whose addresses it carries.

use std::net::SocketAddr;

use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Client, Gateway, connect_head};

const LISTENERS: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: dual, address: "[::]:0", protocol: tls }
- { name: lb, address: "127.0.0.1:0", protocol: tls, proxyProtocol: required }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
- { name: both, address: "127.0.0.1:0", protocol: proxy-or-connect, proxyProtocol: optional }
trustedProxies: ["127.0.0.1/32"]
"#;

const CLIENT: &str = "198.51.100.9:4711";
const BALANCER: &str = "198.51.100.1:443";
const POD: &str = "100.64.0.7:33000";
const DESTINATION: &str = "10.1.2.3:443";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Starts with a cluster for each version, and returns both endpoints.
fn start() -> (Gateway, Upstream, Upstream) {
    let (one, two) = (
        Upstream::start(Behavior::Echo).unwrap(),
        Upstream::start(Behavior::Echo).unwrap(),
    );
    let routes = format!(
        r#"
clusters:
- {{ name: one, sendProxyProtocol: v1, endpoints: [{{ address: "{}" }}] }}
- {{ name: two, sendProxyProtocol: v2, endpoints: [{{ address: "{}" }}] }}
routes:
- {{ serverNames: ["one.test"], cluster: one }}
- {{ serverNames: ["two.test"], cluster: two }}
- {{ destinations: ["10.1.2.3/32"], cluster: one }}
- {{ destinations: ["fd00::3/128"], cluster: two }}
- {{ connectDestinations: ["one"], cluster: one }}
- {{ connectDestinations: ["two"], cluster: two }}
"#,
        one.addr(),
        two.addr()
    );
    (Gateway::start(LISTENERS, &routes), one, two)
}

/// Sends `bytes`, and expects the endpoint to see `header` and then `payload`.
#[track_caller]
fn expect(client: &mut Client, bytes: &[u8], header: &[u8], payload: &[u8]) {
    client.send(bytes);
    let wanted = [header, payload].concat();
    assert_eq!(client.receive(wanted.len()), wanted);
    client.finish();
    assert_eq!(client.rest(), b"");
}

#[test]
fn direct_client_is_sent_with_local_address() {
    let (gateway, _one, _two) = start();
    for listener in ["tls", "dual"] {
        let to = SocketAddr::new("127.0.0.1".parse().unwrap(), gateway.addr(listener).port());
        for name in ["one.test", "two.test"] {
            let hello = ClientHello::for_name(name).encode();
            let mut client = Client::open(to);
            let header = match name {
                "one.test" => proxy_header::v1(client.addr(), to),
                _ => proxy_header::v2(client.addr(), to, &[]),
            };
            expect(&mut client, &hello, &header, &hello);
        }
    }
    let to = SocketAddr::new("::1".parse().unwrap(), gateway.addr("dual").port());
    let hello = ClientHello::for_name("two.test").encode();
    let mut client = Client::open(to);
    let header = proxy_header::v2(client.addr(), to, &[]);
    expect(&mut client, &hello, &header, &hello);
}

#[test]
fn balancers_header_is_passed_on() {
    let (gateway, _one, _two) = start();
    let hello = ClientHello::for_name("one.test").encode();
    let told = proxy_header::v2(at(CLIENT), at(BALANCER), &[(0x04, b"tlv")]);
    let mut client = Client::open(gateway.addr("lb"));
    let header = proxy_header::v1(at(CLIENT), at(BALANCER));
    expect(
        &mut client,
        &[told.clone(), hello.clone()].concat(),
        &header,
        &hello,
    );
    // A CONNECT behind one is the balancer's client's.
    let mut client = Client::open(gateway.addr("both"));
    client.send(&[told, connect_head("two").into_bytes()].concat());
    assert!(client.read_head().starts_with("HTTP/1.1 200 "));
    let header = proxy_header::v2(at(CLIENT), at(BALANCER), &[]);
    assert_eq!(
        client.receive(header.len()),
        header,
        "sent before the client says anything"
    );
    client.expect_echo(b"data");
}

#[test]
fn a_node_proxys_header_goes_before_any_other() {
    let (gateway, _one, _two) = start();
    let node = proxy_header::v1(at(POD), at(DESTINATION));
    let mut client = Client::open(gateway.addr("node"));
    expect(
        &mut client,
        &[node.clone(), b"data".to_vec()].concat(),
        &node,
        b"data",
    );

    let balancer = proxy_header::v1(at(CLIENT), at(BALANCER));
    let mut client = Client::open(gateway.addr("both"));
    let bytes = [balancer, node.clone(), b"data".to_vec()].concat();
    expect(&mut client, &bytes, &node, b"data");

    let six = proxy_header::v2(at("[fd00::99]:1"), at("[fd00::3]:443"), &[]);
    let mut client = Client::open(gateway.addr("node"));
    expect(
        &mut client,
        &[six.clone(), b"data".to_vec()].concat(),
        &six,
        b"data",
    );
}

#[test]
fn a_direct_connect_is_the_peers() {
    let (gateway, _one, _two) = start();
    let to = gateway.addr("node");
    let mut client = Client::open(to);
    assert!(client.connect("one").starts_with("HTTP/1.1 200 "));
    let header = proxy_header::v1(client.addr(), to);
    assert_eq!(client.receive(header.len()), header);
}
