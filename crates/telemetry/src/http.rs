//! A small HTTP/1.1 server for probes, scrapes and people.
//!
//! ```text
//!     EndpointAddr ──bind──▶ Bound ──serve──▶ a task per connection ──▶ handler
//! ```
//!
//! It must keep answering probes whatever its other peers do. Of [`MAX_CONNECTIONS`] connections at
//! most [`MAX_RESPONSES`] are occupied by responses, which have a deadline; one more request gets
//! 503 at once, unless its path is a probe's. The others wait for a request, and the one that has
//! waited longest is closed when a new connection needs its slot. So a new connection is always
//! served. Deadlines bound a request's head, its body, a stalled reader and a response as a whole.
//! Knows neither TLS nor HTTP/2: the addresses it serves are the pod's own.

mod bind;
mod conn;
mod get;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use settings::EndpointAddr;
use tokio::task::JoinSet;

pub use bind::Bound;
use bind::Stream;
use conn::Crowd;
pub use get::get;

use crate::backoff::AcceptBackoff;

/// The most connections that one server serves at once.
pub const MAX_CONNECTIONS: usize = 64;
/// The most connections that responses other than to probes occupy at once. Each holds its whole
/// body, which may be megabytes; the rest of [`MAX_CONNECTIONS`] is for probes.
pub const MAX_RESPONSES: usize = 32;
/// How long a request's head may take, and how long a kept connection may wait for the next one.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request's body may take.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a reader may stall.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a response may take altogether, from the request's head to its last byte.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long responses in progress may take after the shutdown began.
pub const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers requests. One per server, shared by its connections.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Returns whether a request to `path` is answered however many responses are in progress. Its
    /// answer must be small and immediate.
    fn is_probe(&self, path: &str) -> bool;

    fn handle(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// Serves until `shutdown` completes, then lets responses in progress finish within
/// [`CLOSING_TIMEOUT`].
pub(crate) async fn serve<H: Handler>(
    mut bound: Bound,
    handler: Arc<H>,
    shutdown: impl Future<Output = ()> + Send,
) {
    if let Err(error) = bound.publish() {
        tracing::warn!(%error, address = %bound.local_addr(), "requests go to another process");
    }
    let mut server = Server {
        handler,
        crowd: Arc::default(),
        tasks: JoinSet::new(),
    };
    tokio::select! {
        _ = server.run(&bound) => {}
        () = shutdown => {}
    }
    drop(bound);
    server.finish().await;
}

struct Server<H> {
    handler: Arc<H>,
    crowd: Arc<Crowd>,
    tasks: JoinSet<()>,
}

impl<H: Handler> Server<H> {
    async fn run(&mut self, bound: &Bound) -> Infallible {
        let mut backoff = AcceptBackoff::default();
        loop {
            let stream = self.accept(bound, &mut backoff).await;
            self.reserve_slot().await;
            let slot = self.crowd.enter();
            let handler = self.handler.clone();
            self.tasks.spawn(conn::serve(stream, slot, handler));
        }
    }

    /// Accepts one connection, and joins those that end meanwhile.
    async fn accept(&mut self, bound: &Bound, backoff: &mut AcceptBackoff) -> Stream {
        let address = bound.local_addr();
        let mut accepting = pin!(accept_patiently(address, backoff, || bound.accept()));
        loop {
            tokio::select! {
                stream = &mut accepting => return stream,
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    /// Closes a connection if the server is full. There is always one to close: fewer than
    /// [`MAX_CONNECTIONS`] can be occupied by a response.
    async fn reserve_slot(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        while self.tasks.len() >= MAX_CONNECTIONS {
            self.crowd.evict();
            self.tasks.join_next().await;
        }
        self.crowd.relax();
    }

    async fn finish(mut self) {
        self.crowd.close();
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSING_TIMEOUT, finished).await;
    }
}

/// Accepts, and pauses after failures such as having no descriptor left.
async fn accept_patiently<T, F>(
    address: &EndpointAddr,
    backoff: &mut AcceptBackoff,
    accept: impl Fn() -> F,
) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => {
                backoff.accepted();
                return accepted;
            }
            Err(error) => {
                if let Some(pause) = backoff.failed(address, &error) {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
