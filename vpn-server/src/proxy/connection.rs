//! One connection of an API server, from accept to close.
//!
//! ```text
//!   TLS handshake ─▶ request ─▶ dial ─▶ 200 ─▶ relay ─▶ close
//!                                └─ refused ─▶ answer
//! ```
//!
//! Parses no request and writes no answer; that is the `connect` crate's business.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use connect::{AcceptError, Accepted, Downstream, End, Exchange, Params, Refusal, Stream};
use relay::{Peer, Timers, relay_streams};
use serve::{ConnRecord, Reason};
use tokio::net::TcpStream;

use super::{Worker, dial};

/// How long after the destination's own deadline a dial is given up whatever it does.
const DIAL_SLACK: Duration = Duration::from_secs(2);

/// Serves one accepted connection until it ends.
pub(super) async fn serve(stream: TcpStream, worker: Rc<Worker>, record: ConnRecord) {
    let shared = &*worker.shared;
    let limit = shared.limits.preamble_timeout.0;
    let accepted = connect::accept_tls(stream, shared.tls.config(), limit).await;
    let Accepted {
        stream,
        server_name,
    } = match accepted {
        Ok(accepted) => accepted,
        Err(error) => {
            let (peer, reason) = (record.info().peer(), error.reason());
            tracing::debug!(%peer, reason, error = %telemetry::chain(&error), "TLS handshake failed");
            shared.metrics.handshakes.with(&[reason]).inc();
            return record.close(handshake_reason(&error));
        }
    };
    if let Some(name) = &server_name {
        record.set_server_name(name);
    }
    // On the heap: each future that takes it over has a place of its own for it.
    let mut stream = Downstream::new(Box::new(stream));
    // On the heap, so that an open tunnel does not carry the memory that opening it took.
    let reason = match Box::pin(open(&mut stream, &worker, &record)).await {
        Ok((upstream, early)) => relay(stream, upstream, early, &worker, &record).await,
        Err(reason) => reason,
    };
    record.close(reason);
}

/// Reads the request, connects to what it asks for while the client stays, and answers.
///
/// # Errors
/// Why there is no tunnel; the client was answered.
async fn open<S: Stream>(
    stream: &mut Downstream<S>,
    worker: &Worker,
    record: &ConnRecord,
) -> Result<(TcpStream, Bytes), Reason> {
    let shared = &*worker.shared;
    let params = Params {
        head_limit: shared.limits.preamble_timeout.0,
        dial_limit: shared.config.connect_timeout.0 + DIAL_SLACK,
        ..Params::default()
    };
    let mut exchange = Exchange::new(stream, &params);
    let opened = open_tunnel(&mut exchange, worker, record).await;
    if let Some(status) = exchange.status() {
        // One of ours, and so from a closed set.
        shared.metrics.answers.with(&[&status.to_string()]).inc();
    }
    opened
}

async fn open_tunnel<S: Stream>(
    exchange: &mut Exchange<'_, S>,
    worker: &Worker,
    record: &ConnRecord,
) -> Result<(TcpStream, Bytes), Reason> {
    let request = exchange.request().await.map_err(reason)?;
    record.set_connect(&request.target);
    let dialed = exchange.while_connected(dial::dial(&request, worker));
    match dialed.await.map_err(reason)? {
        Ok((upstream, address)) => {
            record.set_endpoint_address(address);
            let early = exchange.accept().await.map_err(reason)?;
            Ok((upstream, early))
        }
        Err(error) => {
            let (status, reason) = (error.status(), error.reason());
            let text = telemetry::chain(&error);
            tracing::debug!(target = request.target, status, error = %text, "dial failed");
            let refusal = Refusal::new(status, reason.as_str(), format!("{text}\n"));
            exchange.refuse(&refusal).await;
            Err(reason)
        }
    }
}

/// Relays until the tunnel ends, and returns why it did.
async fn relay<S: Stream>(
    mut stream: S,
    mut upstream: TcpStream,
    early: Bytes,
    worker: &Worker,
    record: &ConnRecord,
) -> Reason {
    let timers = Timers {
        idle: worker.shared.config.idle_timeout.non_zero(),
        deadline: None,
    };
    let downstream = Peer {
        stream: &mut stream,
        socket: S::fd,
    };
    let upstream = Peer {
        stream: &mut upstream,
        socket: |stream| Some(stream.as_fd()),
    };
    let meter = record.info().as_ref();
    let pool = &worker.handle.pool;
    let relayed = relay_streams(downstream, upstream, early, pool, meter, timers);
    Reason::from(&relayed.await)
}

fn handshake_reason(error: &AcceptError) -> Reason {
    match error {
        AcceptError::NotTls(_) => Reason::NotTls,
        AcceptError::TimedOut(_) => Reason::PreambleTimeout,
        AcceptError::BadClientCertificate(_) | AcceptError::NoClientCertificate => {
            Reason::SourceDenied
        }
        AcceptError::Gone(_) | AcceptError::RefusedByClient(_) => Reason::DownstreamReset,
        // Protocols that do not fit, and what that crate may distinguish later.
        AcceptError::Unsuccessful(_) | _ => Reason::Malformed,
    }
}

/// Returns why a connection without a tunnel ended.
fn reason(end: End) -> Reason {
    match end {
        End::AnswerTimeout | End::ClientGone => Reason::DownstreamReset,
        End::DialTimeout => Reason::ConnectTimeout,
        End::HeadTimeout => Reason::PreambleTimeout,
        End::Malformed | End::MethodNotAllowed => Reason::Malformed,
        End::TooLarge => Reason::PreambleTooLong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_future_is_small() {
        let size = testkit::size_of_future(serve);
        assert!(size <= 1024, "{size} bytes");
    }
}
