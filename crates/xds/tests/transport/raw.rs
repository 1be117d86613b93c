//! A client by hand: HTTP/2 by hyper, messages written down again from the API's definitions.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use xds::ResourceType;

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// A connection.
pub(crate) struct Raw {
    requests: http2::SendRequest<Body>,
    driver: JoinHandle<()>,
}

impl Raw {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let tcp = TcpStream::connect(addr).await.unwrap();
        let (requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp))
            .await
            .unwrap();
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { requests, driver }
    }

    /// Waits until the server closes it.
    pub(crate) async fn closed(mut self) {
        (&mut self.driver).await.unwrap();
    }

    pub(crate) async fn delta(&mut self) -> RawStream {
        self.open("/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources")
            .await
    }

    pub(crate) async fn open(&mut self, path: &str) -> RawStream {
        let (sender, mut receiver) = mpsc::unbounded_channel::<Bytes>();
        let frames = futures_util::stream::poll_fn(move |cx| {
            let next = receiver.poll_recv(cx);
            next.map(|bytes| bytes.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))))
        });
        let request = http::Request::post(format!("http://server{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(StreamBody::new(frames).boxed_unsync())
            .unwrap();
        let response = self.requests.send_request(request).await.unwrap();
        let status = response.headers().get("grpc-status").cloned();
        RawStream {
            sender,
            status: status.map(|status| status.to_str().unwrap().to_owned()),
            body: response.into_body(),
            read: BytesMut::new(),
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A stream of the incremental variant.
pub(crate) struct RawStream {
    sender: mpsc::UnboundedSender<Bytes>,
    status: Option<String>,
    body: Incoming,
    read: BytesMut,
}

impl RawStream {
    pub(crate) fn send(&self, request: &DeltaRequest) {
        self.send_bytes(&request.frame());
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.sender.send(Bytes::copy_from_slice(bytes)).unwrap();
    }

    /// The next response.
    pub(crate) async fn response(&mut self) -> DeltaResponse {
        loop {
            if self.read.len() >= 5 {
                let len = u32::from_be_bytes(self.read[1..5].try_into().unwrap());
                let len = usize::try_from(len).unwrap();
                if self.read.len() >= 5 + len {
                    self.read.advance(5);
                    return DeltaResponse::decode(self.read.split_to(len)).unwrap();
                }
            }
            let frame = self.body.frame().await.unwrap().unwrap();
            self.read.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The status with which the server ends it.
    pub(crate) async fn status(&mut self) -> String {
        loop {
            if let Some(status) = self.status.take() {
                return status;
            }
            let frame = self.body.frame().await.unwrap().unwrap();
            if let Ok(trailers) = frame.into_trailers() {
                let status = trailers.get("grpc-status").cloned();
                self.status = status.map(|status| status.to_str().unwrap().to_owned());
            }
        }
    }
}

pub(crate) fn features(features: &[&str]) -> Node {
    Node {
        id: "raw".into(),
        cluster: "default".into(),
        client_features: features.iter().map(ToString::to_string).collect(),
    }
}

#[derive(Clone, Message)]
pub(crate) struct Node {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) cluster: String,
    #[prost(string, repeated, tag = "10")]
    pub(crate) client_features: Vec<String>,
}

#[derive(Clone, Message)]
pub(crate) struct DeltaRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) node: Option<Node>,
    #[prost(string, tag = "2")]
    pub(crate) type_url: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) subscribe: Vec<String>,
}

impl DeltaRequest {
    pub(crate) fn of(kind: ResourceType) -> Self {
        Self {
            type_url: kind.type_url().to_owned(),
            ..Self::default()
        }
    }

    /// With the five bytes that gRPC puts before a message.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let message = self.encode_to_vec();
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(&message);
        frame
    }
}

#[derive(Clone, Message)]
pub(crate) struct DeltaResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<Named>,
    #[prost(string, repeated, tag = "6")]
    pub(crate) removed: Vec<String>,
}

#[derive(Clone, Message)]
pub(crate) struct Named {
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}
