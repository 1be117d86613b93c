//! Servers behind gateways of their own, at their addresses.

use std::net::{Ipv4Addr, UdpSocket};

use testkit::metrics::Metrics as Scrape;

use super::*;

/// The gateway at `tcp`, which takes datagrams at `udp`.
fn at(tcp: SocketAddr, udp: SocketAddr, value: &str) -> Gateway {
    Gateway {
        tcp: EndpointAddress::Ip(tcp),
        udp: EndpointAddress::Ip(udp),
        value: value.to_owned(),
    }
}

#[tokio::test]
async fn each_server_is_reached_by_its_own_gateway() {
    let [first, second] = [(); 2].map(|()| Listening::start(b"HTTP/1.1 200 OK\r\n\r\n"));
    let ends = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let ends = ends.map(|socket| socket.local_addr().unwrap());
    let (connector, _) = reaching([
        ("a", at(first.at, ends[0], "to-a")),
        ("b", at(second.at, ends[1], "to-b")),
    ]);
    for (server, listening, end) in [("b", second, ends[1]), ("a", first, ends[0])] {
        drop(connector.tcp(server).await.unwrap());
        let seen = String::from_utf8(listening.seen.join().unwrap()).unwrap();
        let target = format!("CONNECT {} ", listening.at);
        assert!(seen.starts_with(&target), "{seen}");
        let header = format!("\r\nReversed-VPN: to-{server}\r\n");
        assert!(seen.contains(&header), "{seen}");
        let socket = connector.udp(server).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap(), end);
    }
}

#[tokio::test]
async fn replaced_gateways_count_from_the_next_attempt() {
    let host = |name: &str, port| EndpointAddress::Host {
        name: name.to_owned(),
        port,
    };
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = nowhere.local_addr().unwrap();
    drop(nowhere);
    let (connector, _) = reaching([("a", at(refusing, refusing, "a"))]);
    assert_eq!(
        connector.tcp("a").await.unwrap_err().reason(),
        "connect_refused"
    );
    // A name that was not there at start is resolved too.
    let listening = Listening::start(b"HTTP/1.1 200 OK\r\n\r\n");
    let port = listening.at.port();
    let moved = Gateway {
        tcp: host("localhost", port),
        udp: host("localhost", port),
        value: "a".to_owned(),
    };
    connector.set_gateways(named([("a", moved)]));
    connector.tcp("a").await.unwrap();
    let socket = connector.udp("a").await.unwrap();
    assert_eq!(socket.peer_addr().unwrap(), listening.at);
}

#[tokio::test]
async fn name_resolves_for_both_transports() {
    let gateway = Listening::start(b"HTTP/1.1 200 OK\r\n\r\n");
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let host = |port| EndpointAddress::Host {
        name: "localhost".to_owned(),
        port,
    };
    let udp_port = datagrams.local_addr().unwrap().port();
    let (connector, _) = connector(host(gateway.at.port()), host(udp_port));
    connector.tcp("a").await.unwrap();
    // Where TCP reached it comes first, although IPv6 would.
    let socket = connector.udp("a").await.unwrap();
    let peer = socket.peer_addr().unwrap();
    assert_eq!(peer, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), udp_port));
    socket.send(b"datagram").unwrap();
    let mut buf = [0; 16];
    let (len, from) = datagrams.recv_from(&mut buf).unwrap();
    assert_eq!(&buf[..len], b"datagram");
    assert_eq!(from, socket.local_addr().unwrap());
}

#[test]
fn further_attempts_begin_at_further_addresses() {
    let known = ["10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1"].map(|text| text.parse().unwrap());
    let texts = |reached, offset| -> Vec<String> {
        let ordered = in_order(known.to_vec(), reached, offset);
        ordered.iter().map(|at| at.ip().to_string()).collect()
    };
    assert_eq!(texts(None, 0), ["fd00::1", "10.0.0.1", "10.0.0.2"]);
    assert_eq!(texts(None, 1), ["10.0.0.1", "10.0.0.2", "fd00::1"]);
    let reached = Some("10.0.0.2".parse().unwrap());
    assert_eq!(texts(reached, 0), ["10.0.0.2", "fd00::1", "10.0.0.1"]);
    assert_eq!(texts(reached, 4), ["fd00::1", "10.0.0.1", "10.0.0.2"]);
    // An address that the name no longer has does not count.
    assert_eq!(texts(Some("10.9.9.9".parse().unwrap()), 0)[0], "fd00::1");
    assert!(in_order(Vec::new(), reached, 3).is_empty());
}

#[tokio::test]
async fn series_end_with_their_server() {
    let at = SocketAddr::from(([127, 0, 0, 1], 9));
    let (connector, registry) = connector(EndpointAddress::Ip(at), EndpointAddress::Ip(at));
    connector.metrics.dialed("a", Transport::Tcp, "connected");
    connector.metrics.refused("a", 404);
    connector.metrics.refused("a", 599);
    let name = "rhizome_vpn_client_connect_refusals_total";
    let scrape = || {
        let text = registry.encode(telemetry::metrics::Exposition::Text);
        Scrape::parse(&text).unwrap()
    };
    assert_eq!(scrape().value(name, &[("status", "404")]), Some(1.0));
    assert_eq!(scrape().value(name, &[("status", "other")]), Some(1.0));
    connector.set_gateways(BTreeMap::new());
    assert_eq!(scrape().value(name, &[]), None);
    assert_eq!(scrape().value("rhizome_vpn_client_dials_total", &[]), None);
}
