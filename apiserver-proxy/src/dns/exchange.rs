//! One question to one server: over UDP, and again over TCP when the answer is truncated.
//!
//! Every exchange has a socket, a port and an id of its own, all picked at random by the kernel
//! and the runtime, so that an answer cannot be guessed from outside; what does not fit the
//! question is passed over. The socket is connected, so a server that is not there is known at
//! once. Does not retry; the caller bounds the time.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_server::proto::ProtoError;
use hickory_server::proto::op::{Edns, Message, MessageType, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::forward::Question;

/// Largest datagram that is asked for and given, in bytes: fits every path unfragmented (the
/// value agreed on at the DNS flag day 2020).
pub(super) const PAYLOAD: u16 = 1232;

/// Asks `server` and returns its answer, in full when that can be had within `in_full`; for a question that came over
/// TCP only then.
///
/// # Errors
/// Whatever keeps the server from being asked or heard. Silence is no error here: the future is
/// then pending for ever.
pub(super) async fn exchange(
    server: SocketAddr,
    question: &Question,
    in_full: Duration,
) -> Result<Message, ExchangeError> {
    let asked = message(question);
    let bytes = asked.to_vec().map_err(ExchangeError::Encode)?;
    let answer = over_udp(server, &asked, &bytes).await;
    let answer = answer.map_err(ExchangeError::Udp)?;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    let late = |_| Err(io::ErrorKind::TimedOut.into());
    let complete = timeout(in_full, over_tcp(server, &asked, &bytes)).await;
    match complete.unwrap_or_else(late) {
        Ok(complete) => Ok(complete),
        Err(error) if question.over_tcp => Err(ExchangeError::Tcp(error)),
        // The asker sees the mark and may try for himself.
        Err(_) => Ok(answer),
    }
}

/// Why a server was not heard.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum ExchangeError {
    #[error("encoding the question")]
    Encode(#[source] ProtoError),
    /// Another server answered first, by far.
    #[error("it is silent")]
    Silent,
    /// The answer over UDP was truncated, for an asker whose own way has no such mark.
    #[error("asking over TCP")]
    Tcp(#[source] io::Error),
    #[error("asking over UDP")]
    Udp(#[source] io::Error),
}

/// The question as a message with an id of its own.
fn message(question: &Question) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = question.recursion_desired;
    message.metadata.authentic_data = question.authentic_data;
    message.metadata.checking_disabled = question.checking_disabled;
    message.add_query(question.query.clone());
    if let Some(dnssec_ok) = question.dnssec_ok {
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD).set_dnssec_ok(dnssec_ok);
        message.set_edns(edns);
    }
    message
}

async fn over_udp(server: SocketAddr, asked: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    loop {
        // An ICMP error raises no readiness to read, only its own.
        let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
        if ready.is_error() {
            let error = socket.take_error()?;
            return Err(error.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()));
        }
        match receive(&socket, asked) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes one datagram; `None` when it is not the answer. The buffer lives on the stack, so that
/// a question that waits holds none.
fn receive(socket: &UdpSocket, asked: &Message) -> io::Result<Option<Message>> {
    // Larger than what was asked for: some servers do not look.
    let mut buf = [0; 4096];
    let len = socket.try_recv(&mut buf)?;
    Ok(buf.get(..len).and_then(|bytes| answer_to(asked, bytes)))
}

async fn over_tcp(server: SocketAddr, asked: &Message, bytes: &[u8]) -> io::Result<Message> {
    let len = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut stream = TcpStream::connect(server).await?;
    stream
        .write_all(&[&len.to_be_bytes(), bytes].concat())
        .await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    answer_to(asked, &answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads `bytes` as the answer to `asked`: same id, same question. A server that reports a
/// failure may leave the question out.
fn answer_to(asked: &Message, bytes: &[u8]) -> Option<Message> {
    if *bytes.first_chunk()? != asked.metadata.id.to_be_bytes() {
        return None;
    }
    let answer = Message::from_vec(bytes).ok()?;
    let failed = answer.metadata.response_code != ResponseCode::NoError;
    let fits = answer.queries == asked.queries || (failed && answer.queries.is_empty());
    (fits && answer.metadata.message_type == MessageType::Response).then_some(answer)
}
