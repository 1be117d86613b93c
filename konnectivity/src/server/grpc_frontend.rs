//! API servers that ask by gRPC: one stream, one dial, one tunnel.
//!
//! ```text
//!   packets ──▶ GrpcFrontend ──▶ dial, data, close ──▶ Tunnel
//!   packets ◀── GrpcFrontend ◀── established, data, end ◀──┘
//! ```
//!
//! A connection may carry many streams; API servers open a connection for each. What packets mean
//! is `knp_proto`'s business; here they are carried out, within bounds: a stream whose bytes are
//! not taken is not read.

mod wire;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as Cx, Poll, ready};

use bytes::Bytes;
use http2_proto::{Params, Request};
use knp_proto::{
    DialRefused, EndReason, FrontendAction, GrpcFrontend, Packet, PacketKind, Reserve,
};
use serve::Phase;
use tokio::time::{Instant, Sleep, sleep};

use super::context::HANDSHAKE;
use super::frontends::Frontend;
use super::http2;
use super::tenant::{Dialed, TunnelError};
use super::tunnels::Open;
use crate::fair_share::Flow;
use crate::grpc::{self, StreamError};
use crate::link::{Tunnel, TunnelRead};
use crate::metrics::{DialFailure, Direction, GrpcCode, Held, Service};
use crate::pump::Watch;
use wire::Wire;

/// Serves a connection and all its streams.
pub(crate) async fn serve<S>(io: S, frontend: Rc<Frontend>)
where
    S: connect::Stream,
{
    let cx = &frontend.cx;
    let scratch = frontend.means.scratch.clone();
    let host = (scratch, Watch::new(cx.config.frontend_liveness));
    let begin = |io, request| stream(io, request, &frontend);
    let ends = (cx.drain.reached(Phase::Closing), frontend.cut());
    match http2::serve(io, PARAMS, host, begin, HANDSHAKE, ends).await {
        Ok(()) => {}
        Err(Some(error)) => {
            tracing::debug!(peer = %frontend.peer, %error, "frontend connection is not HTTP/2");
            cx.metrics.peer_refused(frontend.port, "http2");
        }
        Err(None) => cx.metrics.peer_refused(frontend.port, "handshake_timeout"),
    }
}

async fn stream(io: http2_server::Stream, request: Request, frontend: &Frontend) {
    if let Err(text) = check(&request) {
        return Wire::refuse(&io, GrpcCode::UNIMPLEMENTED, &text);
    }
    // Not kept for as long as the stream.
    drop(request);
    let Some(_open) = frontend.tenant.open_stream() else {
        let refused = DialRefused::Tunnels;
        frontend.tenant.metrics().dial_refused(refused);
        return Wire::refuse(&io, GrpcCode::RESOURCE_EXHAUSTED, &refused.to_string());
    };
    let _held = frontend.cx.metrics.grpc_connection(Service::Proxy);
    let mut stream = Stream {
        wire: Wire::accept(io, MAX_MESSAGE),
        frontend,
        state: GrpcFrontend::default(),
        replies: Vec::new(),
        target: None,
        client: Client::Speaks,
        way: Way::None,
        idle: None,
        outgoing: Bytes::new(),
        reason: None,
        held: Reserve::new(frontend.tenant.limits()),
        flow: Flow::new(frontend.means.share.clone()),
        stalled: None,
        started: Instant::now(),
        received: 0,
        sent: 0,
    };
    let end = tokio::select! {
        end = poll_fn(|cx| stream.poll(cx)) => end,
        reason = frontend.cut() => Ok(reason),
    };
    stream.finish(end);
}

fn check(request: &Request) -> Result<(), String> {
    let content_type = request.header("content-type");
    let path = String::from_utf8_lossy(request.path());
    let path = path.split('?').next().unwrap_or_default();
    grpc::check_call(request.method(), path, content_type, grpc::PROXY_PATH)
}

/// One stream.
struct Stream<'a> {
    wire: Wire,
    frontend: &'a Frontend,
    state: GrpcFrontend,
    /// To be sent before anything else.
    replies: Vec<Packet>,
    target: Option<String>,
    client: Client,
    way: Way<'a>,
    /// Ends a stream that is not used for a dial.
    idle: Option<Pin<Box<Sleep>>>,
    /// The client's bytes that the tunnel has not taken yet.
    outgoing: Bytes,
    /// Why the tunnel ended, or why there was none.
    reason: Option<&'static str>,
    /// What the tenant is charged for what was read.
    held: Reserve,
    flow: Flow,
    /// Held while the client does not read.
    stalled: Option<Held>,
    started: Instant,
    received: u64,
    sent: u64,
}

/// What a client has still to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// Anything.
    Speaks,
    /// It has asked for the end; what it says behind that does not matter.
    Closed,
    /// Nothing: it has ended its side of the stream, having `asked` for the end or not.
    Left { asked: bool },
}

/// How far the way to the destination is.
enum Way<'a> {
    /// There is none, and there may be one yet.
    None,
    Dialing(Pin<Box<dyn Future<Output = Result<Dialed, TunnelError>> + 'a>>),
    Open {
        tunnel: Tunnel,
        _counted: Open,
    },
    /// There was one.
    Over,
}

/// How a stream ended: in order, after the last packet, for the reason given; or it broke, or the
/// client left.
type End = Result<&'static str, StreamError>;

impl<'a> Stream<'a> {
    fn poll(&mut self, cx: &mut Cx<'_>) -> Poll<End> {
        for _ in 0..BATCH {
            let results = [
                self.poll_replies(cx),
                self.poll_client(cx),
                self.poll_dial(cx),
                self.poll_out(cx),
                self.poll_in(cx),
                self.poll_idle(cx),
            ];
            let mut again = false;
            for result in results {
                match result {
                    Poll::Ready(Ok(Some(reason))) => return Poll::Ready(Ok(reason)),
                    Poll::Ready(Ok(None)) => again = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            if !again {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what is to be told at once.
    fn poll_replies(&mut self, cx: &Cx<'_>) -> Step {
        if self.replies.is_empty() {
            return Poll::Pending;
        }
        ready!(self.wire.poll_ready(cx))?;
        let sent = &self.frontend.cx.metrics.to_client;
        for packet in std::mem::take(&mut self.replies) {
            sent.packet(packet.kind());
            self.wire.packet(packet)?;
        }
        Poll::Ready(Ok(None))
    }

    /// Reads and carries out what the client asks for.
    fn poll_client(&mut self, cx: &Cx<'_>) -> Step {
        if !self.outgoing.is_empty() || !self.replies.is_empty() {
            // It is not read, but may be gone.
            return self.wire.poll_end(cx).map(Err);
        }
        if let Some(packet) = self.wire.next_packet()? {
            let received = &self.frontend.cx.metrics.from_client;
            received.packet(packet.kind());
            let action = self.state.handle_packet(packet, &mut self.replies);
            self.carry_out(action);
            return Poll::Ready(Ok(None));
        }
        if let Client::Left { .. } = self.client {
            return self.wire.poll_end(cx).map(Err);
        }
        let more = ready!(self.wire.poll_read(cx))?;
        if !self.hold() {
            return Poll::Ready(Err(StreamError::Memory));
        }
        if more {
            return Poll::Ready(Ok(None));
        }
        // The client is gone, or as good as gone: it cannot close its tunnel any more.
        let asked = self.client == Client::Closed;
        self.client = Client::Left { asked };
        self.give_up_dial();
        match self.way {
            Way::Open { .. } => Poll::Ready(Ok(None)),
            Way::None | Way::Dialing(_) | Way::Over => Poll::Ready(Ok(Some("frontend_closed"))),
        }
    }

    /// Cancels a dial whose client is gone.
    fn give_up_dial(&mut self) {
        if let Way::Dialing(_) = self.way {
            let metrics = self.frontend.tenant.metrics();
            metrics.dial_failure(DialFailure::FrontendClose);
            self.way = Way::None;
        }
    }

    /// Charges the tenant for what this stream holds; false when there is no memory for it.
    fn hold(&mut self) -> bool {
        let held = self.wire.buffered() + self.outgoing.len();
        let free = match self.way {
            Way::Open { .. } => STREAM_WINDOW as usize,
            Way::None | Way::Dialing(_) | Way::Over => DIAL_BYTES,
        };
        self.held.try_set(held.saturating_sub(free))
    }

    /// Waits until the client has had its time to ask for a tunnel, where there is none.
    fn poll_idle(&mut self, cx: &mut Cx<'_>) -> Step {
        match self.way {
            Way::None => {}
            Way::Dialing(_) | Way::Open { .. } | Way::Over => {
                self.idle = None;
                return Poll::Pending;
            }
        }
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(HANDSHAKE)));
        ready!(idle.as_mut().poll(cx));
        Poll::Ready(Err(StreamError::Idle))
    }

    fn carry_out(&mut self, action: Option<FrontendAction>) {
        match action {
            Some(FrontendAction::Data(data)) => self.outgoing = data,
            Some(FrontendAction::Dial(target)) => {
                self.target = Some(target.address.clone());
                self.way = Way::Dialing(Box::pin(self.frontend.dial(target)));
            }
            Some(FrontendAction::Close) => {
                self.client = Client::Closed;
                self.give_up_dial();
            }
            None => {}
        }
    }

    fn poll_dial(&mut self, cx: &mut Cx<'_>) -> Step {
        let Way::Dialing(dial) = &mut self.way else {
            return Poll::Pending;
        };
        match ready!(dial.as_mut().poll(cx)) {
            Ok(dialed) => {
                let reply = self.state.established(dialed.tunnel.connect_id());
                self.replies.extend(reply);
                self.way = Way::Open {
                    _counted: Open::new(&self.frontend.cx, &self.frontend.tenant, &dialed),
                    tunnel: dialed.tunnel,
                };
            }
            Err(error) => {
                self.way = Way::None;
                self.reason = self.reason.or_else(|| Some(error.reason()));
                let reply = self.state.dial_failed(&error.to_string());
                self.replies.extend(reply);
            }
        }
        Poll::Ready(Ok(None))
    }

    /// From the client to the tunnel.
    fn poll_out(&mut self, cx: &Cx<'_>) -> Step {
        let Way::Open { tunnel, .. } = &mut self.way else {
            self.outgoing.clear();
            return self.without_tunnel();
        };
        if self.outgoing.is_empty() {
            let asked = match self.client {
                Client::Speaks => return Poll::Pending,
                Client::Closed => true,
                Client::Left { asked } => asked,
            };
            // All it sent is on its way; the tunnel closes behind it, and is whole if it says so.
            if asked {
                tunnel.finish();
            }
            self.way = Way::Over;
            self.reason.get_or_insert("frontend_closed");
            self.replies
                .extend(self.state.ended(&EndReason::LocalClosed));
            return Poll::Ready(Ok(None));
        }
        let capacity = ready!(tunnel.poll_capacity(cx));
        ready!(self.flow.poll_ready(cx));
        let len = capacity.min(self.outgoing.len());
        let piece = self.outgoing.split_to(len);
        tunnel.metrics().bytes(Direction::ToDestination, len as u64);
        self.received += len as u64;
        if tunnel.write(piece).is_err() {
            self.outgoing.clear();
        }
        self.flow.charge(len);
        self.hold();
        Poll::Ready(Ok(None))
    }

    /// Ends the stream once nothing is left to say, unless the client may still dial.
    fn without_tunnel(&self) -> Step {
        let over = match self.way {
            Way::None => self.client != Client::Speaks,
            Way::Over => true,
            Way::Dialing(_) | Way::Open { .. } => false,
        };
        match over && self.replies.is_empty() {
            true => Poll::Ready(Ok(Some("frontend_closed"))),
            false => Poll::Pending,
        }
    }

    /// From the tunnel to the client.
    fn poll_in(&mut self, cx: &Cx<'_>) -> Step {
        let Way::Open { tunnel, .. } = &mut self.way else {
            return Poll::Pending;
        };
        // Nothing overtakes the answer to the dial.
        if !self.replies.is_empty() {
            return Poll::Pending;
        }
        let ready = self.wire.poll_ready(cx);
        if ready.is_pending() {
            (self.stalled).get_or_insert_with(|| tunnel.metrics().stalled());
            // The tunnel may be over whether or not the client reads again.
            let reason = ready!(tunnel.poll_ended(cx));
            return self.ended(&reason);
        }
        self.stalled = None;
        ready!(ready)?;
        ready!(self.flow.poll_ready(cx));
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
            self.wire.data(connect_id, data)?;
            let sent = &self.frontend.cx.metrics.to_client;
            sent.packet(PacketKind::Data);
            self.sent += len as u64;
        }
        tunnel.consumed(len);
        self.flow.charge(len);
        Poll::Ready(Ok(None))
    }

    /// Reports the end of the tunnel to the client, and ends the stream behind that.
    fn ended(&mut self, reason: &EndReason) -> Step {
        self.way = Way::Over;
        self.reason = self.reason.or_else(|| Some(reason.reason()));
        self.replies.extend(self.state.ended(reason));
        self.outgoing.clear();
        Poll::Ready(Ok(None))
    }

    fn finish(mut self, end: End) {
        self.give_up_dial();
        let reason = match end {
            Ok(reason) => {
                self.wire.end(GrpcCode::OK, "");
                self.reason.unwrap_or(reason)
            }
            Err(error @ StreamError::Idle) => {
                self.wire.end(error.code(), &error.to_string());
                self.reason.unwrap_or("idle")
            }
            Err(error @ StreamError::Memory) => {
                self.wire.end(error.code(), &error.to_string());
                "limit"
            }
            Err(error) => {
                let metrics = &self.frontend.cx.metrics;
                metrics.from_client.error(error.code(), None);
                self.wire.reset();
                self.reason.unwrap_or("frontend_reset")
            }
        };
        let target = self.target.as_deref();
        let bytes = (self.received, self.sent);
        self.frontend.log(self.started, target, bytes, reason);
    }
}

/// Something was done, or the stream is over for the reason given, or it broke.
type Step = Poll<Result<Option<&'static str>, StreamError>>;

/// Window of a stream: what a client may send ahead of the tunnel.
const STREAM_WINDOW: u32 = 128 << 10;
/// Bytes held for nothing as long as there is no tunnel: more than any request for one.
const DIAL_BYTES: usize = 2 << 10;
/// What a connection may do.
const PARAMS: Params = Params {
    stream_window: STREAM_WINDOW,
    // For all its streams: dozens may be stuck without stopping the others.
    connection_window: 8 << 20,
    max_frame: grpc::MAX_FRAME,
    max_streams: grpc::MAX_STREAMS,
    max_head: grpc::MAX_HEADERS,
    // Nothing to keep for connections of one request.
    max_copied: 4095,
    header_table: 0,
    send_buffer: grpc::SEND_BUFFER,
};
/// Bytes of a message. Upstream's library sends what it is given as one message, however long;
/// upstream's server takes 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;
/// Bytes sent as one packet.
const PIECE: usize = 64 << 10;
/// Rounds in a row.
const BATCH: usize = 16;
