//! Questions over TCP: a bounded number of connections, of which one source can have half of what the others
//! leave, each with a deadline for its next one.
//!
//! ```text
//!     accept ─▶ permit of its source ─▶ one task per connection: question ─▶ Handler ─▶ answer, in turn
//! ```
//!
//! Framing and deadlines are hickory's. The deadline spans the whole of a question and the
//! sending of the answer before it, so neither a slow writer nor a slow reader holds on longer.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use hickory_server::net::runtime::TokioTime;
use hickory_server::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_server::net::tcp::TcpStream as Framed;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::MessageType;
use hickory_server::server::{Request, RequestHandler, ResponseHandle, TimeoutStream};
use telemetry::{AcceptBackoff, FairPermits};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Limits;
use super::handler::Handler;

/// Answers queued for one connection; questions are taken in turn, so one is enough.
const QUEUED: usize = 1;

/// Accepts and serves until dropped, which closes every connection.
pub(super) async fn serve(listener: TcpListener, handler: Handler, limits: &Limits) {
    let permits = FairPermits::new(limits.connections);
    let mut connections = JoinSet::new();
    let mut backoff = AcceptBackoff::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                backoff.accepted();
                let Some(permit) = permits.take(peer.ip().to_canonical()) else {
                    tracing::debug!(%peer, "DNS connection refused: its source has too many");
                    continue;
                };
                let (handler, idle) = (handler.clone(), limits.idle);
                connections.spawn(async move {
                    serve_connection(stream, peer, &handler, idle).await;
                    drop(permit);
                });
            }
            Err(error) => {
                if let Some(pause) = backoff.failed("dns", &error) {
                    sleep(pause).await;
                }
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Answers the questions of one connection, until its end, its deadline or the first message
/// that is no question.
async fn serve_connection(stream: TcpStream, peer: SocketAddr, handler: &Handler, idle: Duration) {
    let stream = AsyncIoTokioAsStd(stream);
    let (framed, answers) = Framed::from_stream_with_buffer_size(stream, peer, QUEUED);
    let mut questions = TimeoutStream::new(framed, idle);
    while let Some(Ok(question)) = questions.next().await {
        let (bytes, _) = question.into_parts();
        let Ok(request) = Request::from_bytes(bytes, peer, Protocol::Tcp) else {
            return;
        };
        if request.metadata.message_type != MessageType::Query {
            return;
        }
        let answer = ResponseHandle::new(peer, answers.clone(), Protocol::Tcp);
        handler
            .handle_request::<_, TokioTime>(&request, answer)
            .await;
    }
}
