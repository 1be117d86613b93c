//! Names kept resolved by a name server whose answers change.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicUsize};

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Hosts, TokioResolver};
use route::{EndpointAddress, TcpOptions};
use telemetry::metrics::Registry;
use tokio::net::UdpSocket;

use super::*;
use crate::{Dialer, Metrics};

const NAME: &str = "gateway.example.";
const SILENT: u8 = u8::MAX;

/// Answers questions for addresses with 127.0.0.`last`, to be kept for an hour; 0 for no address,
/// [`SILENT`] for no answer.
struct NameServer {
    at: SocketAddr,
    last: Arc<AtomicU8>,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    async fn start(last: u8) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            at: socket.local_addr().unwrap(),
            last: Arc::new(AtomicU8::new(last)),
            asked: Arc::default(),
        };
        let (last, asked) = (Arc::clone(&server.last), Arc::clone(&server.asked));
        tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut question).await {
                asked.fetch_add(1, Ordering::SeqCst);
                let last = last.load(Ordering::SeqCst);
                if last != SILENT {
                    let answer = answer(&question[..len], last);
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        server
    }

    fn names(&self) -> NameSet {
        let mut server = NameServerConfig::udp(self.at.ip());
        for connection in &mut server.connections {
            connection.port = self.at.port();
        }
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let provider = TokioRuntimeProvider::default();
        let mut client = TokioResolver::builder_with_config(config, provider);
        client.options_mut().cache_size = 0;
        client.options_mut().ip_strategy = LookupIpStrategy::Ipv4Only;
        let client = LookupClient::of(Hosts::default(), client.build().unwrap());
        Resolver::new(Handle::current(), client).names([NAME])
    }
}

/// RFC 1035 §4.1: the question again, and one record of type A or none.
fn answer(question: &[u8], last: u8) -> Vec<u8> {
    // Header, then the name up to its empty label, type and class.
    let name = question[12..].iter().position(|byte| *byte == 0).unwrap();
    let end = 12 + name + 5;
    let of_a = question[end - 4..end - 2] == [0, 1];
    let found = of_a && last != 0;
    let mut answer = question[..end].to_vec();
    answer[2..12].copy_from_slice(&[0x85, 0x80, 0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    if found {
        answer.extend([
            0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 127, 0, 0, last,
        ]);
    }
    answer
}

async fn addresses(names: &NameSet) -> Vec<IpAddr> {
    let limit = Duration::from_secs(20);
    let addresses = timeout(limit, names.addresses(NAME)).await;
    addresses.unwrap().to_vec()
}

fn address(last: u8) -> Vec<IpAddr> {
    vec![IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))]
}

/// Refreshes once the interval between two look-ups has passed.
fn refresh(names: &NameSet) {
    let_time_pass(names);
    names.refresh(NAME);
}

fn let_time_pass(names: &NameSet) {
    let mut asked = lock(&names.names[NAME].asked);
    *asked = asked.checked_sub(REFRESH_INTERVAL).unwrap();
}

#[tokio::test]
async fn refresh_looks_up_before_the_answer_expires() {
    let server = NameServer::start(1).await;
    let names = server.names();
    assert_eq!(addresses(&names).await, address(1));
    server.last.store(2, Ordering::SeqCst);
    assert_eq!(addresses(&names).await, address(1), "for an hour");
    let asked = server.asked.load(Ordering::SeqCst);
    names.refresh(NAME);
    assert_eq!(addresses(&names).await, address(1), "just asked");
    assert_eq!(server.asked.load(Ordering::SeqCst), asked);
    refresh(&names);
    assert_eq!(addresses(&names).await, address(2));
}

#[tokio::test]
async fn failed_connect_looks_its_name_up_again() {
    let server = NameServer::start(2).await;
    let names = server.names();
    assert_eq!(addresses(&names).await, address(2));
    let listener = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = NAME.to_owned();
    let gateway = EndpointAddress::Host { name, port };
    let metrics = Metrics::register(&Registry::new());
    let dialer = Dialer::new(metrics.connect_seconds.clone());
    let tcp = TcpOptions::default();
    let connect = async || {
        let deadline = Instant::now() + Duration::from_secs(20);
        let connected = dialer.connect(&gateway, &names, &tcp, deadline, 0).await;
        connected.map(|(_, address)| address)
    };
    server.last.store(3, Ordering::SeqCst);
    let_time_pass(&names);
    assert!(
        connect().await.is_err(),
        "nothing listens at the old address"
    );
    assert_eq!(connect().await.unwrap().ip(), address(3)[0]);
}

#[tokio::test]
async fn old_answer_stays_until_refresh_succeeds() {
    for failing in [0, SILENT] {
        let server = NameServer::start(1).await;
        let names = server.names();
        assert_eq!(addresses(&names).await, address(1));
        for (last, expected) in [(failing, 1), (3, 3)] {
            server.last.store(last, Ordering::SeqCst);
            refresh(&names);
            assert_eq!(addresses(&names).await, address(expected), "{failing}");
        }
    }
}
