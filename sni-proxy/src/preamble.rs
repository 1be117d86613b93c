//! Reads what comes before the relay starts, from a connection that may send anything.
//!
//! ```text
//!     [load balancer's PROXY header]  then   tls:      ClientHello
//!                                            connect:  CONNECT head
//!                                            proxy-or-connect:  node proxy's PROXY header
//!                                                               or CONNECT head
//! ```
//!
//! Every byte read is kept until it is known to belong to a header; what follows the headers is
//! handed on. One deadline bounds it all, one limit each part. Does not look at routes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use preamble::http_connect::worth_parsing;
use preamble::proxy_protocol::Signature;
use preamble::{
    Addresses, ClientHello, ClientHelloError, HeadError, HttpVersion, Progress, ProxyHeader,
    ProxyHeaderError, RequestHead, detect, looks_like_connect,
};
use relay::Socket;
use serve::{Admission, ConnRecord, Reason};
use tokio::io::Interest;
use tokio::time::{Instant, timeout_at};

use crate::answer::Answer;
use crate::config::{Protocol, ProxyProtocol};

/// Room made for reads; more than an ordinary ClientHello needs.
const READ_BYTES: usize = 2048;

/// With less room than this, more is made.
const MIN_ROOM: usize = 512;

/// How a listener's preambles are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) proxy_protocol: ProxyProtocol,
    /// The TCP peer may send a load balancer's PROXY header.
    pub(crate) trusted: bool,
    /// Bytes each part may have.
    pub(crate) limit: usize,
    pub(crate) deadline: Instant,
    /// Headers of a CONNECT request that may name its destination.
    pub(crate) connect_headers: &'a [String],
    /// Any other request is redirected instead of closed.
    pub(crate) redirect: bool,
    /// Keep the offered application protocols for the access log.
    pub(crate) keep_alpn: bool,
    pub(crate) client: ClientNote<'a>,
}

/// Where a client is recorded and counted as soon as a trusted peer's preamble has named it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientNote<'a> {
    pub(crate) record: &'a ConnRecord,
    pub(crate) admission: &'a Arc<Admission>,
}

impl ClientNote<'_> {
    /// Settles the client: the source that the load balancer told, else the peer.
    fn settle(self, balancer: Option<AddressPair>) -> Result<(), Refusal> {
        if let Some(pair) = balancer {
            self.record.set_client(pair.source);
        }
        let client = self.record.info().client().ip();
        let permit = self.admission.source_permit(client);
        self.record.hold(permit.ok_or(Reason::SourceLimit)?);
        Ok(())
    }
}

/// A complete preamble.
#[derive(Debug)]
pub(crate) struct Preamble {
    /// Addresses that a trusted load balancer told.
    pub(crate) balancer: Option<AddressPair>,
    pub(crate) target: Target,
    /// What the upstream must be sent first: bytes read that are not headers of ours.
    pub(crate) bytes: Vec<u8>,
}

/// Source and destination of a connection in front of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressPair {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// Where the preamble asks to go.
#[derive(Debug)]
pub(crate) enum Target {
    /// To the server named in the ClientHello.
    ServerName {
        name: Option<String>,
        alpn: Option<String>,
    },
    /// To the destination of a node proxy's PROXY header.
    Destination(AddressPair),
    /// To the destination named in a CONNECT request's header.
    Connect { value: String, version: HttpVersion },
}

/// By what a connection found its route, and each of its requests finds it again.
#[derive(Debug)]
pub(crate) enum RouteKey {
    /// By the value of a CONNECT request's header.
    Connect(String),
    /// By a server name, or none.
    ServerName(Option<String>),
}

impl From<Target> for RouteKey {
    fn from(target: Target) -> Self {
        match target {
            Target::Connect { value, .. } => Self::Connect(value),
            Target::ServerName { name, .. } => Self::ServerName(name),
            // Such a route has no `terminate`.
            Target::Destination(_) => Self::ServerName(None),
        }
    }
}

/// A preamble that is not served, and what the peer is told.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) answer: Option<Answer>,
}

impl Refusal {
    fn answered(reason: Reason, answer: Answer) -> Self {
        Self {
            reason,
            answer: Some(answer),
        }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            answer: None,
        }
    }
}

/// Reads the preamble of a connection.
///
/// # Errors
/// Why it is refused. Not cancel-safe: what was read is lost with the future, which is right for
/// a connection that ends with it.
pub(crate) async fn read(stream: &Socket, expected: &Expected<'_>) -> Result<Preamble, Refusal> {
    let mut reader = Reader {
        stream,
        buf: Vec::new(),
        deadline: expected.deadline,
    };
    let mut balancer = None;
    match expected.proxy_protocol {
        ProxyProtocol::Off => {}
        ProxyProtocol::Required if !expected.trusted => return Err(Reason::UntrustedProxy.into()),
        ProxyProtocol::Required => {
            balancer = reader.proxy_header(expected.limit).await?;
            expected.client.settle(balancer)?;
        }
        ProxyProtocol::Optional if !expected.trusted => {
            if expected.protocol != Protocol::ProxyOrConnect
                && reader.starts_with_proxy_header().await?
            {
                return Err(Reason::UntrustedProxy.into());
            }
        }
        ProxyProtocol::Optional => {
            if reader.starts_with_proxy_header().await? {
                if expected.protocol == Protocol::ProxyOrConnect {
                    return optional_then_node(reader, expected).await;
                }
                balancer = reader.proxy_header(expected.limit).await?;
            }
            expected.client.settle(balancer)?;
        }
    }
    let target = match expected.protocol {
        Protocol::Tls => reader.client_hello(expected).await?,
        Protocol::Connect => reader.connect_head(expected).await?,
        Protocol::ProxyOrConnect => {
            if reader.starts_with_proxy_header().await? {
                Target::Destination(reader.node_header(expected.limit).await?)
            } else {
                reader.connect_head(expected).await?
            }
        }
        Protocol::WireGuard => return Err(Reason::Internal.into()), // accepts no connection
    };
    Ok(Preamble {
        balancer,
        target,
        bytes: reader.buf,
    })
}

/// A trusted peer's header on a listener where it may be the load balancer's or, the load balancer
/// adding none, the node proxy's: what follows decides. A second header or a CONNECT makes the
/// first the load balancer's; anything else, silence or the end makes it the node proxy's.
async fn optional_then_node(
    mut reader: Reader<'_>,
    expected: &Expected<'_>,
) -> Result<Preamble, Refusal> {
    let first = reader.proxy_header(expected.limit).await?;
    let (balancer, target) = loop {
        let connect = looks_like_connect(&reader.buf);
        let header = detect(&reader.buf);
        if connect == Some(true) {
            expected.client.settle(first)?;
            break (first, reader.connect_head(expected).await?);
        }
        if matches!(header, Signature::V1 | Signature::V2) {
            expected.client.settle(first)?;
            let pair = reader.node_header(expected.limit).await?;
            break (first, Target::Destination(pair));
        }
        let undecided = connect.is_none() || header == Signature::Undecided;
        if !undecided || !reader.more_or_end().await? {
            let pair = first.ok_or(Reason::UnknownDestination)?;
            expected.client.settle(None)?;
            break (None, Target::Destination(pair));
        }
    };
    Ok(Preamble {
        balancer,
        target,
        bytes: reader.buf,
    })
}

/// The bytes of a preamble as they arrive.
struct Reader<'a> {
    stream: &'a Socket,
    buf: Vec<u8>,
    deadline: Instant,
}

impl Reader<'_> {
    async fn starts_with_proxy_header(&mut self) -> Result<bool, Refusal> {
        loop {
            match detect(&self.buf) {
                Signature::V1 | Signature::V2 => return Ok(true),
                Signature::Other => return Ok(false),
                Signature::Undecided => self.more().await?,
            }
        }
    }

    /// Takes a PROXY header off the front; `None` when it carries no addresses.
    async fn proxy_header(&mut self, limit: usize) -> Result<Option<AddressPair>, Refusal> {
        let parse = |input: &[u8]| {
            Ok(ProxyHeader::parse(input, limit)
                .map_err(proxy_refusal)?
                .map(|header| match header.addresses {
                    Addresses::Ip {
                        source,
                        destination,
                        ..
                    } => Some(AddressPair {
                        source: serve::unmapped(source),
                        destination: serve::unmapped(destination),
                    }),
                    Addresses::Local | Addresses::Unix | Addresses::Unknown => None,
                }))
        };
        let (pair, consumed) = self.until(parse, |_, _| true).await?;
        self.buf.drain(..consumed);
        Ok(pair)
    }

    /// Takes a node proxy's header off the front; without addresses it leads nowhere.
    async fn node_header(&mut self, limit: usize) -> Result<AddressPair, Refusal> {
        let pair = self.proxy_header(limit).await?;
        pair.ok_or_else(|| Reason::UnknownDestination.into())
    }

    /// Looks at the ClientHello, which stays: it is the upstream's.
    async fn client_hello(&mut self, expected: &Expected<'_>) -> Result<Target, Refusal> {
        let parse = |input: &[u8]| {
            let hello = ClientHello::parse(input, expected.limit).map_err(hello_refusal)?;
            Ok(hello.map(|hello| Target::ServerName {
                name: hello.server_name().map(str::to_owned),
                alpn: expected
                    .keep_alpn
                    .then(|| join_alpn(&hello))
                    .filter(|alpn| !alpn.is_empty()),
            }))
        };
        Ok(self.until(parse, |_, _| true).await?.0)
    }

    /// Takes a CONNECT head off the front.
    async fn connect_head(&mut self, expected: &Expected<'_>) -> Result<Target, Refusal> {
        let parse = |input: &[u8]| match RequestHead::parse(input, expected.limit) {
            Ok(Progress::Need { at_least }) => Ok(Progress::Need { at_least }),
            Ok(Progress::Done { value, consumed }) => {
                let target = connect_target(&value, expected)?;
                Ok(Progress::Done {
                    value: target,
                    consumed,
                })
            }
            Err(error) => Err(head_refusal(error)),
        };
        let worth = |input: &[u8], seen| worth_parsing(input, seen, expected.limit);
        let (target, consumed) = self.until(parse, worth).await?;
        self.buf.drain(..consumed);
        Ok(target)
    }

    /// Reads until `parse` is done; returns its value and the bytes that belong to it.
    ///
    /// Parsing starts over each time. So that a peer that sends byte by byte cannot make it
    /// costly, it waits for the bytes that are missing at least, and until `worth` says that
    /// those behind the bytes seen last may change the answer.
    async fn until<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<Progress<T>, Refusal>,
        worth: impl Fn(&[u8], usize) -> bool,
    ) -> Result<(T, usize), Refusal> {
        let (mut seen, mut wanted) = (0, 1);
        loop {
            loop {
                if self.buf.len() >= wanted {
                    if worth(&self.buf, seen) {
                        break;
                    }
                    seen = self.buf.len();
                }
                self.more().await?;
            }
            match parse(&self.buf)? {
                Progress::Done { value, consumed } => return Ok((value, consumed)),
                Progress::Need { at_least } => {
                    seen = self.buf.len();
                    wanted = at_least.max(seen + 1);
                }
            }
        }
    }

    /// Reads more, or refuses a peer that ended or said too little in time.
    async fn more(&mut self) -> Result<(), Refusal> {
        let before = self.buf.len();
        match self.read().await {
            Ok(0) if before == 0 => Err(Reason::Closed.into()),
            Ok(0) => Err(Reason::Malformed.into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Reason::PreambleTimeout.into())
            }
            Err(_) => Err(Reason::DownstreamReset.into()),
        }
    }

    /// Reads more; false at the end of the stream or of the time.
    async fn more_or_end(&mut self) -> Result<bool, Refusal> {
        match self.read().await {
            Ok(read) => Ok(read > 0),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(_) => Err(Reason::DownstreamReset.into()),
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        loop {
            if self.buf.capacity() - self.buf.len() < MIN_ROOM {
                // In proportion, so that what was read is seldom copied, however long it is.
                self.buf.reserve_exact(READ_BYTES.max(self.buf.len() / 4));
            }
            let read = match self.buf.is_empty() {
                true => self.stream.try_first_read(&mut self.buf),
                false => self.stream.try_read(&mut self.buf),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // No more than was read is free while it waits: a buffer that is cut to its length each time is
                    // copied for each byte of a peer that sends single ones.
                    if self.buf.capacity() > 2 * self.buf.len() {
                        self.buf.shrink_to_fit();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    // The kernel gave the peer up, which is not our deadline.
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                result => return result,
            }
            timeout_at(self.deadline, self.stream.ready(Interest::READABLE))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
    }
}

/// Joins the first protocols: a list may fill the whole preamble, and a byte that is not UTF-8 becomes three.
fn join_alpn(hello: &ClientHello<'_>) -> String {
    let protocols: Vec<_> = hello.alpn().take(8).map(String::from_utf8_lossy).collect();
    protocols.join(",")
}

/// Finds where a CONNECT request wants to go: one value, in one or more of the known headers.
fn connect_target(head: &RequestHead<'_>, expected: &Expected<'_>) -> Result<Target, Refusal> {
    let version = head.version();
    let mut values = expected
        .connect_headers
        .iter()
        .flat_map(|name| head.header_values(name));
    let value = values.next().filter(|_| head.is_connect());
    let Some(value) = value else {
        if !expected.redirect {
            return Err(Reason::UnknownDestination.into());
        }
        let host = head
            .host()
            .filter(|host| !host.is_empty() && !host.starts_with(':'));
        let Some(host) = host else {
            let answer = Answer::bad_request(version, "no host to redirect to");
            return Err(Refusal::answered(Reason::Malformed, answer));
        };
        let answer = Answer::redirect(version, host, head.is_connect(), head.target());
        return Err(Refusal::answered(Reason::Redirected, answer));
    };
    if values.any(|other| other != value) {
        let answer = Answer::bad_request(version, "two different destinations");
        return Err(Refusal::answered(Reason::Malformed, answer));
    }
    Ok(Target::Connect {
        value: value.to_owned(),
        version,
    })
}

fn proxy_refusal(error: ProxyHeaderError) -> Refusal {
    if error == ProxyHeaderError::TooLong {
        Reason::PreambleTooLong.into()
    } else {
        Reason::BadProxyHeader.into()
    }
}

fn hello_refusal(error: ClientHelloError) -> Refusal {
    if error == ClientHelloError::NotTls {
        Reason::NotTls.into()
    } else if error == ClientHelloError::TooLong {
        Reason::PreambleTooLong.into()
    } else {
        Reason::Malformed.into()
    }
}

fn head_refusal(error: HeadError) -> Refusal {
    if let HeadError::Malformed(what) = error {
        let answer = Answer::bad_request(HttpVersion::Http11, what);
        Refusal::answered(Reason::Malformed, answer)
    } else if error == HeadError::TooLong {
        Refusal::answered(Reason::PreambleTooLong, Answer::too_large())
    } else {
        Reason::Malformed.into() // not HTTP: an answer would not be understood
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    /// A client, and its connection here.
    async fn connected() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        (client, accepted.into_std().unwrap().try_into().unwrap())
    }

    fn reader(stream: &Socket) -> Reader<'_> {
        Reader {
            stream,
            buf: Vec::new(),
            deadline: Instant::now() + Duration::from_secs(60),
        }
    }

    #[tokio::test]
    async fn buffer_is_seldom_copied_for_single_bytes() {
        const WHOLE: usize = 60_000;
        let (mut client, stream) = connected().await;
        let mut reader = reader(&stream);
        client.write_all(&[1; WHOLE]).await.unwrap();
        while reader.buf.len() < WHOLE {
            reader.read().await.unwrap();
        }
        let mut sizes = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            tokio::select! {
                biased;
                read = reader.read() => panic!("{read:?}"),
                () = std::future::ready(()) => {}
            }
            sizes.insert(reader.buf.capacity());
            client.write_all(&[1]).await.unwrap();
            assert_eq!(reader.read().await.unwrap(), 1);
            sizes.insert(reader.buf.capacity());
            assert!(reader.buf.capacity() <= 2 * reader.buf.len());
        }
        assert!(sizes.len() < 4, "{sizes:?}");
    }

    #[tokio::test]
    async fn no_byte_is_looked_at_twice_before_it_is_parsed() {
        let (mut client, stream) = connected().await;
        let mut reader = reader(&stream);
        let looked = std::cell::RefCell::new(Vec::new());
        let parse = |input: &[u8]| match input.ends_with(b"end") {
            true => Ok(Progress::Done {
                value: (),
                consumed: 0,
            }),
            false => Ok(Progress::Need { at_least: 0 }),
        };
        let worth = |input: &[u8], seen: usize| {
            looked.borrow_mut().push((seen, input.len()));
            input[seen..].contains(&b'd')
        };
        let feed = async {
            for byte in *b"some bytes, the last of which is the end" {
                client.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(async { reader.until(parse, worth).await.unwrap() }, feed);
        let looked = looked.borrow();
        assert!(looked.iter().all(|(seen, len)| seen < len), "{looked:?}");
        assert!(
            looked.windows(2).all(|two| two[0].1 <= two[1].0),
            "{looked:?}"
        );
    }

    #[tokio::test]
    async fn bytes_behind_urgent_data_are_read() {
        let (mut client, stream) = connected().await;
        let mut reader = reader(&stream);
        client.write_all(b"half").await.unwrap();
        let send = || socket2::SockRef::from(&client).send_out_of_band(b"!");
        client.async_io(Interest::WRITABLE, send).await.unwrap();
        client.write_all(b"rest").await.unwrap();
        while reader.buf.len() < 8 {
            timeout(Duration::from_secs(20), reader.read())
                .await
                .unwrap()
                .unwrap();
        }
        assert_eq!(reader.buf, b"halfrest");
    }

    #[tokio::test]
    async fn silent_peer_holds_no_buffer() {
        let (mut client, stream) = connected().await;
        let mut reader = reader(&stream);
        let waited = Duration::from_millis(20);
        assert!(timeout(waited, reader.read()).await.is_err());
        assert_eq!(reader.buf.capacity(), 0);
        client.write_all(b"half").await.unwrap();
        assert_eq!(reader.read().await.unwrap(), 4);
        assert!(timeout(waited, reader.read()).await.is_err());
        let capacity = reader.buf.capacity();
        assert!(capacity < READ_BYTES, "{capacity}");
    }
}
