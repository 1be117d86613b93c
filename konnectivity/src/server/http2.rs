//! HTTP/2 for API servers: what its server needs of this program, and how a connection ends.
//!
//! What requests mean, the owner knows. What is read goes into the worker's scratch memory.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use connect::Stream as Io;
use http2_proto::{Params, Request};
use http2_server::{End, Host, Peer, Server, Stream};
use tokio::time::timeout;

use crate::pump::{Pings, Watch};
use crate::relay::Scratch;

/// Serves a connection until it ends, or `cut` is ready and there are no streams; once `closing` is, it takes
/// no more streams and ends with the last. What `begin` makes of a request is polled to its end.
///
/// # Errors
/// When the client does not speak HTTP/2; `None` when it has not begun within `limit`.
pub(super) async fn serve<'a, S, B, F>(
    io: S,
    params: Params,
    host: (Scratch, Watch),
    begin: B,
    limit: Duration,
    (closing, cut): (impl Future, impl Future),
) -> Result<(), Option<End>>
where
    S: Io,
    B: FnMut(Stream, Request) -> F,
    F: Future<Output = ()> + 'a,
{
    let (scratch, watch) = host;
    let mut server = Server::new(io, params, Means { scratch, watch }, begin);
    timeout(limit, server.begun())
        .await
        .map_err(|_| None)?
        .map_err(Some)?;
    let mut cut = std::pin::pin!(cut);
    let mut closing = std::pin::pin!(closing);
    let mut leaving = false;
    let end = poll_fn(|cx| {
        if !leaving && closing.as_mut().poll(cx).is_ready() {
            leaving = true;
            server.leave();
        }
        if let Poll::Ready(end) = server.poll(cx) {
            return Poll::Ready(Some(end));
        }
        // Streams see for themselves that they are to be cut.
        match server.is_idle() {
            true => cut.as_mut().poll(cx).map(|_| None),
            false => Poll::Pending,
        }
    });
    match end.await {
        Some(end @ (End::Socket(_) | End::GivenUp)) => {
            tracing::debug!(end = %telemetry::chain(&end), "frontend connection failed");
            return Ok(());
        }
        Some(end) => tracing::debug!(end = %telemetry::chain(&end), "frontend connection closed"),
        None => server.go_away(),
    }
    // What was said last has a moment to get out.
    let closed = async {
        if poll_fn(|cx| server.poll_close(cx)).await.is_ok() {
            poll_fn(|cx| server.poll_closed(cx)).await;
        }
    };
    drop(timeout(CLOSE_TIMEOUT, closed).await);
    Ok(())
}

/// What a server reads into, and by what it tells that a client is silent.
struct Means {
    scratch: Scratch,
    watch: Watch,
}

impl<S: Io> Host<S> for Means {
    fn poll_read(&mut self, cx: &mut Context<'_>, io: &mut S) -> Poll<io::Result<Bytes>> {
        self.scratch.poll_read(cx, Pin::new(io), READ)
    }

    fn poll_given_up(&mut self, cx: &mut Context<'_>, peer: &Peer<'_>) -> Poll<()> {
        self.watch.poll(cx, Some(&mut &*peer), false)
    }
}

impl Pings for &Peer<'_> {
    fn ask(&mut self) {
        self.ping();
    }

    fn poll_answer(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        match self.take_pong() {
            true => Poll::Ready(Ok(())),
            // The connection is polled again when there is one.
            false => Poll::Pending,
        }
    }
}

/// Bytes read at once, if they are there: the more, the fewer messages are cut in two.
const READ: usize = 128 << 10;
/// How long a client may take to read what was said last.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
