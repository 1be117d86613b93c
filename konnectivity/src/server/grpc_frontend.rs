//! API servers that ask by gRPC: one stream, one dial, one tunnel.
//!
//! ```text
//!   packets ──▶ GrpcFrontend ──▶ dial, data, close ──▶ Tunnel
//!   packets ◀── GrpcFrontend ◀── established, data, end ◀──┘
//! ```
//!
//! A connection may carry many streams; API servers open a connection for each. What packets mean
//! is `knp_proto`'s business; here they are carried out, within bounds: a stream whose octets are
//! not taken is not read.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as Cx, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::{Request, Response};
use knp_proto::{EndReason, FrontendAction, GrpcFrontend, Packet, Reserve, Transmit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::authority::Authority;
use super::cluster::{Dialled, NoTunnel};
use super::frontends::Frontend;
use super::tunnels::Open;
use crate::grpc::{self, Message, PacketReceiver, PacketSender, Side, StreamError, refusal};
use crate::link::{Tunnel, TunnelRead};
use crate::metrics::{DialFailure, Direction, GrpcCode, Held, PeerPort, Service};
use crate::pump::Watch;
use crate::share::{Share, Turn};

/// Serves a connection and all its streams.
pub(crate) async fn serve<S>(io: S, frontend: Rc<Frontend>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let cx = &frontend.cx;
    let builder = grpc::server_builder(STREAM_WINDOW, CONNECTION_WINDOW);
    let handshake = builder.handshake(Authority::new(io));
    let mut connection: Connection<Authority<S>, Message> = match timeout(
        cx.limits.handshake,
        handshake,
    )
    .await
    {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(peer = %frontend.peer, %error, "a frontend's connection is no HTTP/2");
            return cx.metrics.peer_refused(PeerPort::Frontends, "http2");
        }
        Err(_) => {
            return cx
                .metrics
                .peer_refused(PeerPort::Frontends, "handshake_timeout");
        }
    };
    let mut pings = connection.ping_pong();
    let mut watch = Watch::new(cx.limits.frontends);
    let mut streams = JoinSet::new();
    loop {
        let silent = poll_fn(|cx| watch.poll(cx, pings.as_mut(), false));
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let frontend = Rc::clone(&frontend);
                    streams.spawn_local(stream(request, respond, frontend));
                }
                Some(Err(error)) => {
                    tracing::debug!(peer = %frontend.peer, %error, "a frontend's connection broke");
                    break;
                }
                None => break,
            },
            Some(ended) = streams.join_next(), if !streams.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a frontend's stream ended by a defect");
                }
            }
            () = silent => break,
            // Its streams say so themselves.
            _ = frontend.cut(), if streams.is_empty() => break,
        }
    }
    // Streams see the end of their connection by themselves.
    drop(connection);
    while streams.join_next().await.is_some() {}
}

async fn stream(
    request: Request<RecvStream>,
    mut respond: SendResponse<Message>,
    frontend: Rc<Frontend>,
) {
    if let Err(text) = grpc::check_request(&request, grpc::PROXY_PATH) {
        drop(respond.send_response(refusal(GrpcCode::Unimplemented, &text), true));
        return;
    }
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, grpc::CONTENT_TYPE);
    let Ok(sender) = respond.send_response(response, false) else {
        return;
    };
    let _held = frontend.cx.metrics.grpc_connection(Service::Proxy);
    let mut stream = Stream {
        sender: PacketSender::new(sender, Side::Server),
        receiver: PacketReceiver::new(request.into_body(), MAX_MESSAGE),
        frontend: &frontend,
        state: GrpcFrontend::new(),
        packets: VecDeque::new(),
        replies: Vec::new(),
        target: None,
        dial: None,
        tunnel: None,
        outgoing: Bytes::new(),
        closing: false,
        asked: false,
        reason: None,
        held: Reserve::new(frontend.cluster.limits()),
        turn: frontend.means.share.as_ref().map(Share::turn),
        stalled: None,
        reading: true,
        received: 0,
        sent: 0,
    };
    let end = tokio::select! {
        end = poll_fn(|cx| stream.poll(cx)) => end,
        reason = frontend.cut() => End::Done(reason),
    };
    stream.finish(end);
}

type PendingDial<'a> = Pin<Box<dyn Future<Output = Result<Dialled, NoTunnel>> + 'a>>;

/// One stream.
struct Stream<'a> {
    sender: PacketSender,
    receiver: PacketReceiver,
    frontend: &'a Frontend,
    state: GrpcFrontend,
    /// Read, and not yet carried out.
    packets: VecDeque<Packet>,
    /// To be sent before anything else.
    replies: Vec<Packet>,
    target: Option<String>,
    dial: Option<PendingDial<'a>>,
    tunnel: Option<(Tunnel, Open)>,
    /// The client's octets that the tunnel has not taken yet.
    outgoing: Bytes,
    /// The client has closed; what it sent before still goes out.
    closing: bool,
    /// It asked for the close, and did not merely go away.
    asked: bool,
    /// Why the tunnel ended, or why there was none.
    reason: Option<&'static str>,
    /// What the cluster is charged for large messages.
    held: Reserve,
    turn: Option<Turn>,
    /// Held while the client does not read.
    stalled: Option<Held>,
    /// Whether the client may send more.
    reading: bool,
    received: u64,
    sent: u64,
}

/// How a stream ended.
enum End {
    /// In order, after the last packet.
    Done(&'static str),
    /// It broke, or the client left.
    Broken(StreamError),
}

impl<'a> Stream<'a> {
    fn poll(&mut self, cx: &mut Cx<'_>) -> Poll<End> {
        for _ in 0..TURN {
            let results = [
                self.poll_replies(cx),
                self.poll_client(cx),
                self.poll_dial(cx),
                self.poll_out(cx),
                self.poll_in(cx),
            ];
            let mut again = false;
            for result in results {
                match result {
                    Poll::Ready(Ok(Some(reason))) => return Poll::Ready(End::Done(reason)),
                    Poll::Ready(Ok(None)) => again = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(End::Broken(error)),
                    Poll::Pending => {}
                }
            }
            if !again {
                return match self.sender.flush() {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(End::Broken(error)),
                };
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what is to be told at once.
    fn poll_replies(&mut self, cx: &mut Cx<'_>) -> Step {
        if self.replies.is_empty() {
            return Poll::Pending;
        }
        ready!(self.sender.poll_ready(cx))?;
        for packet in std::mem::take(&mut self.replies) {
            self.frontend
                .cx
                .metrics
                .sent_to_client()
                .packet(packet.kind());
            self.sender.packet(packet)?;
        }
        Poll::Ready(Ok(None))
    }

    /// Reads and carries out what the client asks for.
    fn poll_client(&mut self, cx: &mut Cx<'_>) -> Step {
        if !self.outgoing.is_empty() || !self.replies.is_empty() {
            // It is not read, but may be gone.
            return self.sender.poll_reset(cx).map(Err);
        }
        if let Some(packet) = self.packets.pop_front() {
            self.frontend
                .cx
                .metrics
                .received_from_client()
                .packet(packet.kind());
            let action = self.state.handle_packet(packet, &mut self.replies);
            self.carry_out(action);
            return Poll::Ready(Ok(None));
        }
        if !self.reading {
            return self.sender.poll_reset(cx).map(Err);
        }
        let more = ready!(self.receiver.poll_packets(cx, &mut self.packets))?;
        if !self.hold() {
            return Poll::Ready(Err(StreamError::Memory));
        }
        if more {
            return Poll::Ready(Ok(None));
        }
        // The client is gone, or as good as gone: it cannot close its tunnel any more.
        self.reading = false;
        self.dial = None;
        self.closing = true;
        if self.tunnel.is_none() {
            return Poll::Ready(Ok(Some("frontend_closed")));
        }
        Poll::Ready(Ok(None))
    }

    /// Charges the cluster for what this stream holds; false when there is no memory for it.
    fn hold(&mut self) -> bool {
        let packets: usize = self.packets.iter().map(Packet::payload_len).sum();
        let held = self.receiver.buffered() + packets + self.outgoing.len();
        // What a window carries is everybody's.
        self.held
            .try_set(held.saturating_sub(STREAM_WINDOW as usize))
    }

    fn carry_out(&mut self, action: Option<FrontendAction>) {
        match action {
            Some(FrontendAction::Data(data)) => self.outgoing = data,
            Some(FrontendAction::Dial(target)) => {
                self.target = Some(target.address.clone());
                self.dial = Some(Box::pin(self.frontend.dial(target)));
            }
            Some(FrontendAction::Close) => {
                self.asked = true;
                if self.dial.take().is_some() {
                    let metrics = self.frontend.cluster.metrics();
                    metrics.dial_failure(DialFailure::FrontendClose);
                }
                self.closing = true;
            }
            None => {}
        }
    }

    fn poll_dial(&mut self, cx: &mut Cx<'_>) -> Step {
        let Some(dial) = &mut self.dial else {
            return Poll::Pending;
        };
        let result = ready!(dial.as_mut().poll(cx));
        self.dial = None;
        match result {
            Ok(dialled) => {
                let reply = self.state.established(dialled.tunnel.connect_id());
                self.replies.extend(reply);
                let open = self.frontend.open(&dialled);
                self.tunnel = Some((dialled.tunnel, open));
            }
            Err(error) => {
                self.reason = self.reason.or_else(|| Some(error.reason()));
                let reply = self.state.dial_failed(&error.to_string());
                self.replies.extend(reply);
            }
        }
        Poll::Ready(Ok(None))
    }

    /// From the client to the tunnel.
    fn poll_out(&mut self, cx: &Cx<'_>) -> Step {
        let Some((tunnel, _)) = &mut self.tunnel else {
            self.outgoing.clear();
            if self.closing && self.dial.is_none() && self.replies.is_empty() {
                return Poll::Ready(Ok(Some("frontend_closed")));
            }
            return Poll::Pending;
        };
        if self.outgoing.is_empty() {
            if !self.closing || !self.packets.is_empty() {
                return Poll::Pending;
            }
            // All it sent is on its way; the tunnel closes behind it, and is whole if it says so.
            if self.asked {
                tunnel.finish();
            }
            self.tunnel = None;
            self.reason.get_or_insert("frontend_closed");
            self.replies
                .extend(self.state.ended(&EndReason::LocalClosed));
            return Poll::Ready(Ok(None));
        }
        let room = ready!(tunnel.poll_room(cx));
        if let Some(turn) = &self.turn {
            ready!(turn.poll(cx));
        }
        let len = room.min(self.outgoing.len());
        let piece = self.outgoing.split_to(len);
        tunnel.metrics().bytes(Direction::ToDestination, len as u64);
        self.received += len as u64;
        if tunnel.write(piece).is_err() {
            self.outgoing.clear();
        }
        self.charge(len);
        self.hold();
        Poll::Ready(Ok(None))
    }

    /// From the tunnel to the client.
    fn poll_in(&mut self, cx: &mut Cx<'_>) -> Step {
        let Some((tunnel, _)) = &mut self.tunnel else {
            return Poll::Pending;
        };
        // Nothing overtakes the answer to the dial.
        if !self.replies.is_empty() {
            return Poll::Pending;
        }
        let ready = self.sender.poll_ready(cx);
        if ready.is_pending() {
            (self.stalled).get_or_insert_with(|| tunnel.metrics().stalled());
            // The tunnel may be over whether or not the client reads again.
            let reason = ready!(tunnel.poll_ended(cx));
            return self.ended(&reason);
        }
        self.stalled = None;
        ready!(ready)?;
        if let Some(turn) = &self.turn {
            ready!(turn.poll(cx));
        }
        let data = match ready!(tunnel.poll_read(cx, PIECE)) {
            TunnelRead::Data(data) => data,
            // API servers know no half-close.
            TunnelRead::End => {
                let error = String::new();
                return self.ended(&EndReason::PeerClosed { error });
            }
            TunnelRead::Ended(reason) => return self.ended(&reason),
        };
        let len = data.len();
        tunnel
            .metrics()
            .bytes(Direction::FromDestination, len as u64);
        if let Some(Packet::Data { connect_id, data }) = self.state.data(data) {
            let kind = self.sender.transmit(|buf| {
                knp_proto::packet::encode_data_head(connect_id, data.len(), buf);
                let kind = knp_proto::PacketKind::Data;
                let payload = Some(data);
                Some(Transmit { kind, payload })
            })?;
            kind.inspect(|kind| self.frontend.cx.metrics.sent_to_client().packet(*kind));
            self.sent += len as u64;
        }
        tunnel.consumed(len);
        self.charge(len);
        Poll::Ready(Ok(None))
    }

    /// Tells the client that its tunnel is over, and ends the stream behind that.
    fn ended(&mut self, reason: &EndReason) -> Step {
        self.tunnel = None;
        self.reason = self.reason.or_else(|| Some(reason.reason()));
        self.replies.extend(self.state.ended(reason));
        self.outgoing.clear();
        self.closing = true;
        Poll::Ready(Ok(None))
    }

    fn charge(&self, octets: usize) {
        if let Some(turn) = &self.turn {
            turn.charge(octets);
        }
    }

    fn finish(self, end: End) {
        let reason = match end {
            End::Done(reason) => {
                self.sender.end(GrpcCode::Ok, "");
                self.reason.unwrap_or(reason)
            }
            End::Broken(StreamError::Memory) => {
                let text = "no memory for so large a message";
                self.sender.end(GrpcCode::ResourceExhausted, text);
                "limit"
            }
            End::Broken(error) => {
                let metrics = &self.frontend.cx.metrics;
                metrics.received_from_client().error(error.code(), None);
                self.sender.reset();
                self.reason.unwrap_or("frontend_reset")
            }
        };
        if self.dial.is_some() {
            let metrics = self.frontend.cluster.metrics();
            metrics.dial_failure(DialFailure::FrontendClose);
        }
        let target = self.target.as_deref();
        self.frontend.log(target, self.received, self.sent, reason);
    }
}

/// Something was done, or the stream is over for the reason given, or it broke.
type Step = Poll<Result<Option<&'static str>, StreamError>>;

/// Window of a stream: what a client may send ahead of the tunnel.
const STREAM_WINDOW: u32 = 128 << 10;
/// Window of a connection, for all its streams: dozens may be stuck without stopping the others.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Octets of a message. Upstream's library sends what it is given as one message, however long;
/// upstream's server takes 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;
/// Octets sent as one packet.
const PIECE: usize = 64 << 10;
/// Rounds in a row.
const TURN: usize = 16;
