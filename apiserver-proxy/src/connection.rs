//! One connection, from accept to close.
//!
//! ```text
//!     gateway ─▶ announce: PROXY header, or CONNECT and its 200 ─▶ relay
//! ```
//!
//! [`serve`] and, for all before the relay, [`establish`] read top to bottom. Nothing of the client's bytes is looked at.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use preamble::{Progress, ResponseHead, Version, encode_connect, encode_v1, encode_v2};
use relay::{Direction, Meter, Relay, Socket, Stopped, Timers};
use serve::{ConnRecord, Reason, Resumed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::config::Announce;
use crate::worker::Worker;

/// The header by which the gateway is told where to go.
const DESTINATION_HEADER: &str = "X-Gardener-Destination";

/// Bytes of the answer to a CONNECT; gateways answer in a line or two.
const ANSWER_BYTES: usize = 16 * 1024;

/// Bytes of the client's that are sent along with a PROXY header when they are already there.
const ALONG_BYTES: usize = 2048;

/// How a connection begins here.
#[derive(Debug)]
pub(crate) enum Begin {
    /// It was accepted.
    Accepted(Socket),
    /// It was relayed before, here or by another process.
    Relayed(Established),
}

/// A connection that only has to be relayed.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) downstream: Socket,
    pub(crate) upstream: Socket,
    /// How far it was, if it was relayed before.
    pub(crate) stopped: Option<Box<Stopped>>,
}

/// Serves one connection until it ends or moves to another process; boxed, since it is moved before the relay
/// starts.
pub(crate) async fn serve(begin: Box<Begin>, worker: Rc<Worker>, record: ConnRecord) {
    let Established {
        downstream,
        upstream,
        stopped,
    } = match Box::pin(establish(begin, &worker, &record)).await {
        Ok(established) => established,
        Err(reason) => return record.close(reason),
    };
    let (info, pool) = (record.info().as_ref(), Rc::clone(&worker.handle.pool));
    let (down, up, timers) = (&downstream, &upstream, Timers::default());
    let mut relay = match stopped {
        None => Relay::new(down, up, pool, info, timers),
        Some(stopped) => Relay::resume(down, up, pool, info, timers, *stopped),
    };
    let ended = worker.handle.movable.run(&mut relay).await;
    drop(relay);
    match ended {
        Ok(outcome) => record.close(Reason::from(&outcome)),
        Err(stopped) => worker.handle.movable.hand_over(Resumed {
            record,
            downstream,
            upstream,
            stopped,
        }),
    }
}

/// Connects to the gateway and announces the client and its destination.
async fn establish(
    begin: Box<Begin>,
    worker: &Worker,
    record: &ConnRecord,
) -> Result<Established, Reason> {
    // Here the box ends before the relay begins.
    let mut downstream = match *begin {
        Begin::Accepted(downstream) => downstream,
        Begin::Relayed(relayed) => return Ok(relayed),
    };
    let shared = &*worker.shared;
    record.set_route(Arc::clone(&shared.route));
    if !record.acquire_cluster() {
        return Err(Reason::Limit);
    }

    // The gateway, within one time limit for connecting and for its answer.
    let deadline = Instant::now() + shared.upstream.connect_timeout.0;
    let mut upstream = connect(worker, record, deadline).await?;

    // The announcement: the client and its destination.
    let announced = announce(&mut downstream, &mut upstream, worker, record, deadline).await;
    match announced {
        Ok(()) => Ok(Established {
            downstream,
            upstream,
            stopped: None,
        }),
        Err(reason) => {
            // As in the relay, a reset of one side is one for the other.
            if reason == Reason::UpstreamReset {
                relay::reset_on_close(&downstream);
            } else if reason == Reason::DownstreamReset {
                relay::reset_on_close(&upstream);
            }
            Err(reason)
        }
    }
}

/// Announces the client and its destination to the gateway.
async fn announce(
    downstream: &mut Socket,
    upstream: &mut Socket,
    worker: &Worker,
    record: &ConnRecord,
    deadline: Instant,
) -> Result<(), Reason> {
    match &worker.shared.upstream.announce {
        Announce::Connect { destination } => {
            record.set_connect(destination);
            ask(downstream, upstream, destination, worker, record, deadline).await
        }
        Announce::Proxy {
            version,
            destination,
        } => {
            let peer = record.info().peer();
            let local = downstream.local_addr().map_or(peer, serve::unmapped);
            let destination = destination.unwrap_or(local);
            record.set_destination(destination);
            let header = header(*version, peer, destination);
            tell(downstream, upstream, header, record, deadline).await
        }
    }
}

async fn connect(
    worker: &Worker,
    record: &ConnRecord,
    deadline: Instant,
) -> Result<Socket, Reason> {
    let shared = &*worker.shared;
    let cluster = shared.route.cluster();
    let Some(endpoint) = cluster.endpoints().first() else {
        return Err(Reason::NoEndpoint);
    };
    let offset = worker.next_offset();
    let dialed = shared
        .dialer
        .connect(
            endpoint.address(),
            &shared.names,
            &shared.config.tcp_options,
            deadline,
            offset,
        )
        .await;
    match dialed {
        Ok((upstream, addr)) => {
            cluster.connect_succeeded(endpoint);
            record.set_endpoint(Arc::clone(endpoint), addr);
            Ok(upstream)
        }
        Err(error) => {
            tracing::debug!(error = %telemetry::chain(&error), "connecting the gateway failed");
            if !error.is_local() {
                cluster.connect_failed(endpoint, error.failure(), Instant::now().into_std());
            }
            Err(error.reason())
        }
    }
}

fn header(version: Version, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128 + ALONG_BYTES);
    match version {
        Version::V1 => encode_v1(source, destination, &mut bytes),
        Version::V2 => {
            let encoded = encode_v2(source, destination, &[], false, &mut bytes);
            debug_assert!(encoded.is_ok(), "a header without TLVs always fits");
        }
    }
    bytes
}

/// Sends the PROXY header, in one segment with what the client has sent already.
async fn tell(
    downstream: &Socket,
    upstream: &mut Socket,
    mut bytes: Vec<u8>,
    record: &ConnRecord,
    deadline: Instant,
) -> Result<(), Reason> {
    let header_len = bytes.len();
    // Nothing there yet, or an end: the relay will see it again. An error it would not.
    match downstream.try_first_read(&mut bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
            return Err(Reason::DownstreamReset);
        }
        Err(_) | Ok(_) => {}
    }
    match timeout_at(deadline, upstream.write_all(&bytes)).await {
        Ok(Ok(())) => {
            record.forwarded(bytes.len() - header_len);
            Ok(())
        }
        Ok(Err(_)) => Err(Reason::UpstreamReset),
        Err(_) => Err(Reason::ConnectTimeout),
    }
}

/// Sends a CONNECT request and waits for the gateway's consent. Bytes that follow its answer are
/// the destination's and are handed to the client.
async fn ask(
    downstream: &mut Socket,
    upstream: &mut Socket,
    destination: &str,
    worker: &Worker,
    record: &ConnRecord,
    deadline: Instant,
) -> Result<(), Reason> {
    let mut request = Vec::with_capacity(256);
    let target = worker.shared.upstream.address.to_string();
    let headers = [(DESTINATION_HEADER, destination)];
    encode_connect(&target, &headers, &mut request).map_err(|error| {
        tracing::error!(%error, "the CONNECT request cannot be written");
        Reason::Internal
    })?;
    let answer = timeout_at(deadline, async {
        let written = upstream.write_all(&request).await;
        written.map_err(|_| Reason::UpstreamReset)?;
        read_answer(upstream).await
    });
    let early = answer.await.map_err(|_| Reason::ConnectTimeout)??;
    if !early.is_empty() {
        let written = timeout_at(deadline, downstream.write_all(&early)).await;
        if !matches!(written, Ok(Ok(()))) {
            return Err(Reason::DownstreamReset);
        }
        record
            .info()
            .relayed(Direction::Tx, early.len() as u64, true);
    }
    Ok(())
}

/// Reads the answer to a CONNECT; returns what came behind it.
async fn read_answer(upstream: &mut Socket) -> Result<Vec<u8>, Reason> {
    let mut buf = Vec::with_capacity(512);
    loop {
        match upstream.read_buf(&mut buf).await {
            Ok(0) | Err(_) => return Err(Reason::UpstreamReset),
            Ok(_) => {}
        }
        match ResponseHead::parse_final(&buf, ANSWER_BYTES) {
            Ok(Progress::Need { .. }) => {}
            Ok(Progress::Done { value, consumed }) if value.is_success() => {
                return Ok(buf.split_off(consumed));
            }
            Ok(Progress::Done { value, .. }) => {
                let status = value.status();
                tracing::debug!(status, "the gateway refused the CONNECT");
                return Err(Reason::ConnectFailed);
            }
            Err(error) => {
                tracing::debug!(%error, "the gateway's answer to the CONNECT");
                return Err(Reason::ConnectFailed);
            }
        }
    }
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
