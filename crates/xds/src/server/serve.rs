//! Accepts clients: TLS, HTTP/2, and the start of their streams.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use telemetry::{AcceptBackoff, FairPermit, FairPermits};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::Inner;
use super::admission::{self, Peer, Refusal};
use super::delta::Delta;
use super::full::Full;
use super::stream_task::{self, Variant};
use crate::grpc::{DELTA_PATH, FULL_PATH, stream_of};

/// Serves until `end` completes, and returns what it did; see [`super::Server::serve`].
pub(super) async fn serve<T>(
    inner: &Arc<Inner>,
    listener: &TcpListener,
    end: impl Future<Output = T> + Send,
) -> T {
    let closing = watch::Sender::new(false);
    let cx = Connections {
        inner: inner.clone(),
        places: Arc::new(Semaphore::new(inner.params.limits.connections)),
        handshakes: FairPermits::new((inner.params.limits.connections / 4).max(1)),
        streams: Arc::new(Semaphore::new(inner.params.limits.streams)),
        closing: closing.subscribe(),
    };
    let mut connections = JoinSet::new();
    let watching = async {
        if let Some(tls) = &inner.params.tls {
            tls.watch().await;
        }
        std::future::pending::<Infallible>().await
    };
    let end = tokio::select! {
        never = accept_all(&cx, listener, &mut connections) => match never {},
        never = watching => match never {},
        end = end => end,
    };
    closing.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(inner.params.limits.closing, ended).await;
    connections.shutdown().await;
    end
}

async fn accept_all(
    cx: &Connections,
    listener: &TcpListener,
    connections: &mut JoinSet<()>,
) -> Infallible {
    let mut backoff = AcceptBackoff::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, addr)) => {
                    backoff.accepted();
                    cx.accepted(tcp, addr, connections);
                }
                Err(error) => {
                    if let Some(pause) = backoff.failed("xds", &error) {
                        tokio::time::sleep(pause).await;
                    }
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// What all connections share.
#[derive(Clone)]
struct Connections {
    inner: Arc<Inner>,
    places: Arc<Semaphore>,
    /// For TLS handshakes, which strangers can begin: fewer than places.
    handshakes: Arc<FairPermits>,
    streams: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl Connections {
    fn accepted(&self, tcp: TcpStream, addr: SocketAddr, connections: &mut JoinSet<()>) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.inner.metrics.refused(Refusal::Limit.as_str());
            return;
        };
        let with_tls = self.inner.params.tls.is_some();
        let handshake = with_tls.then(|| self.handshakes.take(addr.ip().to_canonical()));
        if matches!(handshake, Some(None)) {
            self.inner.metrics.refused(Refusal::Limit.as_str());
            return;
        }
        let cx = self.clone();
        connections.spawn(async move {
            if let Err(error) = cx.connection(tcp, addr, handshake.flatten()).await {
                tracing::debug!(peer = %addr, error, "xDS connection closed");
            }
            drop(place);
        });
    }

    async fn connection(
        self,
        tcp: TcpStream,
        addr: SocketAddr,
        handshake: Option<FairPermit>,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        tcp.set_nodelay(true).map_err(text)?;
        let Some(tls) = &self.inner.params.tls else {
            let names = None;
            return self.http2(tcp, Peer { addr, names }).await;
        };
        let shaking = TlsAcceptor::from(tls.config()).accept(tcp);
        let limit = self.inner.params.limits.handshake;
        let shaken = tokio::time::timeout(limit, shaking).await;
        let stream = shaken
            .map_err(|_| "TLS handshake timed out".to_owned())
            .and_then(|shaken| shaken.map_err(text))
            .inspect_err(|_| self.inner.metrics.refused("handshake"))?;
        drop(handshake);
        let certs = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let names = match certs.first() {
            Some(cert) => tls::subject_alt_names(cert).map_err(|error| error.to_string())?,
            None => Default::default(),
        };
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        let names = Some(names);
        self.http2(stream, Peer { addr, names }).await
    }

    async fn http2<T>(self, io: T, peer: Peer) -> Result<(), String>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let limits = &self.inner.params.limits;
        let mut closing = self.closing.clone();
        let standing = AdmittedStreams::default();
        let (cx, of_streams) = (self.clone(), standing.clone());
        let service = service_fn(move |request| {
            let answering = cx.clone().answer(peer.clone(), of_streams.clone(), request);
            async { Ok::<_, Infallible>(answering.await) }
        });
        let mut connection = pin!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(limits.keepalive)
                .keep_alive_timeout(limits.keepalive_timeout)
                .max_concurrent_streams(STREAMS_PER_CONNECTION)
                .max_send_buf_size(SEND_BUFFER)
                .max_header_list_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(io), service)
        );
        tokio::select! {
            end = &mut connection => return end.map_err(|error| telemetry::chain(&error).to_string()),
            () = standing.lost(limits.handshake * 2) => {
                tracing::debug!("closing an xDS connection without an admitted stream");
            }
            _ = closing.wait_for(|closing| *closing) => {}
        }
        connection.as_mut().graceful_shutdown();
        // Give the refusal time to reach the client.
        let ended = tokio::time::timeout(limits.closing, connection).await;
        ended.map_or(Ok(()), |end| end.map_err(|error| error.to_string()))
    }

    async fn answer(
        self,
        peer: Peer,
        standing: AdmittedStreams,
        request: http::Request<Incoming>,
    ) -> http::Response<Body> {
        match request.uri().path() {
            DELTA_PATH if self.inner.params.delta => {
                self.stream::<Delta>(peer, standing, request).await
            }
            FULL_PATH => self.stream::<Full>(peer, standing, request).await,
            _ => Status::unimplemented("this method is not served").into_http(),
        }
    }

    async fn stream<V: Variant>(
        self,
        peer: Peer,
        standing: AdmittedStreams,
        request: http::Request<Incoming>,
    ) -> http::Response<Body> {
        let most = self.inner.params.limits.request_bytes;
        let begin = tower::service_fn(move |requests: tonic::Request<Streaming<V::Request>>| {
            ready(self.begin::<V>(&peer, &standing, requests.into_inner()))
        });
        let codec = ProstCodec::<V::Response, V::Request>::default();
        tonic::server::Grpc::new(codec)
            .max_decoding_message_size(most)
            .streaming(begin, request)
            .await
    }

    /// Begins a stream, if there is space for one.
    fn begin<V: Variant>(
        &self,
        peer: &Peer,
        standing: &AdmittedStreams,
        requests: Streaming<V::Request>,
    ) -> Result<Response<ResponseStream<V>>, Status> {
        let place = admission::place(&self.inner, peer, &self.streams).map_err(|refusal| {
            if refusal == Refusal::Denied {
                standing.refuse();
            }
            stream_task::reject(&self.inner, peer, "", refusal)
        })?;
        // One: the next response is built when this one is on its way.
        let (sender, receiver) = mpsc::channel(1);
        let (inner, closing) = (self.inner.clone(), self.closing.clone());
        let client = (peer.clone(), standing.clone());
        tokio::spawn(async move {
            stream_task::run::<V>(inner, client, requests, sender, closing).await;
            drop(place);
        });
        Ok(Response::new(Box::pin(stream_of(receiver))))
    }
}

/// The admitted streams of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct AdmittedStreams {
    /// Streams that were admitted and have not ended.
    streams: Arc<watch::Sender<usize>>,
    /// Notified when a client's identity was refused.
    refused: Arc<Notify>,
}

impl AdmittedStreams {
    /// Counts a stream as admitted until what is returned is dropped.
    pub(super) fn admit(&self) -> Admitted {
        self.streams.send_modify(|count| *count += 1);
        Admitted(self.streams.clone())
    }

    /// Records that a client's identity was refused.
    pub(super) fn refuse(&self) {
        self.refused.notify_one();
    }

    /// Completes when no stream was admitted for long, or one was refused and there is no other.
    async fn lost(&self, limit: Duration) {
        let mut streams = self.streams.subscribe();
        loop {
            // The sender is `self`'s, so it does not go away.
            let _ = streams.wait_for(|count| *count == 0).await;
            tokio::select! {
                () = tokio::time::sleep(limit) => return,
                () = self.refused.notified() => return,
                _ = streams.wait_for(|count| *count > 0) => {}
            }
        }
    }
}

/// A stream that was admitted.
#[derive(Debug)]
pub(super) struct Admitted(Arc<watch::Sender<usize>>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A client needs one; the others are for its next one to begin before this one ended.
const STREAMS_PER_CONNECTION: u32 = 8;
/// Bytes per stream that are handed to a connection and not written.
const SEND_BUFFER: usize = 64 * 1024;
/// Bytes of headers; gRPC's own are some 300.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

type ResponseStream<V> =
    Pin<Box<dyn Stream<Item = Result<<V as Variant>::Response, Status>> + Send>>;
