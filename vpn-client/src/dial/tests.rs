//! Attempts against gateways of the loopback device.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::thread::{self, JoinHandle};

use serve::{Family, Resolver};
use telemetry::{LogControl, Registry};
use testkit::metrics::Metrics as Scrape;
use tokio::runtime::Handle;
use udp::BufferSizes;

use super::*;

/// How long attempts may take here.
const LIMIT: Duration = Duration::from_millis(500);

struct Gateway {
    at: SocketAddr,
    seen: JoinHandle<Vec<u8>>,
}

impl Gateway {
    /// Takes one connection, reads a head, writes `answer`, and holds on until the peer ends.
    fn start(answer: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let seen = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut byte = [0];
            while !seen.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                seen.extend(byte);
            }
            stream.write_all(answer).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            seen.extend(rest);
            seen
        });
        Self { at, seen }
    }
}

fn connector(tcp: EndpointAddress, udp: EndpointAddress) -> (Connector, Registry) {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, &LogControl::detached());
    let endpoint = Endpoint {
        tcp: tcp.clone(),
        udp,
        header: "Reversed-VPN".to_owned(),
        family: Family::Auto,
        connect_timeout: LIMIT,
        options: route::TcpOptions::default(),
        buffers: BufferSizes {
            receive: 1 << 20,
            send: 1 << 20,
        },
    };
    let names = match &tcp {
        EndpointAddress::Ip(_) => NameSet::default(),
        EndpointAddress::Host { name, .. } => {
            Resolver::system(Handle::current(), Family::Auto).names([name.as_str()])
        }
    };
    let values = BTreeMap::from([("a".to_owned(), "outbound|1194||a".to_owned())]);
    let connector = Connector::new(endpoint, names, values, metrics);
    (connector, registry)
}

fn to(at: SocketAddr) -> Connector {
    connector(EndpointAddress::Ip(at), EndpointAddress::Ip(at)).0
}

#[tokio::test]
async fn stream_is_handed_over_with_early_bytes() {
    let gateway = Gateway::start(b"HTTP/1.1 200 OK\r\n\r\nhello");
    let connector = to(gateway.at);
    let (mut stream, early) = connector.tcp("a").await.unwrap();
    assert_eq!(early, b"hello");
    stream.set_nonblocking(false).unwrap();
    stream.write_all(b"frames").unwrap();
    drop(stream);
    let seen = String::from_utf8(gateway.seen.join().unwrap()).unwrap();
    assert!(
        seen.contains("\r\nReversed-VPN: outbound|1194||a\r\n"),
        "{seen}"
    );
    assert!(seen.ends_with("\r\n\r\nframes"), "{seen}");
}

#[tokio::test]
async fn failures_have_distinct_reasons() {
    let gateway = Gateway::start(b"HTTP/1.1 404 Not Found\r\n\r\n");
    let error = to(gateway.at).tcp("a").await.unwrap_err();
    assert_eq!(error.reason(), "refused_by_gateway");
    // Connects, and never says anything.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = to(mute.local_addr().unwrap()).tcp("a").await.unwrap_err();
    assert_eq!(error.reason(), "timeout", "{error}");
    let at = mute.local_addr().unwrap();
    drop(mute);
    let error = to(at).tcp("a").await.unwrap_err();
    assert_eq!(error.reason(), "connect_refused");
    let error = to(at).tcp("b").await.unwrap_err();
    assert_eq!(error.reason(), "unknown_server");
}

#[tokio::test]
async fn name_resolves_for_both_transports() {
    let gateway = Gateway::start(b"HTTP/1.1 200 OK\r\n\r\n");
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
    connector.set_values(BTreeMap::from([("b".to_owned(), "x".to_owned())]));
    assert_eq!(scrape().value(name, &[]), None);
    assert_eq!(scrape().value("rhizome_vpn_client_dials_total", &[]), None);
}
