//! The whole server, asked over loopback with UDP and TCP.

use std::net::SocketAddr;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_server::proto::rr::rdata::SOA;
use hickory_server::proto::rr::{DNSClass, Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

mod forwarding;
mod hostile;
pub(super) mod peer;

const ZONE: &str = "kubernetes.default.svc.cluster.local";

#[tokio::test]
async fn apex_has_its_addresses_by_family() {
    let server = Running::start(&[]);

    for asked in [server.udp_a(ZONE).await, server.tcp_a(ZONE).await] {
        assert_eq!(addresses(&asked), ["10.0.0.2", "10.0.0.3"]);
        assert!(asked.metadata.authoritative && !asked.metadata.recursion_available);
        assert!(asked.answers.iter().all(|record| record.ttl == 30));
        assert!(asked.edns.is_none());
    }
    let asked = server.udp(&question(ZONE, RecordType::AAAA)).await;
    assert_eq!(addresses(&asked), ["fd00::2"]);
    let asked = server.udp(&question(ZONE, RecordType::ANY)).await;
    assert_eq!(addresses(&asked).len(), 3);
}

#[tokio::test]
async fn mixed_case_comes_back_as_it_was_spelt() {
    let server = Running::start(&[]);
    let mixed = "KuBernetes.dEfault.svc.Cluster.LOCAL.";

    let asked = server.udp_a(mixed).await;

    assert_eq!(asked.queries[0].name().to_ascii(), mixed);
    assert_eq!(asked.answers[0].name.to_ascii(), mixed);
}

#[tokio::test]
async fn other_types_and_lower_names_do_not_exist() {
    let server = Running::start(&[]);
    let below = format!("_https._tcp.{ZONE}");

    let no_data = server.udp(&question(ZONE, RecordType::TXT)).await;
    let no_name = server.udp(&question(&below, RecordType::SRV)).await;

    assert_eq!(no_data.metadata.response_code, ResponseCode::NoError);
    assert_eq!(no_name.metadata.response_code, ResponseCode::NXDomain);
    for denial in [no_data, no_name] {
        assert!(denial.answers.is_empty() && denial.metadata.authoritative);
        assert_eq!(soa(&denial.authorities[0].data), &expected_soa());
        assert_eq!(denial.authorities[0].ttl, 30);
    }
}

#[tokio::test]
async fn a_family_without_an_address_is_no_data() {
    let mut params = params(&[]);
    params.answer = vec!["10.0.0.2".parse().unwrap()];
    let server = Running::start_with(&params, Limits::default());

    let asked = server.udp(&question(ZONE, RecordType::AAAA)).await;

    assert_eq!(asked.metadata.response_code, ResponseCode::NoError);
    assert_eq!((asked.answers.len(), asked.authorities.len()), (0, 1));
}

#[tokio::test]
async fn apex_has_soa_and_ns() {
    let server = Running::start(&[]);

    let start = server.udp(&question(ZONE, RecordType::SOA)).await;
    let name_server = server.udp(&question(ZONE, RecordType::NS)).await;

    assert_eq!(soa(&start.answers[0].data), &expected_soa());
    let RData::NS(host) = &name_server.answers[0].data else {
        panic!("{name_server:?}")
    };
    assert_eq!(host.0.to_ascii(), "local.");
}

#[tokio::test]
async fn foreign_names_are_refused_without_upstreams() {
    let server = Running::start(&[]);

    for name in [
        "default.svc.cluster.local",
        "xkubernetes.default.svc.cluster.local",
        ".",
    ] {
        let asked = server.udp_a(name).await;
        let code = asked.metadata.response_code;
        assert_eq!(code, ResponseCode::Refused, "{name}");
        assert!(!asked.metadata.authoritative);
    }
}

#[tokio::test]
async fn unusual_questions_are_refused() {
    let server = Running::start(&[]);
    let mut chaos = question(ZONE, RecordType::A);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut notify = question(ZONE, RecordType::SOA);
    notify.metadata.op_code = OpCode::Notify;
    let mut two = question(ZONE, RecordType::A);
    two.add_query(two.queries[0].clone());
    let mut newer = question(ZONE, RecordType::A);
    newer.edns.insert(Edns::new()).set_version(1);

    for (message, code) in [
        (question(ZONE, RecordType::AXFR), ResponseCode::Refused),
        (chaos, ResponseCode::Refused),
        (notify, ResponseCode::NotImp),
        (two, ResponseCode::FormErr),
        (newer, ResponseCode::BADVERS),
    ] {
        // By number: BADVERS and BADSIG share theirs.
        for answer in [server.udp(&message).await, server.tcp(&message).await] {
            assert_eq!(u16::from(answer.metadata.response_code), u16::from(code));
        }
    }
}

#[tokio::test]
async fn edns_is_answered_with_edns() {
    let server = Running::start(&[]);

    for (offered, taken) in [(100, 512), (800, 800), (4096, 1232)] {
        let mut message = question(ZONE, RecordType::A);
        message
            .edns
            .insert(Edns::new())
            .set_max_payload(offered)
            .set_dnssec_ok(true);
        let asked = server.udp(&message).await;
        let edns = asked.edns.expect("an OPT record");
        assert_eq!((edns.max_payload(), edns.version()), (taken, 0));
        assert!(edns.flags().dnssec_ok);
        assert_eq!(asked.answers.len(), 2);
    }
}

#[tokio::test]
async fn one_connection_carries_several_questions() {
    let server = Running::start(&[]);
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let [first, second] = [RecordType::A, RecordType::AAAA].map(|kind| question(ZONE, kind));

    peer::write(&mut stream, &first).await;
    peer::write(&mut stream, &second).await;
    stream.shutdown().await.unwrap();

    for asked in [first, second] {
        assert_eq!(peer::read(&mut stream).await.metadata.id, asked.metadata.id);
    }
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn shutdown_gives_the_address_back() {
    let server = Running::start(&[]);
    server.udp_a(ZONE).await;
    let addr = server.addr;

    server.stop().await;

    let mut params = params(&[]);
    params.address = addr.into();
    DnsServer::bind(&params).expect("both sockets are closed");
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it() {
    let server = Running::start(&[]);
    let mut params = params(&[]);
    params.address = server.addr.into();

    let error = DnsServer::bind(&params).unwrap_err();

    assert!(matches!(error, DnsError::Bind(address, _) if address == server.addr));
}

/// A server that runs until dropped or stopped.
struct Running {
    addr: SocketAddr,
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), DnsError>>,
}

impl Running {
    fn start(forward: &[SocketAddr]) -> Self {
        Self::start_with(&params(forward), Limits::default())
    }

    fn start_with(params: &DnsParams, limits: Limits) -> Self {
        let server = DnsServer::bind_with(params, limits).unwrap();
        let addr = server.local_addr();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(server.run(async move {
            stopped.await.ok();
        }));
        Self { addr, stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }

    async fn udp(&self, message: &Message) -> Message {
        let socket = self.socket().await;
        socket.send(&message.to_vec().unwrap()).await.unwrap();
        let answer = receive(&socket).await;
        check(message, &answer);
        answer
    }

    async fn tcp(&self, message: &Message) -> Message {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        peer::write(&mut stream, message).await;
        let answer = peer::read(&mut stream).await;
        check(message, &answer);
        answer
    }

    async fn udp_a(&self, name: &str) -> Message {
        self.udp(&question(name, RecordType::A)).await
    }

    async fn tcp_a(&self, name: &str) -> Message {
        self.tcp(&question(name, RecordType::A)).await
    }

    async fn socket(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.addr).await.unwrap();
        socket
    }
}

async fn receive(socket: &UdpSocket) -> Message {
    let mut buf = [0; 4096];
    let len = socket.recv(&mut buf).await.unwrap();
    Message::from_vec(&buf[..len]).unwrap()
}

/// Checks what holds for every answer.
fn check(asked: &Message, answer: &Message) {
    assert_eq!(answer.metadata.id, asked.metadata.id);
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(
        answer.metadata.recursion_desired,
        asked.metadata.recursion_desired
    );
    assert_eq!(answer.queries, asked.queries);
}

fn params(forward: &[SocketAddr]) -> DnsParams {
    let answer = ["10.0.0.2", "fd00::2", "10.0.0.3"];
    DnsParams {
        address: "127.0.0.1:0".parse().unwrap(),
        zone: ZONE.into(),
        answer: answer.map(|address| address.parse().unwrap()).into(),
        forward: forward.into(),
        origin: Name::from_ascii(ZONE).unwrap(),
    }
}

fn question(name: &str, record_type: RecordType) -> Message {
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, record_type));
    message
}

fn addresses(message: &Message) -> Vec<String> {
    let answers = message.answers.iter();
    answers.map(|record| record.data.to_string()).collect()
}

fn soa(data: &RData) -> &SOA {
    let RData::SOA(soa) = data else {
        panic!("no SOA: {data:?}")
    };
    soa
}

/// The values of the zone file in the proposal.
fn expected_soa() -> SOA {
    let local = || Name::from_ascii("local.").unwrap();
    SOA::new(
        local(),
        local(),
        2_017_042_745,
        1_209_600,
        1_209_600,
        1_209_600,
        30,
    )
}
