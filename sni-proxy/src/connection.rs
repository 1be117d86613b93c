//! One connection, from accept to close.
//!
//! ```text
//!     preamble ─▶ client ─▶ route ─▶ endpoint ─▶ hand over ─▶ relay
//!                             └─▶ terminate, where the route says so
//! ```
//!
//! [`serve`] and, for all before the relay, [`establish`] read top to bottom; every step either
//! goes on or names the reason it ends with. What comes before the relay lives in a box that is
//! gone when it starts, because what remains is multiplied by every idle connection.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use preamble::{HttpVersion, encode_v1, encode_v2};
use relay::{Relay, Socket, Stopped, Timers};
use route::{Cluster, Endpoint, OnListener, PickContext, ProxyVersion, Route, TcpOptions};
use serve::{ConnRecord, Reason, RelayRecord, Resumed};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::answer::Answer;
use crate::config::{ListenerConfig, Otherwise};
use crate::preamble::{
    AddressPair, ClientNote, Expected, Preamble, Refusal, RouteKey, Target, read,
};
use crate::terminate::{self, Terminated};
use crate::worker::{Listener, Worker};

/// Serves one connection until it ends or moves to another process.
pub(crate) async fn serve(begin: Box<Begin>, worker: Rc<Worker>, record: ConnRecord) {
    let terminated = 'relayed: {
        let Established {
            downstream,
            upstream,
            timers,
            unread,
            stopped,
        } = match Box::pin(establish(begin, &worker, &record)).await {
            Ok(Next::Relay(established)) => established,
            // Outside of the block, so that this future has one place for this and for the relay.
            Ok(Next::Terminate(terminated)) => break 'relayed terminated,
            Err(reason) => return record.close(reason),
        };
        let (info, pool) = (record.info().as_ref(), Rc::clone(&worker.handle.pool));
        let (down, up) = (&downstream, &upstream);
        let relay = match stopped {
            None => Relay::new(down, up, pool, info, timers),
            Some(stopped) => Relay::resume(down, up, pool, info, timers, *stopped),
        };
        let mut relay = relay.paced(unread);
        let ended = worker.handle.movable.run(&mut relay).await;
        drop(relay);
        return match ended {
            Ok(outcome) => record.close(Reason::from(&outcome)),
            Err(stopped) => worker.handle.movable.hand_over(Resumed {
                record,
                downstream,
                upstream,
                stopped,
            }),
        };
    };
    let served = Box::pin(terminate::serve(terminated, &worker, &record));
    let reason = served.await;
    record.close(reason);
}

/// How a connection begins here.
#[derive(Debug)]
pub(crate) enum Begin {
    /// It was accepted.
    Accepted(Accepted),
    /// It was relayed before, here or by another process.
    Relayed(Established),
}

/// A connection as it was accepted; boxed, since it is taken apart before the relay starts.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) downstream: Socket,
    pub(crate) peer: SocketAddr,
    pub(crate) listener: Rc<Listener>,
}

/// A connection that only has to be relayed.
#[derive(Debug)]
pub(crate) struct Established {
    downstream: Socket,
    upstream: Socket,
    timers: Timers,
    /// Bytes of upstream's that may wait to be read; 0 leaves it to the kernel.
    unread: u32,
    /// How far it was, if it was relayed before.
    stopped: Option<Box<Stopped>>,
}

impl Established {
    /// Goes on with a relay that has stopped, by what holds for it today.
    pub(crate) fn resume(
        relay: Resumed,
        listener: Option<&Listener>,
        worker: &Worker,
    ) -> (Self, ConnRecord) {
        let Resumed {
            record,
            downstream,
            upstream,
            stopped,
        } = relay;
        let route = record.info().route();
        let [idle, age] = worker.shared.config.limits.of(route.map(AsRef::as_ref));
        let old = record.info().age();
        let deadline = age.map(|age| Instant::now() + age.saturating_sub(old));
        let unread = match (route, listener) {
            (Some(route), Some(listener)) => {
                upstream_tcp(route.cluster(), &listener.config, worker).receive_buffer
            }
            (Some(_) | None, Some(_) | None) => 0,
        };
        let established = Self {
            downstream,
            upstream,
            timers: Timers { idle, deadline },
            unread,
            stopped: Some(Box::new(stopped)),
        };
        (established, record)
    }
}

/// What is to be done with a connection whose route is known.
enum Next {
    Relay(Established),
    /// Its TLS ends here.
    Terminate(Box<Terminated>),
}

/// Connects a client to the endpoint it asks for, unless its TLS ends here, or answers why not.
async fn establish(
    begin: Box<Begin>,
    worker: &Rc<Worker>,
    record: &ConnRecord,
) -> Result<Next, Reason> {
    let Accepted {
        mut downstream,
        peer,
        listener,
    } = match *begin {
        // Here the box ends before the relay begins.
        Begin::Accepted(accepted) => accepted,
        Begin::Relayed(relayed) => return Ok(Next::Relay(relayed)),
    };
    let shared = &*worker.shared;
    let limits = &shared.config.limits;
    let accepted = Instant::now();

    // The preamble: the client and its destination.
    let expected = Expected {
        protocol: listener.config.protocol,
        proxy_protocol: listener.config.proxy_protocol,
        trusted: shared.config.trusts(peer.ip()),
        limit: limits.preamble_bytes.as_usize(),
        deadline: accepted + limits.preamble_timeout.0,
        connect_headers: &shared.config.connect.headers,
        redirect: shared.config.connect.otherwise == Otherwise::Redirect,
        keep_alpn: listener.context.access_log.is_on(),
        client: ClientNote {
            record,
            admission: &shared.admission,
        },
    };
    let preamble = match read(&downstream, &expected).await {
        Ok(preamble) => preamble,
        Err(refusal) => return Err(refuse(&mut downstream, refusal).await),
    };
    let client = record.info().client().ip();
    note(record, &preamble.target);
    let version = match &preamble.target {
        Target::Connect { version, .. } => Some(*version),
        Target::Destination(_) | Target::ServerName { .. } => None,
    };

    // The route: found in one snapshot; the route and its cluster are kept, the rest is not. A
    // gateway that has just begun may have to wait for its first.
    let waited = timeout_at(expected.deadline, shared.routing.first()).await;
    if waited.is_err() {
        return Err(answer(&mut downstream, Reason::NoEndpoint, version).await);
    }
    let routing = shared.routing.current();
    let table = routing.snapshot.on(listener.index);
    let route = match find(table, &preamble.target) {
        Ok(route) => Arc::clone(route),
        Err(reason) => return Err(answer(&mut downstream, reason, version).await),
    };
    record.set_route(Arc::clone(&route));
    if !route.allows(client) {
        return Err(answer(&mut downstream, Reason::SourceDenied, version).await);
    }
    if !record.acquire_cluster() {
        return Err(answer(&mut downstream, Reason::Limit, version).await);
    }

    let [idle, age] = limits.of(Some(&route));
    let deadline = age.map(|age| accepted + age);
    if let Some((termination, secrets)) = terminate::of(&route) {
        drop(routing);
        if let Some(version) = version
            && !Answer::established(version).write(&mut downstream).await
        {
            return Err(Reason::DownstreamReset);
        }
        return Ok(Next::Terminate(Box::new(Terminated {
            downstream,
            route_key: RouteKey::from(preamble.target),
            early: preamble.bytes,
            listener,
            termination,
            secrets,
            deadline,
            idle,
        })));
    }

    // The endpoint: the next one when one fails, before a byte was sent.
    let tcp = upstream_tcp(route.cluster(), &listener.config, worker);
    let connected = connect(route.cluster(), client, &tcp, &routing, worker).await;
    let (mut upstream, endpoint, endpoint_addr) = match connected {
        Ok(connected) => connected,
        Err(reason) => return Err(answer(&mut downstream, reason, version).await),
    };
    record.set_endpoint(endpoint, endpoint_addr);
    let unread = tcp.receive_buffer;
    drop(routing);

    // The handover: the answer to a CONNECT, a PROXY header of ours, what was read too early.
    if let Some(version) = version
        && !Answer::established(version).write(&mut downstream).await
    {
        relay::reset_on_close(&upstream);
        return Err(Reason::DownstreamReset);
    }
    let (first, payload) = first_bytes(preamble, route.cluster(), peer, &downstream);
    if !first.is_empty() {
        let written = timeout(limits.preamble_timeout.0, upstream.write_all(&first)).await;
        match written {
            Ok(Ok(())) => record.forwarded(payload),
            Ok(Err(_)) => {
                relay::reset_on_close(&downstream);
                return Err(Reason::UpstreamReset);
            }
            Err(_) => return Err(Reason::ConnectTimeout),
        }
    }

    Ok(Next::Relay(Established {
        downstream,
        upstream,
        timers: Timers { idle, deadline },
        unread,
        stopped: None,
    }))
}

fn note(record: &ConnRecord, target: &Target) {
    match target {
        Target::ServerName { name, alpn } => {
            if let Some(name) = name {
                record.set_server_name(name);
            }
            if let Some(alpn) = alpn {
                record.set_alpn(alpn);
            }
        }
        Target::Destination(pair) => record.set_destination(pair.destination),
        Target::Connect { value, .. } => record.set_connect(value),
    }
}

/// Finds the route to `target` among those of the connection's listener.
fn find<'a>(table: OnListener<'a>, target: &Target) -> Result<&'a Arc<Route>, Reason> {
    let (route, unknown) = match target {
        Target::ServerName {
            name: Some(name), ..
        } => (table.by_server_name(Some(name)), Reason::UnknownServerName),
        Target::ServerName { name: None, .. } => (table.by_server_name(None), Reason::NoServerName),
        Target::Destination(pair) => (
            table.by_destination(pair.destination),
            Reason::UnknownDestination,
        ),
        Target::Connect { value, .. } => (table.by_connect(value), Reason::UnknownDestination),
    };
    route.ok_or(unknown)
}

/// Finds the route that a moved relay would have today.
pub(crate) fn find_again<'a>(table: OnListener<'a>, relay: &RelayRecord) -> Option<&'a Arc<Route>> {
    match (&relay.connect, relay.destination) {
        (Some(value), _) => table.by_connect(value),
        (None, Some(destination)) => table.by_destination(destination),
        (None, None) => table.by_server_name(relay.server_name.as_deref()),
    }
}

/// Returns the options of sockets toward `cluster`: its own or the process's, and above both what the
/// listener says.
fn upstream_tcp<'a>(
    cluster: &'a Cluster,
    listener: &ListenerConfig,
    worker: &'a Worker,
) -> Cow<'a, TcpOptions> {
    let tcp = cluster.settings().tcp.as_ref();
    let tcp = tcp.map_or(&worker.shared.config.tcp_options, AsRef::as_ref);
    match &listener.upstream_tcp {
        Some(overrides) => Cow::Owned(overrides.upon(tcp)),
        None => Cow::Borrowed(tcp),
    }
}

/// Connects to an endpoint of `cluster`, trying others as often as the cluster allows.
async fn connect(
    cluster: &Cluster,
    source: IpAddr,
    tcp: &TcpOptions,
    routing: &crate::routing::Published,
    worker: &Worker,
) -> Result<(Socket, Arc<Endpoint>, SocketAddr), Reason> {
    let mut tried: Vec<Arc<Endpoint>> = Vec::new();
    let mut reason = Reason::NoEndpoint;
    for _ in 0..=cluster.settings().connect_retries {
        let picked = cluster.pick(&PickContext {
            source,
            zone: routing.zone.as_deref(),
            now: Instant::now().into_std(),
            random: worker.random(),
            tried: &tried,
        });
        let Some(endpoint) = picked else { break };
        let deadline = Instant::now() + cluster.settings().connect_timeout;
        let turn = worker.random() as usize;
        let dialer = &worker.shared.dialer;
        match dialer
            .connect(endpoint.address(), &routing.names, tcp, deadline, turn)
            .await
        {
            Ok((upstream, addr)) => {
                cluster.connect_succeeded(endpoint);
                return Ok((upstream, Arc::clone(endpoint), addr));
            }
            Err(error) => {
                reason = error.reason();
                tracing::debug!(
                    cluster = %cluster.name(),
                    endpoint = %endpoint.address(),
                    error = %telemetry::chain(&error),
                    "connecting failed"
                );
                if !error.is_local() {
                    cluster.connect_failed(endpoint, error.failure(), Instant::now().into_std());
                }
                if !error.is_worth_another() {
                    break;
                }
                tried.push(Arc::clone(endpoint));
            }
        }
    }
    Err(reason)
}

/// Returns what the upstream is sent first, and how much of it is the client's.
fn first_bytes(
    preamble: Preamble,
    cluster: &Cluster,
    peer: SocketAddr,
    downstream: &Socket,
) -> (Vec<u8>, usize) {
    let payload = preamble.bytes.len();
    let Some(version) = cluster.settings().send_proxy_protocol else {
        return (preamble.bytes, payload);
    };
    let pair = match preamble.target {
        Target::Destination(pair) => Some(pair),
        Target::Connect { .. } | Target::ServerName { .. } => preamble.balancer,
    };
    let pair = pair.unwrap_or_else(|| AddressPair {
        source: peer,
        destination: downstream.local_addr().map_or(peer, serve::unmapped),
    });
    let mut bytes = Vec::with_capacity(128 + payload);
    match version {
        ProxyVersion::V1 => encode_v1(pair.source, pair.destination, &mut bytes),
        ProxyVersion::V2 => {
            let encoded = encode_v2(pair.source, pair.destination, &[], false, &mut bytes);
            debug_assert!(encoded.is_ok(), "a header without TLVs always fits");
        }
    }
    bytes.extend_from_slice(&preamble.bytes);
    (bytes, payload)
}

/// Ends a connection whose preamble is refused.
async fn refuse(downstream: &mut Socket, refusal: Refusal) -> Reason {
    if let Some(answer) = refusal.answer {
        answer.write_and_linger(downstream).await;
    }
    refusal.reason
}

/// Ends a connection for `reason`, telling a CONNECT client so.
async fn answer(downstream: &mut Socket, reason: Reason, version: Option<HttpVersion>) -> Reason {
    if let Some(version) = version {
        Answer::to_refused_connect(version, reason)
            .write_and_linger(downstream)
            .await;
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_future_stays_small() {
        let size = testkit::size_of_future(serve);
        assert!(size <= 416, "{size} bytes");
    }
}
