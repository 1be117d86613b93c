//! One gRPC stream over HTTP/2, either role: packets out, packets in, and how it ended.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{PingPong, Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::frame::Messages;
use super::packet::Packet;
use super::tap::{Control, Tap};
use super::wire::End;

#[derive(Debug)]
pub(super) struct Outgoing(pub(super) SendStream<Bytes>);

impl Outgoing {
    /// Sends `bytes` in as few DATA frames as windows and frame size allow. Two calls never share
    /// a frame.
    pub(super) async fn send(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            self.0.reserve_capacity(bytes.len());
            let capacity = poll_fn(|cx| self.0.poll_capacity(cx)).await;
            let capacity = capacity.context("the stream has ended")??;
            let part = bytes.split_to(capacity.min(bytes.len()));
            if !part.is_empty() {
                self.0.send_data(part, false)?;
            }
        }
        Ok(())
    }

    pub(super) async fn room(&mut self, bytes: usize) -> Result<()> {
        self.0.reserve_capacity(bytes);
        while self.0.capacity() < bytes {
            let capacity = poll_fn(|cx| self.0.poll_capacity(cx)).await;
            capacity.context("the stream has ended")??;
        }
        self.0.reserve_capacity(0);
        Ok(())
    }

    /// Ends the stream as a client does.
    pub(super) fn finish(&mut self) -> Result<()> {
        Ok(self.0.send_data(Bytes::new(), true)?)
    }

    /// Ends the stream as a server does.
    pub(super) fn finish_with(&mut self, code: u32, message: &str) -> Result<()> {
        Ok(self.0.send_trailers(status(code, message)?)?)
    }

    pub(super) fn reset(&mut self) {
        self.0.send_reset(Reason::CANCEL);
    }
}

#[derive(Debug)]
pub(super) struct Incoming {
    stream: RecvStream,
    messages: Messages,
}

impl Incoming {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            messages: Messages::default(),
        }
    }

    /// Returns the next packet, nothing at the end. The window is given back as packets are taken,
    /// as grpc-go does it.
    pub(super) async fn next(&mut self) -> Result<Option<Packet>> {
        loop {
            if let Some(packet) = self.messages.next()? {
                return Ok(Some(packet));
            }
            let Some(piece) = self.stream.data().await else {
                if !self.messages.is_empty() {
                    bail!("the stream ended inside a message");
                }
                return Ok(None);
            };
            let piece = piece?;
            self.stream.flow_control().release_capacity(piece.len())?;
            self.messages.push(&piece);
        }
    }

    /// Says how the stream ended after [`Incoming::next`] returned nothing.
    pub(super) async fn end(&mut self) -> End {
        match self.stream.trailers().await {
            Ok(Some(trailers)) => End::of(&trailers).unwrap_or(End::Closed),
            Ok(None) => End::Closed,
            Err(error) => End::Failed(error.to_string()),
        }
    }
}

/// Opens a client's connection: Go's windows at the start, and no bound of small frames, which Go
/// has not either. It lasts until it ends or its control cuts it.
pub(super) async fn connect<S>(
    socket: S,
    control: Control,
) -> Result<(SendRequest<Bytes>, PingPong, Arc<Control>)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (tap, control) = Tap::new(socket, control, 0, Duration::ZERO);
    let mut builder = h2::client::Builder::new();
    let handshake = builder.data_frame_budget(usize::MAX).handshake(tap).await;
    let (requests, mut connection) = handshake.context("the HTTP/2 handshake")?;
    let pings = connection.ping_pong();
    let pings = pings.context("a connection has one owner of its pings")?;
    let cut = Arc::clone(&control);
    tokio::spawn(async move {
        tokio::select! {
            _ = connection => {}
            () = cut.cut.notified() => {}
        }
    });
    Ok((requests, pings, control))
}

/// Makes the request of a call as grpc-go makes it.
pub(super) fn request(uri: &str, metadata: &[(String, String)]) -> Result<Request<()>> {
    let mut builder = Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "grpc-go/1.83.0");
    for (name, value) in metadata {
        builder = builder.header(name, value);
    }
    builder.body(()).context("making a request")
}

/// Makes an answer that ends the call at once.
pub(super) fn refusal(code: u32, message: &str) -> Result<Response<()>> {
    let mut response = Response::new(());
    *response.headers_mut() = status(code, message)?;
    let kind = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    Ok(response)
}

fn status(code: u32, message: &str) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    map.insert("grpc-status", code.into());
    map.insert("grpc-message", message.parse()?);
    Ok(map)
}

pub(super) fn values(headers: &HeaderMap, key: &str) -> Vec<String> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.get_all(key).iter().map(text).collect()
}
