//! A name server of our own whose answers change.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use serve::Family;
use tokio::net::UdpSocket;
use tokio::runtime::Handle;

use super::*;

/// Answers questions for addresses with 192.0.2.`last`, to be kept for an hour; 0 for no answer.
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
                let answer = answer(&question[..len], last.load(Ordering::SeqCst));
                let _ = socket.send_to(&answer, from).await;
            }
        });
        server
    }

    fn names(&self) -> Names {
        let at = self.at;
        let runtime = Handle::current();
        Names::new("gateway.example.".to_owned(), move || {
            let mut server = NameServerConfig::udp(at.ip());
            for connection in &mut server.connections {
                connection.port = at.port();
            }
            let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
            let provider = TokioRuntimeProvider::default();
            let client = TokioResolver::builder_with_config(config, provider);
            let client = client.build().unwrap();
            Resolver::given(runtime.clone(), Family::Ipv4, client)
        })
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
            0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 192, 0, 2, last,
        ]);
    }
    answer
}

async fn known(names: &Names) -> Vec<IpAddr> {
    let set = names.current().await;
    let limit = Duration::from_secs(20);
    let addresses = timeout(limit, set.addresses("gateway.example.")).await;
    addresses.unwrap().to_vec()
}

fn address(last: u8) -> Vec<IpAddr> {
    vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))]
}

#[tokio::test]
async fn failure_triggers_lookup_before_expiry() {
    let server = NameServer::start(1).await;
    let names = server.names();
    assert_eq!(known(&names).await, address(1));
    server.last.store(2, Ordering::SeqCst);
    assert_eq!(known(&names).await, address(1), "for an hour");
    let asked = server.asked.load(Ordering::SeqCst);
    names.doubt();
    assert_eq!(known(&names).await, address(1), "just asked");
    assert_eq!(server.asked.load(Ordering::SeqCst), asked);

    long_ago(&names);
    names.doubt();
    assert_eq!(known(&names).await, address(2));
}

#[tokio::test]
async fn old_answer_stays_without_new_one() {
    let server = NameServer::start(1).await;
    let names = server.names();
    assert_eq!(known(&names).await, address(1));
    server.last.store(0, Ordering::SeqCst);
    long_ago(&names);
    names.doubt();
    assert_eq!(known(&names).await, address(1));
    server.last.store(3, Ordering::SeqCst);
    long_ago(&names);
    names.doubt();
    assert_eq!(known(&names).await, address(3));
}

/// Lets the pause between two questions have passed.
fn long_ago(names: &Names) {
    names.with(|state| state.asked = state.asked.checked_sub(ASK_AGAIN).unwrap());
}
