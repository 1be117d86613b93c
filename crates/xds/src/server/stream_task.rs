//! The life of one stream: its first request, then requests and responses until either side ends.
//!
//! Responses are built when the transport takes them, one at a time; requests are read no faster
//! than their rate allows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::OptionFuture;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::admission::{Peer, Refusal, admit};
use super::clients::{ClientEntry, ClientStatus};
use super::serve::AdmittedStreams;
use super::store::Store;
use super::stream::{Excess, Handled, Stream};
use super::{Gateway, Inner, ServerLimits};
use crate::proto::discovery::Node;
use crate::resource::{Audience, ResourceType};

/// What differs between the two variants of the protocol.
pub(super) trait Variant: Send + 'static {
    type Request: Message + Default + Send + 'static;
    type Response: Message + Send + 'static;
    const DELTA: bool;

    fn node(request: &Self::Request) -> Option<&Node>;

    /// Handles a request.
    fn on_request(
        stream: &mut Stream,
        store: &Store,
        now: Instant,
        request: Self::Request,
    ) -> Result<Handled, Excess>;

    /// Builds the next response, if one is due now.
    fn next_response(
        stream: &mut Stream,
        store: &Store,
        now: Instant,
    ) -> Option<(ResourceType, Self::Response)>;
}

/// Where responses go.
pub(super) type Responses<V> = mpsc::Sender<Result<<V as Variant>::Response, Status>>;

/// Serves a stream to its end. `closing` ends it with `UNAVAILABLE`.
pub(super) async fn run<V: Variant>(
    inner: Arc<Inner>,
    (peer, standing): (Peer, AdmittedStreams),
    mut requests: Streaming<V::Request>,
    responses: Responses<V>,
    mut closing: watch::Receiver<bool>,
) {
    let serving = async {
        let (gateway, first) = begin::<V>(&inner, &peer, &standing, &mut requests).await?;
        let _admitted = standing.admit();
        let client = Client::<V>::enter(&inner, gateway, &peer, &first);
        client.serve(first, requests, &responses).await
    };
    let end = tokio::select! {
        end = serving => end,
        _ = closing.wait_for(|closing| *closing) => Err(Status::unavailable("the server stops")),
        () = responses.closed() => Ok(()),
    };
    if let Err(status) = end {
        tracing::debug!(peer = %peer.addr, %status, "xDS stream closed");
        let told = responses.send(Err(status));
        let _ = tokio::time::timeout(inner.params.limits.closing, told).await;
    }
}

/// Waits for the first request and admits the client.
async fn begin<V: Variant>(
    inner: &Inner,
    peer: &Peer,
    standing: &AdmittedStreams,
    requests: &mut Streaming<V::Request>,
) -> Result<(Arc<Gateway>, V::Request), Status> {
    let limit = inner.params.limits.handshake;
    let first = match tokio::time::timeout(limit, requests.message()).await {
        Ok(Ok(Some(first))) => first,
        Ok(Ok(None)) => return Err(Status::cancelled("the client went away")),
        Ok(Err(_)) => return Err(refuse(inner, Refusal::Malformed)),
        Err(_) => return Err(refuse(inner, Refusal::Timeout)),
    };
    match admit(inner, peer, V::node(&first)) {
        Ok(gateway) => Ok((gateway, first)),
        Err(refusal) => {
            let node = V::node(&first).map_or("", |node| &node.id);
            if matches!(refusal, Refusal::Denied | Refusal::UnknownGateway) {
                standing.refuse();
            }
            Err(reject(inner, peer, node, refusal))
        }
    }
}

/// Logs a refused client and returns the status that it gets.
pub(super) fn reject(inner: &Inner, peer: &Peer, node: &str, refusal: Refusal) -> Status {
    static LIMIT: telemetry::Throttle = telemetry::Throttle::new(Duration::from_secs(10));
    if let Some(suppressed) = LIMIT.permit(Instant::now().into_std()) {
        tracing::warn!(
            peer = %peer.addr,
            node = super::clients::cut(node, 256),
            reason = refusal.as_str(),
            suppressed,
            "xDS stream refused"
        );
    }
    refuse(inner, refusal)
}

fn refuse(inner: &Inner, refusal: Refusal) -> Status {
    inner.metrics.refused(refusal.as_str());
    refusal.status()
}

/// A client that was admitted; leaves when dropped.
struct Client<V> {
    gateway: Arc<Gateway>,
    audience: Audience,
    place: ClientEntry,
    stream: Stream,
    rate: Rate,
    /// Whether it counts among the clients that refuse a type.
    refusing: [bool; ResourceType::ALL.len()],
    variant: std::marker::PhantomData<V>,
}

impl<V: Variant> Client<V> {
    fn enter(inner: &Inner, gateway: Arc<Gateway>, peer: &Peer, first: &V::Request) -> Self {
        let node = V::node(first);
        let parts = node.is_some_and(|node| {
            node.client_features
                .iter()
                .any(|feature| feature == crate::grpc::LISTENER_PARTS)
        });
        let audience = if parts {
            Audience::Parts
        } else {
            Audience::Whole
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let status = ClientStatus {
            node: node.map(|node| node.id.clone()).unwrap_or_default(),
            gateway: gateway.name.to_string(),
            peer: peer.addr,
            audience,
            delta: V::DELTA,
            since: since.unwrap_or_default().as_secs(),
            types: BTreeMap::new(),
        };
        gateway.metrics.clients.inc();
        if audience == Audience::Whole {
            gateway.whole_clients.send_if_modified(|count| {
                *count += 1;
                *count == 1
            });
        }
        let limits = &inner.params.limits;
        Self {
            place: inner.clients.enter(status),
            stream: Stream::new(audience, peer.names.is_some(), limits.clone()),
            rate: Rate::new(limits, Instant::now()),
            refusing: Default::default(),
            audience,
            gateway,
            variant: std::marker::PhantomData,
        }
    }

    async fn serve(
        mut self,
        first: V::Request,
        mut requests: Streaming<V::Request>,
        responses: &Responses<V>,
    ) -> Result<(), Status> {
        let mut changed = self.gateway.changed.subscribe();
        self.on_request(first)?;
        let mut next = None;
        loop {
            if next.is_none() {
                next = self.next_response();
            }
            let timeout = self.stream.timeout().map(sleep_until);
            let may_read = self.rate.next;
            tokio::select! {
                permit = responses.reserve(), if next.is_some() => {
                    if let (Ok(permit), Some(response)) = (permit, next.take()) {
                        permit.send(Ok(response));
                    }
                }
                request = read_at(&mut requests, may_read) => match request? {
                    Some(request) => self.on_request(request)?,
                    None => return Ok(()),
                },
                _ = changed.changed() => {
                    self.stream.pull(&self.gateway.store(), Instant::now());
                }
                Some(()) = OptionFuture::from(timeout), if next.is_none() => {}
            }
        }
    }

    fn on_request(&mut self, request: V::Request) -> Result<(), Status> {
        let now = Instant::now();
        self.rate.take(now);
        let handled = {
            let store = self.gateway.store();
            V::on_request(&mut self.stream, &store, now, request)
        };
        let handled = handled.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        match handled {
            Handled::Acked(kind) => {
                self.gateway.metrics.of(kind).acks.inc();
                self.place.set(kind, self.stream.progress(kind));
            }
            Handled::Nacked(kind, text) => {
                self.gateway.metrics.of(kind).nacks.inc();
                self.place.set(kind, self.stream.progress(kind));
                self.log_nack(kind, &text);
            }
            Handled::Other => {}
        }
        for kind in ResourceType::ALL {
            self.count_refusing(kind, self.stream.refuses(kind));
        }
        Ok(())
    }

    fn log_nack(&self, kind: ResourceType, text: &str) {
        static LIMIT: telemetry::Throttle = telemetry::Throttle::new(Duration::from_secs(1));
        if let Some(suppressed) = LIMIT.permit(Instant::now().into_std()) {
            tracing::warn!(
                gateway = %self.gateway.name,
                kind = kind.as_str(),
                text,
                suppressed,
                "NACK from a client"
            );
        }
    }

    fn next_response(&mut self) -> Option<V::Response> {
        let now = Instant::now();
        let (kind, response) = {
            let store = self.gateway.store();
            V::next_response(&mut self.stream, &store, now)?
        };
        let metrics = self.gateway.metrics.of(kind);
        metrics.pushes.inc();
        let bytes = u64::try_from(response.encoded_len()).unwrap_or(u64::MAX);
        metrics.push_bytes.add(bytes);
        self.place.set(kind, self.stream.progress(kind));
        Some(response)
    }
}

impl<V> Client<V> {
    fn count_refusing(&mut self, kind: ResourceType, refuses: bool) {
        let gauge = &self.gateway.metrics.of(kind).refusing;
        match (
            std::mem::replace(&mut self.refusing[kind as usize], refuses),
            refuses,
        ) {
            (false, true) => gauge.inc(),
            (true, false) => gauge.dec(),
            (false, false) | (true, true) => {}
        }
    }
}

impl<V> Drop for Client<V> {
    fn drop(&mut self) {
        self.gateway.metrics.clients.dec();
        for kind in ResourceType::ALL {
            self.count_refusing(kind, false);
        }
        if self.audience == Audience::Whole {
            self.gateway.whole_clients.send_if_modified(|count| {
                *count -= 1;
                *count == 0
            });
        }
    }
}

/// Reads a request, not before `at`. Cancel safe.
async fn read_at<T>(requests: &mut Streaming<T>, at: Instant) -> Result<Option<T>, Status> {
    sleep_until(at).await;
    requests.message().await
}

/// Requests that a stream may send.
#[derive(Debug)]
struct Rate {
    /// When the next one may be read.
    next: Instant,
    /// When the bucket is full again.
    full: Instant,
    interval: Duration,
    burst: Duration,
}

impl Rate {
    fn new(limits: &ServerLimits, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / limits.requests_per_second.max(1);
        Self {
            next: now,
            full: now,
            interval,
            burst: interval * limits.request_burst.max(1),
        }
    }

    fn take(&mut self, now: Instant) {
        self.full = self.full.max(now) + self.interval;
        self.next = self.full.checked_sub(self.burst).unwrap_or(now).max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_at_their_rate_after_a_burst() {
        let limits = ServerLimits {
            requests_per_second: 10,
            request_burst: 3,
            ..ServerLimits::default()
        };
        let start = Instant::now();
        let mut rate = Rate::new(&limits, start);
        for _ in 0..3 {
            rate.take(start);
            assert_eq!(rate.next, start);
        }
        rate.take(start);
        assert_eq!(rate.next, start + Duration::from_millis(100));
        rate.take(rate.next);
        assert_eq!(rate.next, start + Duration::from_millis(200));
        let later = start + Duration::from_secs(60);
        rate.take(later);
        assert_eq!(rate.next, later);
    }
}
