//! The gRPC frontend's client: one HTTP/2 connection and one stream for each tunnel.
//!
//! ```text
//! dial:  DIAL_REQ ──▶ … ──▶ DIAL_RSP        write ──▶ DATA        read ◀── DATA
//! close: CLOSE_REQ ──▶ … ──▶ CLOSE_RSP
//! ```
//!
//! Speaks as kube-apiserver's client library does: no extensions are offered.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{Request, Version};
use knp_proto::frame::{Deframer, HEAD, put_head};
use knp_proto::packet::{MAX_MESSAGE, encode_data_head};
use knp_proto::{ConnectId, DialId, Packet};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

#[derive(Debug)]
pub(crate) struct GrpcTunnel {
    packets: Packets,
    connect_id: ConnectId,
    unread: Bytes,
    closing: bool,
    ended: bool,
}

/// Opens a tunnel to `target` over `stream`, at whose other end is `authority`.
///
/// Dropped half way, it closes the connection without a word.
pub(crate) async fn dial<S>(stream: S, authority: &str, target: &str) -> io::Result<GrpcTunnel>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(io::Error::other)?;
    // It ends, and closes the socket, with its owner; its streams report what ended it.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let mut client = client.ready().await.map_err(io::Error::other)?;
    let request = request(authority)?;
    let asked = client.send_request(request, false);
    let (response, send) = asked.map_err(io::Error::other)?;
    let mut packets = Packets {
        send,
        receive: None,
        deframer: Deframer::new(MAX_MESSAGE),
        _connection: tasks,
    };
    let random = random();
    packets.send(Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address: target.to_owned(),
        random,
    })?;
    // A gRPC server may answer with headers only once it has something to say.
    let response = response.await.map_err(io::Error::other)?;
    if response.status() != http::StatusCode::OK {
        return Err(io::Error::other(format!("gRPC: {}", response.status())));
    }
    packets.receive = Some(response.into_body());
    let connect_id = packets.answer(random).await?;
    Ok(GrpcTunnel {
        packets,
        connect_id,
        unread: Bytes::new(),
        closing: false,
        ended: false,
    })
}

impl GrpcTunnel {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.ended {
            let packet = ready!(self.packets.poll_next(cx))?;
            if let Some(Packet::Data { data, .. }) = packet {
                self.unread = data;
            } else if matches!(packet, None | Some(Packet::CloseResponse { .. })) {
                self.ended = true;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for GrpcTunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_data(cx))?;
        let len = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GrpcTunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let len = buf.len().min(LARGEST_WRITE);
        ready!(self.packets.poll_room(cx, len + DATA_HEAD))?;
        let mut head = BytesMut::with_capacity(DATA_HEAD);
        encode_data_head(self.connect_id, len, &mut head);
        let mut message = BytesMut::with_capacity(HEAD + head.len() + len);
        put_head(head.len() + len, &mut message);
        message.put(head);
        message.put_slice(&buf[..len]);
        let sent = self.packets.send.send_data(message.freeze(), false);
        sent.map_err(io::Error::other)?;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connect_id = self.connect_id;
        if !std::mem::replace(&mut self.closing, true) {
            self.packets.send(Packet::CloseRequest { connect_id })?;
        }
        while !self.ended {
            self.unread.clear();
            ready!(self.poll_data(cx))?;
        }
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug)]
struct Packets {
    send: SendStream<Bytes>,
    receive: Option<RecvStream>,
    deframer: Deframer,
    _connection: JoinSet<Result<(), h2::Error>>,
}

impl Packets {
    /// Sends a packet that is small enough not to wait for room.
    fn send(&mut self, packet: Packet) -> io::Result<()> {
        let mut body = BytesMut::new();
        packet.encode(&mut body);
        let mut message = BytesMut::with_capacity(HEAD + body.len());
        put_head(body.len(), &mut message);
        message.put(body);
        let sent = self.send.send_data(message.freeze(), false);
        sent.map_err(io::Error::other)
    }

    /// Waits until the peer takes `len` bytes.
    fn poll_room(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<io::Result<()>> {
        self.send.reserve_capacity(len);
        while self.send.capacity() < len {
            match ready!(self.send.poll_capacity(cx)) {
                Some(more) => more.map_err(io::Error::other)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        Poll::Ready(Ok(()))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Packet>>> {
        loop {
            if let Some(message) = self.deframer.next_message().map_err(io::Error::other)? {
                let packet = Packet::decode(message).map_err(io::Error::other)?;
                return Poll::Ready(Ok(Some(packet)));
            }
            let Some(receive) = self.receive.as_mut() else {
                return Poll::Ready(Ok(None));
            };
            match ready!(receive.poll_data(cx)) {
                None => return Poll::Ready(Ok(None)),
                Some(piece) => {
                    let piece = piece.map_err(io::Error::other)?;
                    let taken = receive.flow_control().release_capacity(piece.len());
                    taken.map_err(io::Error::other)?;
                    self.deframer.push(piece);
                }
            }
        }
    }

    async fn answer(&mut self, random: DialId) -> io::Result<ConnectId> {
        loop {
            match std::future::poll_fn(|cx| self.poll_next(cx)).await? {
                Some(Packet::DialResponse {
                    error,
                    connect_id,
                    random: answered,
                }) if answered == random => {
                    return if error.is_empty() {
                        Ok(connect_id)
                    } else {
                        Err(io::Error::other(error))
                    };
                }
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

fn request(authority: &str) -> io::Result<Request<()>> {
    Request::post(format!("http://{authority}/ProxyService/Proxy"))
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "rhizome-bench")
        .body(())
        .map_err(io::Error::other)
}

/// Dials of different connections need different numbers, also with an upstream server, which
/// keeps one table for all.
fn random() -> DialId {
    use std::hash::{BuildHasher, Hasher};
    // std seeds each `RandomState` anew.
    DialId::from_random(std::hash::RandomState::new().build_hasher().finish())
}

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// What Go's `io.Copy` writes at once, and half of HTTP/2's first window.
const LARGEST_WRITE: usize = 32 * 1024;
/// gRPC's five bytes and the fields around the bytes of a DATA packet, at most.
const DATA_HEAD: usize = 32;
