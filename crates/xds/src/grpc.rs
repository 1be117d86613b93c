//! gRPC over HTTP/2 connections that are ours: what TLS, deadlines and keepalive they have is
//! decided here and not by a framework.
//!
//! Frames, status and codec are tonic's; HTTP/2 is hyper's. Knows the two methods of the discovery
//! service and nothing of what is said over them.

use std::time::Duration;

use futures_util::Stream;
use http::uri::PathAndQuery;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

/// The method of the incremental variant.
pub(crate) const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The method of the state-of-the-world variant.
pub(crate) const FULL_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// What a client says of itself when it puts a listener together from parts.
pub(crate) const LISTENER_PARTS: &str = "rhizome.listener-parts";

/// What the nonce of a response ends with that is only a part of what the server has to say: the
/// client takes it, and puts nothing in effect before the rest has come. To others it is a nonce as
/// any other. Only clients that announce [`LISTENER_PARTS`] get it.
pub(crate) const MORE_FOLLOWS: &str = "+rhizome.more-follows";

/// HTTP/2 by ALPN, RFC 9113 section 3.2.
pub const ALPN_H2: &[u8] = b"h2";

/// A connection to a server. It ends when it is dropped.
pub(crate) struct Channel {
    requests: http2::SendRequest<Body>,
    driver: JoinHandle<()>,
}

impl Channel {
    /// Begins HTTP/2 on a connected stream. A server that does not answer a ping within
    /// `keepalive_timeout` is taken for gone.
    pub(crate) async fn handshake<T>(
        io: T,
        keepalive: Duration,
        keepalive_timeout: Duration,
    ) -> Result<Self, hyper::Error>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(keepalive)
            .keep_alive_timeout(keepalive_timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .handshake(TokioIo::new(io))
            .await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %telemetry::chain(&error), "xDS connection closed");
            }
        });
        Ok(Self { requests, driver })
    }

    /// Begins a stream and waits for the server's headers, which some servers send only with their
    /// first message: what is to be said first must be in `requests` already.
    pub(crate) async fn open<Q, R>(
        &mut self,
        origin: http::Uri,
        path: &'static str,
        requests: mpsc::Receiver<Q>,
        max_bytes: usize,
    ) -> Result<Streaming<R>, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let http2 = tower::service_fn(|request| self.requests.send_request(request));
        let grpc = tonic::client::Grpc::with_origin(http2, origin);
        let mut grpc = grpc.max_decoding_message_size(max_bytes);
        let codec = ProstCodec::<Q, R>::default();
        let request = tonic::Request::new(stream_of(requests));
        let path = PathAndQuery::from_static(path);
        Ok(grpc.streaming(request, path, codec).await?.into_inner())
    }
}

/// Two responses of the usual size can be on their way while one is being taken.
const WINDOW_BYTES: u32 = 2 * 1024 * 1024;

impl Drop for Channel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What comes out of a channel, as a stream.
pub(crate) fn stream_of<T>(mut receiver: mpsc::Receiver<T>) -> impl Stream<Item = T> + Send
where
    T: Send,
{
    futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx))
}
