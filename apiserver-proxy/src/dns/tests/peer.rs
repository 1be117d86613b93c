//! A server to forward to, whose answers the test decides, and messages over TCP.

use std::net::SocketAddr;

use hickory_server::proto::op::{Message, ResponseCode};
use hickory_server::proto::rr::{RData, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

use super::super::bind_pair;

/// How a question came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::dns) enum Via {
    Udp,
    Tcp,
}

/// A server on loopback that runs as long as the test.
pub(in crate::dns) struct Peer {
    pub(in crate::dns) addr: SocketAddr,
    /// What it was asked, in order.
    pub(in crate::dns) asked: mpsc::UnboundedReceiver<(Via, Message)>,
}

impl Peer {
    /// Starts a server that answers with what `answer` returns, `None` being silence.
    pub(in crate::dns) fn start(
        answer: impl Fn(Via, &Message) -> Option<Message> + Clone + Send + 'static,
    ) -> Self {
        let (udp, tcp) = bind_pair("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = udp.local_addr().unwrap();
        let (log, asked) = mpsc::unbounded_channel();
        tokio::spawn(serve_udp(udp, log.clone(), answer.clone()));
        tokio::spawn(serve_tcp(tcp, log, answer));
        Self { addr, asked }
    }

    /// Starts a server that answers every question with `address`, for a minute.
    pub(in crate::dns) fn answering(address: &'static str) -> Self {
        Self::start(move |_, question| Some(records(question, &[address])))
    }

    /// Starts a server that answers every question with `code`.
    pub(in crate::dns) fn failing(code: ResponseCode) -> Self {
        Self::start(move |_, question| {
            let mut message = records(question, &[]);
            message.metadata.response_code = code;
            Some(message)
        })
    }

    /// Starts a server that never answers.
    pub(in crate::dns) fn silent() -> Self {
        Self::start(|_, _| None)
    }
}

/// Returns the address of a port without a listener.
pub(in crate::dns) fn unused() -> SocketAddr {
    let (udp, _tcp) = bind_pair("127.0.0.1:0".parse().unwrap()).unwrap();
    udp.local_addr().unwrap()
}

/// The answer to `question` with one address record each.
pub(in crate::dns) fn records(question: &Message, addresses: &[&str]) -> Message {
    let mut message = Message::response(question.metadata.id, question.metadata.op_code);
    message.metadata.recursion_desired = question.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    message.add_queries(question.queries.iter().cloned());
    message.edns = question.edns.clone();
    let owner = question.queries[0].name();
    message.add_answers(addresses.iter().map(|address| {
        let address: std::net::IpAddr = address.parse().unwrap();
        Record::from_rdata(owner.clone(), 60, RData::from(address))
    }));
    message
}

/// Writes one message with its length in front.
pub(in crate::dns) async fn write(stream: &mut TcpStream, message: &Message) {
    let bytes = message.to_vec().unwrap();
    stream
        .write_u16(u16::try_from(bytes.len()).unwrap())
        .await
        .unwrap();
    stream.write_all(&bytes).await.unwrap();
}

/// Reads one message with its length in front.
pub(in crate::dns) async fn read(stream: &mut TcpStream) -> Message {
    let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut bytes).await.unwrap();
    Message::from_vec(&bytes).unwrap()
}

type Log = mpsc::UnboundedSender<(Via, Message)>;

async fn serve_udp(socket: UdpSocket, log: Log, answer: impl Fn(Via, &Message) -> Option<Message>) {
    let mut buf = [0; 4096];
    while let Ok((len, from)) = socket.recv_from(&mut buf).await {
        let question = Message::from_vec(&buf[..len]).unwrap();
        let answer = answer(Via::Udp, &question);
        log.send((Via::Udp, question)).ok();
        if let Some(answer) = answer {
            socket
                .send_to(&answer.to_vec().unwrap(), from)
                .await
                .unwrap();
        }
    }
}

async fn serve_tcp(
    listener: TcpListener,
    log: Log,
    answer: impl Fn(Via, &Message) -> Option<Message>,
) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let question = read(&mut stream).await;
        let answer = answer(Via::Tcp, &question);
        log.send((Via::Tcp, question)).ok();
        if let Some(answer) = answer {
            write(&mut stream, &answer).await;
        }
    }
}
