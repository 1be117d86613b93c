//! TLS listeners: where a server name leads, and what is closed at once.

use testkit::client_hello::ClientHello;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Client, End, Gateway, LIMIT, routes_of};

const LISTENER: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;

fn greeter(name: &str) -> Upstream {
    let greeting = name.as_bytes().to_vec();
    Upstream::start(Behavior::EndsWriteFirst { greeting }).unwrap()
}

/// Returns what the endpoint says that `hello` leads to.
fn reached(gateway: &Gateway, hello: &ClientHello) -> String {
    let mut client = Client::open(gateway.addr("tls"));
    client.send(&hello.encode());
    String::from_utf8(client.rest()).unwrap()
}

#[test]
fn longest_name_match_wins() {
    let names = ["any", "wide", "deep", "exact"];
    let upstreams = names.map(|name| (name, greeter(name)));
    let mut routes = String::from("clusters:\n");
    for (name, upstream) in &upstreams {
        let addr = upstream.addr();
        routes += &format!("- {{ name: {name}, endpoints: [{{ address: \"{addr}\" }}] }}\n");
    }
    routes += r#"
routes:
- { serverNames: ["*"], cluster: any }
- { serverNames: ["*.wild.test"], cluster: wide }
- { serverNames: ["*.deep.Wild.test"], cluster: deep }
- { serverNames: ["api.deep.wild.test", "only.test."], cluster: exact }
"#;
    let gateway = Gateway::start(LISTENER, &routes);
    for (server_name, cluster) in [
        ("api.deep.wild.test", "exact"),
        ("API.Deep.Wild.TEST", "exact"),
        ("api.deep.wild.test.", "exact"),
        ("only.test", "exact"),
        ("x.deep.wild.test", "deep"),
        ("y.x.deep.wild.test", "deep"),
        ("x.api.deep.wild.test", "deep"),
        ("deep.wild.test", "wide"),
        ("x.y.wild.test.", "wide"),
        ("wild.test", "any"),
        ("xwild.test", "any"),
        ("other.test", "any"),
    ] {
        let hello = ClientHello::for_name(server_name);
        assert_eq!(reached(&gateway, &hello), cluster, "{server_name}");
    }
    assert_eq!(reached(&gateway, &ClientHello::default()), "any");

    // A route for every name is not one for what is no TLS.
    let mut client = Client::open(gateway.addr("tls"));
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    client.end();
    gateway.wait_closed("tls", "not_tls", 1);
}

#[test]
fn missing_name_has_three_reasons() {
    let upstream = greeter("a");
    let gateway = Gateway::start(LISTENER, &routes_of(&[("a", upstream.addr())]));
    for (preamble, reason) in [
        (ClientHello::default().encode(), "no_server_name"),
        (
            ClientHello::for_name("b.test").encode(),
            "unknown_server_name",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), "not_tls"),
        (b"\x16".to_vec(), ""),
    ] {
        let mut client = Client::open(gateway.addr("tls"));
        client.send(&preamble);
        if reason.is_empty() {
            client.finish(); // what may still become TLS is waited for
            client.end();
            gateway.wait_closed("tls", "malformed", 1);
        } else {
            assert_eq!(client.end(), End::Closed, "{reason}");
            gateway.wait_closed("tls", reason, 1);
        }
    }
    let total = gateway.value("rhizome_connections_closed_total", &[("listener", "tls")]);
    assert_eq!(total, 4.0, "each counted once");
    assert_eq!(upstream.accepted(), 0);
}

#[test]
fn split_client_hello_arrives_unchanged() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let gateway = Gateway::start(LISTENER, &routes_of(&[("a", upstream.addr())]));
    let usual = ClientHello::for_name("a.test");
    let small_records = ClientHello {
        record_bytes: 7,
        ..usual.clone()
    };
    let post_quantum = ClientHello {
        key_share_bytes: 20_000,
        server_name_last: true,
        ..usual.clone()
    };
    let both = ClientHello {
        record_bytes: 500,
        ..post_quantum.clone()
    };
    assert!(post_quantum.encode().len() > 16 * 1024);
    for hello in [&usual, &small_records] {
        let mut client = Client::open(gateway.addr("tls"));
        client.drip(&hello.encode());
        assert_eq!(client.receive(hello.encode().len()), hello.encode());
    }
    for hello in [&post_quantum, &both] {
        let bytes = hello.encode();
        let mut client = Client::open(gateway.addr("tls"));
        for segment in bytes.chunks(1000) {
            client.send(segment);
        }
        assert_eq!(client.receive(bytes.len()), bytes);
    }
    // What follows the hello in the same segment is the endpoint's, too.
    let mut client = Client::open(gateway.addr("tls"));
    client.expect_echo(&[usual.encode(), b"early data".to_vec()].concat());
    client.finish();
    assert_eq!(client.rest(), b"");
    upstream.wait_closed(LIMIT).unwrap();
}

#[test]
fn hello_size_is_bounded_as_configured() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = format!("{LISTENER}limits: {{ preambleBytes: 4096 }}\n");
    let gateway = Gateway::start(&config, &routes_of(&[("a", upstream.addr())]));
    let of_length = |wanted: usize| {
        let mut hello = ClientHello::for_name("a.test");
        let without = hello.encode().len() - usize::from(hello.key_share_bytes);
        hello.key_share_bytes = u16::try_from(wanted - without).unwrap();
        assert_eq!(hello.encode().len(), wanted);
        hello.encode()
    };
    let mut client = Client::open(gateway.addr("tls"));
    client.expect_echo(&of_length(4096));
    for too_long in [4097, 16_000] {
        let mut client = Client::open(gateway.addr("tls"));
        let _ = client.try_send(&of_length(too_long));
        client.end();
    }
    gateway.wait_closed("tls", "preamble_too_long", 2);
    assert_eq!(upstream.accepted(), 1);
}
