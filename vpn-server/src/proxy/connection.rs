//! One connection of an API server, from accept to close.
//!
//! ```text
//!   TLS handshake ─▶ connect::serve:  request ─▶ dial ─▶ 200 ─▶ relay
//! ```
//!
//! Reads no request and writes no answer; that is the `connect` crate's business.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use connect::{AcceptError, Dial, End, Ended, Params, Refusal, Request, Stream};

use serve::{ConnRecord, Reason};
use tokio::net::TcpStream;

use super::Worker;
use super::dial::{self, Refused};
use super::relay::relay;

/// How long after the destination's own deadline a dial is given up whatever it does.
const DIAL_SLACK: Duration = Duration::from_secs(2);

/// Serves one accepted connection until it ends.
pub(super) async fn serve(stream: TcpStream, worker: Rc<Worker>, record: ConnRecord) {
    let shared = &*worker.shared;
    let limit = shared.limits.preamble_timeout;
    let accepted = match connect::accept_tls(stream, shared.tls.config(), limit).await {
        Ok(accepted) => accepted,
        Err(error) => {
            let (peer, reason) = (record.info().peer(), error.reason());
            tracing::debug!(%peer, reason, error = %telemetry::chain(&error), "no handshake");
            shared.metrics.handshake_failed(reason);
            return record.close(handshake_reason(&error));
        }
    };
    if let Some(name) = &accepted.server_name {
        record.set_server_name(name);
    }
    let params = Params {
        head_limit: limit,
        dial_limit: shared.config.connect_timeout + DIAL_SLACK,
        ..Params::default()
    };
    let dialler = Dialler {
        worker: &worker,
        record: &record,
        reason: Cell::new(None),
    };
    let outcome = connect::serve(accepted.stream, &dialler, &params).await;
    if let Some(status) = outcome.status {
        shared.metrics.answered(status);
    }
    let reason = dialler.reason.get().unwrap_or_else(|| reason(outcome.end));
    record.close(reason);
}

/// What one connection's request is dialled with.
struct Dialler<'a> {
    worker: &'a Worker,
    record: &'a ConnRecord,
    /// Why it was refused, or ended.
    reason: Cell<Option<Reason>>,
}

impl Dial for Dialler<'_> {
    type Tunnel = TcpStream;

    async fn dial(&self, request: &Request) -> Result<TcpStream, Refusal> {
        self.record.set_connect(&request.target);
        match dial::dial(request, self.worker).await {
            Ok((upstream, address)) => {
                self.record.set_endpoint_address(address);
                Ok(upstream)
            }
            Err(refused) => Err(self.refuse(&refused, request)),
        }
    }

    async fn relay<S>(&self, mut upstream: TcpStream, mut stream: S, early: Bytes) -> Ended
    where
        S: Stream,
    {
        let info = self.record.info().as_ref();
        let idle = self.worker.shared.config.idle_timeout;
        let scratch = &self.worker.scratch;
        let relayed = relay(&mut stream, &mut upstream, early, scratch, info, idle);
        let reason = Reason::from(&relayed.await);
        self.reason.set(Some(reason));
        let (received, sent) = info.bytes();
        Ended {
            received,
            sent,
            reason: reason.as_str(),
        }
    }
}

impl Dialler<'_> {
    fn refuse(&self, refused: &Refused, request: &Request) -> Refusal {
        let (status, reason) = (refused.status(), refused.reason());
        let error = telemetry::chain(refused);
        tracing::debug!(target = request.target, status, %error, "no connection");
        self.reason.set(Some(reason));
        Refusal::new(status, reason.as_str(), format!("{error}\n"))
    }
}

fn handshake_reason(error: &AcceptError) -> Reason {
    match error {
        AcceptError::NotTls(_) => Reason::NotTls,
        AcceptError::TimedOut(_) => Reason::PreambleTimeout,
        AcceptError::BadClientCertificate(_) | AcceptError::NoClientCertificate => {
            Reason::SourceDenied
        }
        AcceptError::Gone(_) | AcceptError::RefusedByClient(_) => Reason::DownstreamReset,
        // Protocols that do not fit, and what that crate may tell apart later.
        AcceptError::Unsuccessful(_) | _ => Reason::Malformed,
    }
}

/// Returns why a connection ended of which the dial has nothing to say.
fn reason(end: End) -> Reason {
    match end {
        End::AnswerTimeout | End::ClientGone => Reason::DownstreamReset,
        End::DialTimeout => Reason::ConnectTimeout,
        End::HeadTimeout => Reason::PreambleTimeout,
        End::Malformed | End::MethodNotAllowed => Reason::Malformed,
        End::Refused(_) | End::Relayed(_) => Reason::Internal,
        End::TooLarge => Reason::PreambleTooLong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_lives_as_long_as_a_connection_is_small() {
        let size = size_of_future(serve);
        assert!(size <= 1024, "{size} octets");
    }
}
