//! A reset of one side reaches the other as a reset: through each kind of listener, from each side,
//! in the middle of bulk and of nothing, spliced and copied.

use std::io::{ErrorKind, Read};

use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Client, End, Gateway, LIMIT, routes_of};

const LISTENERS: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: vpn, address: "127.0.0.1:0", protocol: connect }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
"#;

const BULK: usize = 4 << 20;

fn start(splice: bool, behavior: Behavior) -> (Gateway, Upstream) {
    let upstream = Upstream::start(behavior).unwrap();
    let routes = routes_of(&[("a", upstream.addr())]);
    let routes = routes + "- { destinations: [\"10.1.2.3/32\"], cluster: a }\n";
    let config = format!("{LISTENERS}splice: {splice}\n");
    (Gateway::start(&config, &routes), upstream)
}

/// Connects on each listener as its clients do.
fn clients(gateway: &Gateway) -> [(&'static str, Client); 3] {
    let tls = Client::hello(gateway.addr("tls"), "a.test");
    let mut vpn = Client::open(gateway.addr("vpn"));
    assert_eq!(vpn.connect("a"), "HTTP/1.1 200 OK\r\n\r\n");
    let mut node = Client::open(gateway.addr("node"));
    let (source, to) = ("192.0.2.1:1000", "10.1.2.3:443");
    node.send(&proxy_header::v2(
        source.parse().unwrap(),
        to.parse().unwrap(),
        &[],
    ));
    [("tls", tls), ("vpn", vpn), ("node", node)]
}

#[test]
fn client_reset_reaches_endpoint() {
    for (splice, bytes) in [(true, 100), (true, BULK), (false, BULK)] {
        let (gateway, upstream) = start(splice, Behavior::Sink);
        for (index, (listener, mut client)) in clients(&gateway).into_iter().enumerate() {
            let before = upstream.received();
            client.send(&vec![7; bytes]);
            testkit::wait::until("the bytes to arrive", LIMIT, || {
                upstream.received() >= before + bytes as u64
            })
            .unwrap();
            client.reset();
            gateway.wait_closed(listener, "downstream_reset", 1);
            let reset = upstream.wait_resets(index + 1, LIMIT);
            assert!(reset.is_ok(), "{listener}, splice {splice}: {reset:?}");
        }
    }
}

#[test]
fn endpoint_reset_reaches_client() {
    for (splice, bytes) in [(true, 600), (true, BULK), (false, BULK)] {
        let after = bytes as u64;
        let (gateway, _upstream) = start(splice, Behavior::Resets { after });
        for (listener, mut client) in clients(&gateway) {
            client.send(&vec![7; bytes]);
            assert_eq!(client.end(), End::Reset, "{listener}, splice {splice}");
            gateway.wait_closed(listener, "upstream_reset", 1);
        }
    }
}

#[test]
fn answer_arrives_before_reset() {
    const BYTES: u32 = 1 << 20;
    for splice in [true, false] {
        let bytes = u64::from(BYTES);
        let (gateway, upstream) = start(splice, Behavior::ResetsOnRequest { bytes });
        let clients = clients(&gateway);
        for (listener, _) in &clients {
            let labels = [("listener", *listener), ("direction", "tx")];
            gateway.wait_value("rhizome_relay_bytes_total", &labels, f64::from(BYTES));
        }
        // The clients have read next to nothing: most of it waits in the gateway's sockets.
        upstream.reset();
        for (listener, client) in clients {
            let mut answer = Vec::new();
            let end = client.stream().read_to_end(&mut answer);
            let end = end.map_err(|error| error.kind());
            assert_eq!(answer.len() as u64, bytes, "{listener}, splice {splice}");
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "{listener}");
            gateway.wait_closed(listener, "upstream_reset", 1);
        }
    }
}
