//! An agent's connection, from the end of the handshake to its own end.
//!
//! ```text
//!   TLS ──▶ HTTP/2 ──▶ /AgentService/Connect ──▶ agent id, token ──▶ Link, Tenant::join
//!                                                   └── refused: a gRPC status│
//!                     the pump runs until the stream ends ──▶ Tenant::leave ◀─┘
//! ```
//!
//! Identity comes from the certificate or the token, never from what the agent says of itself.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{PingPong, Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use knp_proto::{AgentId, EXTENSION_KEY, Extensions, Identifiers, Link, LinkConfig};
use serve::Phase;
use telemetry::FairPermit;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::context::{Context, HANDSHAKE};
use super::tenant::Tenant;
use crate::fair_share::{FairScheduler, Flow};
use crate::grpc::{self, Message, PacketReceiver, PacketSender, Side, refusal};
use crate::link::{LinkHandle, News};
use crate::metrics::{DialFailure, GrpcCode, PeerPort, Service};
use crate::pump::Pump;
use crate::registry::Peer;

/// Serves an agent's connection to its end. `stranger` is given back once an agent is known, and
/// what it sends is then counted in a flow within its tenant's share of the thread.
pub(crate) async fn serve<S>(
    io: S,
    peer: Peer,
    from: SocketAddr,
    stranger: FairPermit,
    (flow, shares): (Rc<Flow>, Option<FairScheduler>),
    cx: &Arc<Context>,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    // A small window for who is not known yet; a token may take a while to be checked. It is the
    // connection's: that of streams could be raised only once the agent has acknowledged the first.
    let handshake = grpc::server_builder(grpc::STREAM_WINDOW, STRANGERS_WINDOW);
    let metrics = &cx.metrics;
    let mut connection: Connection<S, Message> =
        match timeout(HANDSHAKE, handshake.handshake(io)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                tracing::debug!(%from, %error, "agent connection is not HTTP/2");
                return metrics.peer_refused(PeerPort::Agents, "http2");
            }
            Err(_) => return metrics.peer_refused(PeerPort::Agents, "handshake_timeout"),
        };
    let shared = Rc::new(Shared {
        peer,
        from,
        cx: Arc::clone(cx),
        flow,
        shares,
        pings: Cell::new(connection.ping_pong()),
        admitted: Notify::new(),
    });
    let mut stranger = Some(stranger);
    let mut streams = JoinSet::new();
    let mut begun = 0;
    // Set once no more are wanted.
    let mut leaving = false;
    // A connection on which nothing is asked for is not kept for ever.
    let mut idle = Box::pin(sleep(HANDSHAKE));
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                // The peer may not know of it yet.
                Some(Ok((_, mut respond))) if leaving => respond.send_reset(Reason::REFUSED_STREAM),
                Some(Ok((request, respond))) => {
                    streams.spawn_local(connect(request, respond, Rc::clone(&shared)));
                    begun += 1;
                    if begun == grpc::MAX_AGENT_STREAMS {
                        leaving = true;
                        connection.graceful_shutdown();
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%from, %error, "agent connection failed");
                    break;
                }
                None => break,
            },
            () = shared.admitted.notified() => {
                stranger = None;
                connection.set_target_window_size(grpc::CONNECTION_WINDOW);
            }
            Some(ended) = streams.join_next(), if !streams.is_empty() => {
                let admitted = ended.unwrap_or_else(|error| {
                    tracing::error!(%from, %error, "agent stream task failed");
                    false
                });
                if !admitted || streams.is_empty() {
                    leaving = true;
                    connection.graceful_shutdown();
                }
                if streams.is_empty() {
                    // What was sent last has a moment to get out.
                    idle.as_mut().reset(Instant::now() + FLUSH_TIMEOUT);
                }
            }
            () = &mut idle, if streams.is_empty() => break,
        }
    }
    drop(stranger);
    // The streams see the end of their connection by themselves, and end their tunnels.
    drop(connection);
    while streams.join_next().await.is_some() {}
}

/// What the streams of one connection have together.
struct Shared {
    peer: Peer,
    from: SocketAddr,
    cx: Arc<Context>,
    flow: Rc<Flow>,
    shares: Option<FairScheduler>,
    /// The connection's, for the first stream that is let in.
    pings: Cell<Option<PingPong>>,
    /// Told when a stream is let in.
    admitted: Notify,
}

/// Serves one stream of an agent's connection to its end; false if the agent was refused.
async fn connect(
    request: Request<RecvStream>,
    mut respond: SendResponse<Message>,
    shared: Rc<Shared>,
) -> bool {
    let (from, cx) = (shared.from, &shared.cx);
    let admitted = match admit(&request, &shared.peer, from, cx).await {
        Ok(admitted) => admitted,
        Err(refused) => {
            if let Some(suppressed) = cx.refusals.permit(refused.reason) {
                let (reason, text) = (refused.reason, refused.text.as_str());
                tracing::info!(%from, reason, text, suppressed, "agent refused");
            }
            cx.metrics.peer_refused(PeerPort::Agents, refused.reason);
            let response = refusal(refused.code, &refused.text);
            drop(respond.send_response(response, true));
            return false;
        }
    };
    let (tenant, agent, extensions) = (&admitted.tenant, &admitted.agent, admitted.extensions);
    shared.admitted.notify_one();
    if let Some(shares) = &shared.shares {
        shared.flow.join(shares.share(tenant.id()));
    }
    let response = headers(cx, tenant, extensions);
    let Ok(stream) = respond.send_response(response, false) else {
        return true;
    };
    let id = admitted.link.stream();
    let link = LinkHandle::new(admitted.link, Arc::clone(tenant.metrics().link()));
    let _held = (
        cx.metrics.grpc_connection(Service::Connect),
        link.metrics().link(),
    );
    let Some(joined) = tenant.join(agent.clone(), admitted.identifiers, link.clone()) else {
        let sender = PacketSender::new(stream, Side::Server);
        sender.end(GrpcCode::UNAVAILABLE, "the tenant is no longer served");
        return false;
    };
    // After it has joined, so that none is left out when the drain begins.
    if cx.drain.phase() != Phase::Serving {
        link.drain();
    }
    cx.metrics.peer_accepted(PeerPort::Agents);
    tracing::info!(%from, tenant = %tenant.id(), %agent, stream = id.0, %extensions, "agent connected");
    let pump = Pump::new(
        link,
        PacketSender::new(stream, Side::Server),
        PacketReceiver::new(request.into_body(), MAX_MESSAGE),
        shared.pings.take(),
        cx.config.agent_liveness,
        Rc::clone(&shared.flow),
    );
    let end = pump
        .run(|news| match news {
            News::Alive(alive) => tenant.set_alive(id, alive),
            News::Draining => {
                tracing::info!(tenant = %tenant.id(), %agent, stream = id.0, "agent draining");
                tenant.set_draining(id);
            }
            News::Unrecognized(answers) => {
                for _ in 0..answers {
                    tenant
                        .metrics()
                        .dial_failure(DialFailure::UnrecognizedResponse);
                }
            }
            // A server is asked for nothing.
            News::Dial(..) => {}
        })
        .await;
    drop(joined);
    let reason = end.reason();
    tracing::info!(%from, tenant = %tenant.id(), %agent, stream = id.0, reason, %end, "agent disconnected");
    true
}

/// An agent that may serve.
struct Admitted {
    tenant: Arc<Tenant>,
    agent: AgentId,
    identifiers: Identifiers,
    extensions: Extensions,
    link: Link,
}

/// Why an agent may not.
struct Refused {
    code: GrpcCode,
    reason: &'static str,
    text: String,
}

async fn admit(
    request: &Request<RecvStream>,
    peer: &Peer,
    from: SocketAddr,
    cx: &Arc<Context>,
) -> Result<Admitted, Refused> {
    grpc::check_request(request, grpc::CONNECT_PATH)
        .map_err(|text| refused(GrpcCode::UNIMPLEMENTED, "method", text))?;
    let headers = request.headers();
    let agent = agent_id(headers)?;
    let identifiers = identifiers(headers)?;
    let spec = match peer {
        Peer::Certified(spec) => Arc::clone(spec),
        Peer::ByToken { hint } => {
            let given: Vec<&HeaderValue> = headers.get_all("authorization").iter().collect();
            let check = cx.tokens.check(hint.as_ref(), &given, from.ip());
            check
                .await
                .map_err(|error| refused(GrpcCode::UNKNOWN, error.reason(), error.to_string()))?
        }
    };
    let tenant = cx.tenant(&spec).ok_or_else(|| {
        let text = "the tenant is not served".to_owned();
        refused(GrpcCode::UNAVAILABLE, "removed", text)
    })?;
    let extensions = headers.get(EXTENSION_KEY);
    let extensions = extensions.and_then(|value| value.to_str().ok());
    let extensions = Extensions::parse(extensions.unwrap_or_default()).common(Extensions::ALL);
    let stream = cx.next_stream();
    let config = LinkConfig {
        dial_timeout: cx.config.dial_timeout,
        stall_timeout: cx.config.stall_timeout,
        ..LinkConfig::default()
    };
    let link = Link::server(tenant.limits(), stream, extensions, config);
    let link = link.ok_or_else(|| {
        let text = "too many agents".to_owned();
        refused(GrpcCode::RESOURCE_EXHAUSTED, "agents", text)
    })?;
    Ok(Admitted {
        tenant,
        agent,
        identifiers,
        extensions,
        link,
    })
}

fn agent_id(headers: &HeaderMap) -> Result<AgentId, Refused> {
    match texts(headers, "agentid").as_slice() {
        [one] if one.len() <= MAX_AGENT_ID => Ok(AgentId::new(one)),
        given => {
            let given = shown(given);
            let text = format!("expected one agent ID in the context, got [{given}]");
            Err(refused(GrpcCode::UNKNOWN, "agent_id", text))
        }
    }
}

fn identifiers(headers: &HeaderMap) -> Result<Identifiers, Refused> {
    let parsed = match texts(headers, "agentidentifiers").as_slice() {
        [] => return Ok(Identifiers::default()),
        [one] => Identifiers::parse(one).map_err(|error| error.to_string()),
        given => {
            let given = shown(given);
            Err(format!(
                "expected at most one set of agent IDs in the context, got [{given}]"
            ))
        }
    };
    parsed.map_err(|text| refused(GrpcCode::UNKNOWN, "identifiers", text))
}

/// Returns all values of a key; one that is no text counts as an empty one.
fn texts<'a>(headers: &'a HeaderMap, key: &str) -> Vec<&'a str> {
    let values = headers.get_all(key).iter();
    values
        .map(|value| value.to_str().unwrap_or_default())
        .collect()
}

fn shown(values: &[&str]) -> String {
    let mut shown = values.join(" ");
    shown.truncate(shown.floor_char_boundary(MAX_AGENT_ID));
    shown
}

fn refused(code: GrpcCode, reason: &'static str, text: String) -> Refused {
    Refused { code, reason, text }
}

/// What an agent is told before anything else.
fn headers(cx: &Context, tenant: &Tenant, extensions: Extensions) -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, grpc::CONTENT_TYPE);
    if let Ok(id) = HeaderValue::from_str(&cx.config.id) {
        headers.insert("serverid", id);
    }
    let count = cx.server_count(&tenant.spec());
    headers.insert("servercount", HeaderValue::from(count));
    if !extensions.is_empty()
        && let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(extensions.to_string()))
    {
        headers.insert(EXTENSION_KEY, value);
    }
    response
}

/// Bytes of a message from an agent: upstream's send 4 KiB at a time, ours 64; the rest is error
/// texts.
const MAX_MESSAGE: usize = 256 << 10;
/// Window of a connection before its agent is known.
const STRANGERS_WINDOW: u32 = 64 << 10;
/// How long a connection without streams may take to send what is left.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of an agent's id.
const MAX_AGENT_ID: usize = 512;
