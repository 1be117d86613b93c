//! One connection to a server: opened, introduced, pumped until it ends.
//!
//! ```text
//! TCP ──▶ TLS ──▶ HTTP/2 ──▶ Connect ── agentid, agentidentifiers, authorization, knp-ext ──▶
//!                                    ◀── serverid, servercount, knp-ext ── Opened ──▶ Pump
//! ```
//!
//! Every step has a limit of time. Whether the server is one to keep is decided elsewhere.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request, Response};
use knp_proto::{EXTENSION_KEY, Extensions, Link, LinkConfig, StreamId, Tenant};
use rustls::pki_types::ServerName;
use tls::ClientTls;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::config::AgentConfig;
use super::dial::DialError;
use super::trust::{self, TokenError};
use super::tunnel::Tunnels;
use crate::grpc::{self, Message, PacketReceiver, PacketSender, Side};
use crate::link::{LinkHandle, News};
use crate::metrics::GrpcCode;
use crate::pump::{LinkEnd, Liveness, Pump};
use crate::read_budget::ReadBudget;

/// How long TCP, TLS and the answer to `Connect` may take, each.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// How long the rest of a connection may take to be written once it is no longer used.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);

/// The largest message that is accepted. Servers may pass on what they were given in one piece;
/// ours send 64 KiB.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Time between pings to servers of upstream's, which punish more than one in 30 s.
const PING_FOREIGN: Duration = Duration::from_secs(35);
/// Time between pings to servers of ours.
const PING_OURS: Duration = Duration::from_secs(10);
/// How long the answer to a ping may take.
const PING_LIMIT: Duration = Duration::from_secs(10);

/// What the links of a thread share.
pub(super) struct Links {
    pub(super) config: Arc<AgentConfig>,
    pub(super) tenant: Arc<Tenant>,
    pub(super) params: LinkConfig,
    pub(super) tls: ClientTls,
    pub(super) tunnels: Rc<Tunnels>,
}

/// A stream that a server has accepted.
pub(super) struct Opened {
    pub(super) link: LinkHandle,
    pub(super) introduction: Introduction,
    pump: Pump,
    _connection: Connection,
}

/// Why a server was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum OpenError {
    /// The TCP connection could not be made.
    #[error("connecting to the server")]
    Dial(#[from] DialError),
    /// HTTP/2 failed.
    #[error("speaking HTTP/2 with the server")]
    Http2(#[from] h2::Error),
    /// The server's address is none, or the agent's id cannot be sent.
    #[error("making the request")]
    Request(#[from] http::Error),
    /// What the server says of itself is missing or wrong.
    #[error("the server's answer: {0}")]
    Response(&'static str),
    /// The server refused.
    #[error("the server refused with status {status}: {message}")]
    Refused { status: String, message: String },
    /// The server was too slow.
    #[error("{step} took longer than {STEP_LIMIT:?}")]
    Timeout { step: &'static str },
    /// The handshake failed.
    #[error("the TLS handshake with the server")]
    Tls(#[source] std::io::Error),
    /// The token could not be read.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// The task that moves an HTTP/2 connection's bytes. It ends by itself when no stream uses the
/// connection any more and all is written; this makes sure that it does.
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        let task = self.0.clone();
        spawn_local(async move {
            sleep(CLOSING_LIMIT).await;
            task.abort();
        });
    }
}

impl Links {
    /// Opens stream number `stream`, beginning at the address numbered `first`. Cancel-safe:
    /// nothing stays open.
    pub(super) async fn open(&self, stream: StreamId, first: u64) -> Result<Opened, OpenError> {
        let request = self.request()?;
        let (mut requests, mut pings, connection) = self.connect(first).await?;
        let exchange = async {
            let () = std::future::poll_fn(|cx| requests.poll_ready(cx)).await?;
            let (response, sending) = requests.send_request(request, false)?;
            Ok::<_, OpenError>((response.await?, sending))
        };
        let (response, sending) = within("the answer to Connect", exchange).await??;
        let introduction = Introduction::read(&response)?;
        let extensions = introduction.extensions;
        let link = Link::agent(&self.tenant, stream, extensions, self.params);
        let link = LinkHandle::new(link, Arc::clone(&self.tunnels.metrics.link));
        let pump = Pump::new(
            link.clone(),
            PacketSender::new(sending, Side::Client),
            PacketReceiver::new(response.into_body(), MAX_MESSAGE_BYTES),
            pings.take(),
            self.liveness(extensions),
            Rc::default(),
        );
        Ok(Opened {
            link,
            introduction,
            pump,
            _connection: connection,
        })
    }

    async fn connect(
        &self,
        first: u64,
    ) -> Result<(SendRequest<Message>, Option<h2::PingPong>, Connection), OpenError> {
        let (host, port) = (&self.config.server_host, self.config.server_port);
        let dialer = &self.tunnels.dialer;
        let stream = Box::pin(dialer.dial_server(host, port, first, STEP_LIMIT)).await?;
        let name = ServerName::try_from(host.clone())
            .map_err(|_| OpenError::Response("its host is no name a certificate can have"))?;
        let stream = ReadBudget::new(stream);
        let handshake = TlsConnector::from(self.tls.config()).connect(name, stream);
        let stream = within("the TLS handshake", handshake)
            .await?
            .map_err(OpenError::Tls)?;
        let handshake = grpc::client_builder().handshake(stream);
        let (requests, mut connection) = within("the HTTP/2 handshake", handshake).await??;
        let pings = connection.ping_pong();
        let task = spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %telemetry::chain(&error), "a connection to a server");
            }
        });
        Ok((requests, pings, Connection(task.abort_handle())))
    }

    fn request(&self) -> Result<Request<()>, OpenError> {
        let config = &self.config;
        let host = &config.server_host;
        let authority = match host.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]:{}", config.server_port),
            Err(_) => format!("{host}:{}", config.server_port),
        };
        let mut request = grpc::request(grpc::CONNECT_PATH, &authority)?;
        let value = |text: &str| HeaderValue::from_str(text).map_err(http::Error::from);
        let headers = request.headers_mut();
        headers.insert("agentid", value(&config.agent_id)?);
        headers.insert("agentidentifiers", value(&config.identifiers.to_string())?);
        headers.insert(EXTENSION_KEY, value(&Extensions::ALL.to_string())?);
        headers.insert(http::header::USER_AGENT, USER_AGENT);
        if let Some(path) = &config.token {
            let token = trust::authorization(path)?;
            headers.insert(http::header::AUTHORIZATION, token);
        }
        Ok(request)
    }

    fn liveness(&self, extensions: Extensions) -> Liveness {
        let usual = if extensions.is_empty() {
            PING_FOREIGN
        } else {
            PING_OURS
        };
        Liveness {
            interval: self.config.keepalive.unwrap_or(usual),
            timeout: PING_LIMIT,
        }
    }
}

impl Opened {
    /// Serves what the server asks for until the stream ends. `drains` is called once if the server is
    /// about to end.
    pub(super) async fn serve(self, tunnels: Rc<Tunnels>, drains: impl Fn()) -> LinkEnd {
        let link = self.link;
        let _open = (tunnels.metrics.server_connection(), link.metrics().link());
        self.pump
            .run(|news| match news {
                News::Dial(id, target) => {
                    let pending = link.pending(id, target);
                    spawn_local(Rc::clone(&tunnels).serve(pending));
                }
                News::Draining => drains(),
                // A server that is suspected is asked by the pump itself.
                News::Alive(_) | News::Unrecognized(_) => {}
            })
            .await
    }
}

/// Returns the code with which a server ended its stream, whose `status` is a number and a text.
pub(super) fn code(status: Option<&str>) -> GrpcCode {
    // As upstream's library has it, which takes what has no status for a fault of the server.
    let Some(status) = status else {
        return GrpcCode::INTERNAL;
    };
    let number = status.split(' ').next().unwrap_or_default();
    number
        .parse()
        .map_or(GrpcCode::UNKNOWN, GrpcCode::from_number)
}

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) server_id: String,
    pub(super) server_count: u32,
    pub(super) extensions: Extensions,
}

impl Introduction {
    fn read<B>(response: &Response<B>) -> Result<Self, OpenError> {
        let headers = response.headers();
        if let Some((status, message)) = grpc::status_of(headers) {
            return Err(OpenError::Refused { status, message });
        }
        if response.status() != http::StatusCode::OK {
            return Err(OpenError::Refused {
                status: response.status().to_string(),
                message: "this is no gRPC".to_owned(),
            });
        }
        let wrong = OpenError::Response;
        let server_id =
            one(headers, "serverid").ok_or_else(|| wrong("not exactly one serverid"))?;
        if server_id.is_empty() || server_id.len() > MAX_ID_BYTES {
            return Err(wrong("an empty or very long serverid"));
        }
        let count =
            one(headers, "servercount").ok_or_else(|| wrong("not exactly one servercount"))?;
        // Signed, as Go prints it; what is below 1 is taken for 1 later.
        let count: i64 = (count.parse()).map_err(|_| wrong("a servercount that is no number"))?;
        let echoed = one(headers, EXTENSION_KEY).map(|value| Extensions::parse(&value));
        Ok(Self {
            server_id,
            server_count: u32::try_from(count.max(0)).unwrap_or(u32::MAX),
            extensions: Extensions::ALL.common(echoed.unwrap_or_default()),
        })
    }
}

/// Returns the value of `key` if there is exactly one, and it is text.
fn one(headers: &HeaderMap, key: &str) -> Option<String> {
    let mut values = headers.get_all(key).iter();
    let value = values.next()?;
    let text = value.to_str().ok()?.to_owned();
    values.next().is_none().then_some(text)
}

async fn within<F: Future>(step: &'static str, future: F) -> Result<F::Output, OpenError> {
    timeout(STEP_LIMIT, future)
        .await
        .map_err(|_| OpenError::Timeout { step })
}

/// The longest id of a server.
const MAX_ID_BYTES: usize = 1024;

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!(
    "rhizome-konnectivity-agent/",
    env!("CARGO_PKG_VERSION")
));

#[cfg(test)]
mod tests {
    use super::*;

    fn response(headers: &[(&'static str, &'static str)]) -> Response<()> {
        let mut response = Response::new(());
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            response.headers_mut().append(*name, value);
        }
        response
    }

    #[test]
    fn a_server_introduces_itself() {
        let head = [("serverid", "a"), ("servercount", "3")];
        let read = Introduction::read(&response(&head)).unwrap();
        assert_eq!((read.server_id.as_str(), read.server_count), ("a", 3));
        assert_eq!(read.extensions, Extensions::default());
        let extensions = (EXTENSION_KEY, "window=1,fin=1");
        let head = [head[0], ("servercount", "-1"), extensions];
        let read = Introduction::read(&response(&head)).unwrap();
        assert_eq!(read.server_count, 0);
        assert_eq!(read.extensions, Extensions::ALL);
    }

    #[test]
    fn server_without_id_is_refused() {
        let id = ("serverid", "a");
        let count = ("servercount", "3");
        for head in [
            vec![],
            vec![id],
            vec![count],
            vec![id, id, count],
            vec![id, count, count],
            vec![("serverid", ""), count],
            vec![id, ("servercount", "many")],
        ] {
            let read = Introduction::read(&response(&head));
            assert!(matches!(read, Err(OpenError::Response(_))), "{head:?}");
        }
    }

    #[test]
    fn a_refusal_is_told_with_its_text() {
        let head = [("grpc-status", "2"), ("grpc-message", "no token")];
        let error = Introduction::read(&response(&head)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server refused with status 2: no token"
        );
    }

    #[test]
    fn a_status_has_the_code_of_its_number() {
        for (status, expected) in [
            (Some("0 "), GrpcCode::OK),
            (Some("14 going away"), GrpcCode::UNAVAILABLE),
            (Some("8"), GrpcCode::RESOURCE_EXHAUSTED),
            (Some("99 ?"), GrpcCode::UNKNOWN),
            (Some("nonsense"), GrpcCode::UNKNOWN),
            (None, GrpcCode::INTERNAL),
        ] {
            assert_eq!(code(status), expected, "{status:?}");
        }
    }
}
