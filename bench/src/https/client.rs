//! The load's end: connections with a client's certificate, and requests over them.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Whom connections are made to, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    /// What it says of itself, which a gateway does not believe.
    pub(crate) user: &'static str,
    pub(crate) http1: Arc<ClientConfig>,
    pub(crate) http2: Arc<ClientConfig>,
}

/// One connection; dropping it closes it.
pub(crate) struct Connection {
    sender: Sender,
    driver: AbortHandle,
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    pub(crate) async fn connect(&self, protocol: Protocol) -> Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let config = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let name = ServerName::try_from(self.name.clone())?;
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name, stream).await.context("handshake")?;
        let io = TokioIo::new(stream);
        let (sender, driver) = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                (
                    Sender::Http1(sender),
                    tokio::spawn(async { drop(connection.await) }),
                )
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(STREAM_WINDOW);
                builder.initial_connection_window_size(CONNECTION_WINDOW);
                let (sender, connection) = builder.handshake(io).await?;
                (
                    Sender::Http2(sender),
                    tokio::spawn(async { drop(connection.await) }),
                )
            }
        };
        Ok(Connection {
            sender,
            driver: driver.abort_handle(),
        })
    }

    fn request(&self, protocol: Protocol, path: &str) -> Result<Request<Empty<Bytes>>> {
        let request = match protocol {
            Protocol::Http1 => Request::get(path).header(header::HOST, &self.name),
            Protocol::Http2 => Request::get(format!("https://{}{path}", self.name)),
        };
        let request = request
            .header(
                header::USER_AGENT,
                "kubelet/v1.34.0 (linux/amd64) kubernetes/1234567",
            )
            .header(
                header::ACCEPT,
                "application/vnd.kubernetes.protobuf,application/json",
            )
            .header("x-remote-user", self.user);
        Ok(request.body(Empty::new())?)
    }
}

impl Connection {
    /// Sends a request, and returns its answer when the head is there.
    pub(crate) async fn send(&mut self, client: &Client, path: &str) -> Result<Response<Incoming>> {
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                let request = client.request(Protocol::Http1, path)?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                let request = client.request(Protocol::Http2, path)?;
                sender.send_request(request).await?
            }
        };
        let status = response.status();
        ensure!(status.is_success(), "{path} was answered with {status}");
        Ok(response)
    }

    /// Sends a request, throws its answer away, and tells `arrived` how much of it came.
    pub(crate) async fn get(
        &mut self,
        client: &Client,
        path: &str,
        mut arrived: impl FnMut(usize),
    ) -> Result<()> {
        let mut body = self.send(client, path).await?.into_body();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                arrived(data.len());
            }
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// As clients in Go have them.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
