//! Attempts against gateways of the loopback device.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use serve::Family;
use telemetry::{LogControl, Registry};
use udp::BufferSizes;

use super::*;

mod gateways;

/// How long attempts may take here.
const LIMIT: Duration = Duration::from_millis(500);

struct Listening {
    at: SocketAddr,
    seen: JoinHandle<Vec<u8>>,
}

impl Listening {
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
    let value = "outbound|1194||a".to_owned();
    reaching([("a", Gateway { tcp, udp, value })])
}

fn reaching<const N: usize>(gateways: [(&str, Gateway); N]) -> (Connector, Registry) {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry, &LogControl::detached());
    let endpoint = Endpoint {
        header: "Reversed-VPN".to_owned(),
        family: Family::Auto,
        connect_timeout: LIMIT,
        options: route::TcpOptions::default(),
        buffers: BufferSizes {
            receive: 1 << 20,
            send: 1 << 20,
        },
    };
    (Connector::new(endpoint, named(gateways), metrics), registry)
}

fn named<const N: usize>(gateways: [(&str, Gateway); N]) -> BTreeMap<String, Gateway> {
    gateways
        .map(|(name, gateway)| (name.to_owned(), gateway))
        .into()
}

fn to(at: SocketAddr) -> Connector {
    connector(EndpointAddress::Ip(at), EndpointAddress::Ip(at)).0
}

#[tokio::test]
async fn stream_is_handed_over_with_early_bytes() {
    let gateway = Listening::start(b"HTTP/1.1 200 OK\r\n\r\nhello");
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
    let gateway = Listening::start(b"HTTP/1.1 404 Not Found\r\n\r\n");
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
