//! API servers that ask by HTTP CONNECT: what a request becomes, and the texts of refusals.
//!
//! ```text
//!   request ──▶ Tenant::dial ──▶ Tunnel ──▶ 200 ──▶ relay ──▶ close
//!                    └── refused: 500, 502, 503, 504 with upstream's texts
//! ```
//!
//! Parses no request and writes no answer; that is the `connect` crate's business.

use std::time::Duration;

use ::relay::{RESET_LIMIT, reset_on_close, reset_when_sent};
use bytes::Bytes;
use connect::{Downstream, End, Exchange, Params, Refusal, RefusalHeaders, Stream};
use knp_proto::DialTarget;
use knp_proto::packet::MAX_ADDRESS;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::frontends::Frontend;
use super::tenant::{Dialed, TunnelError};
use super::tunnels::Open;
use crate::metrics::DialFailure;
use crate::relay::{ByteCounts, RelayEnd, relay};

/// Serves one connection from its first byte to its end.
pub(crate) async fn serve<S: Stream>(stream: S, frontend: &Frontend) {
    let mut stream = Downstream::new(stream);
    let _held = frontend.cx.metrics.http_connection();
    let mut target = None;
    let bytes = ByteCounts::default();
    let served = async {
        // On the heap, so that an open tunnel does not carry the memory that opening it took.
        match Box::pin(open(&mut stream, frontend, &mut target)).await {
            Ok((dialed, early)) => {
                relay_and_close(&mut stream, dialed, early, frontend, &bytes).await
            }
            Err(reason) => reason,
        }
    };
    let reason = tokio::select! {
        reason = served => reason,
        // A tunnel ends by itself then; everything else has a moment to end.
        reason = async { let reason = frontend.cut().await; sleep(FLUSH_TIMEOUT).await; reason } => reason,
    };
    let bytes = (bytes.from_socket.get(), bytes.to_socket.get());
    frontend.log(frontend.started, target.as_deref(), bytes, reason);
}

/// Reads the request into `target`, asks an agent while the client stays, and answers.
///
/// # Errors
/// The label of why there is no tunnel; the client was answered.
async fn open<S: Stream>(
    stream: &mut Downstream<S>,
    frontend: &Frontend,
    target: &mut Option<String>,
) -> Result<(Dialed, Bytes), &'static str> {
    let params = Params {
        dial_limit: frontend.cx.config.dial_timeout * 2,
        // What agents accept.
        target_bytes: MAX_ADDRESS,
        ..Params::default()
    };
    let failed = |failure, end: End| {
        frontend.tenant.metrics().dial_failure(failure);
        end.reason()
    };
    let mut exchange = Exchange::new(stream, &params);
    let request = exchange.request().await.map_err(End::reason)?;
    let dial = frontend.dial(DialTarget {
        protocol: "tcp".to_owned(),
        address: target.insert(request.target).clone(),
    });
    let dialed = exchange.while_connected(dial).await;
    match dialed.map_err(|end| failed(DialFailure::FrontendClose, end))? {
        Ok(dialed) => {
            let accepted = exchange.accept().await;
            let early = accepted.map_err(|end| failed(DialFailure::SendResponse, end))?;
            Ok((dialed, early))
        }
        Err(error) => {
            exchange.refuse(&refusal(&error)).await;
            Err(error.reason())
        }
    }
}

/// Relays until the tunnel ends or is cut, closes the connection, and returns the label of why.
async fn relay_and_close<S: Stream>(
    stream: &mut S,
    dialed: Dialed,
    early: Bytes,
    frontend: &Frontend,
    bytes: &ByteCounts,
) -> &'static str {
    let open = Open::new(&frontend.cx, &frontend.tenant, &dialed);
    let relayed = relay(dialed.tunnel, stream, early, &frontend.means, bytes);
    let (reason, clean) = tokio::select! {
        end = relayed => match end {
            RelayEnd::Socket(_) => ("frontend_reset", true),
            RelayEnd::Tunnel(reason) => (reason.reason(), reason.is_clean()),
        },
        reason = frontend.cut() => (reason, false),
    };
    drop(open);
    // On the heap: relaying, which lasts, does not need it.
    if clean {
        Box::pin(::relay::linger(stream, LINGER, LINGER_BYTES)).await;
    } else {
        Box::pin(reset(stream)).await;
    }
    reason
}

/// Has the client reset, so that what is missing is not taken for the end, once it was sent what
/// there is for it. A Unix socket knows no reset, and is closed.
async fn reset<S: Stream>(stream: &mut S) {
    if let Some(socket) = stream.fd() {
        reset_on_close(&socket);
    }
    // TLS may hold bytes that were written to it.
    drop(timeout(RESET_LIMIT, stream.flush()).await);
    if let Some(socket) = stream.fd() {
        reset_when_sent(&socket, RESET_LIMIT).await;
    }
}

/// Returns the answer to a request that gets no tunnel, as upstream gives it.
fn refusal(error: &TunnelError) -> Refusal {
    // What upstream's handler writes itself ends with a line's end; an agent's words do not.
    let reason = error.reason();
    let typed = |status| {
        Refusal::new(status, reason, format!("{error}\r\n")).with_headers(RefusalHeaders::Typed)
    };
    match error {
        TunnelError::Answered { error } => Refusal::new(status_of(error), reason, error.clone()),
        TunnelError::Lost => typed(502),
        TunnelError::NoAgent => {
            let body = format!("currently no tunnels available: {error}");
            Refusal::new(500, reason, body).with_headers(RefusalHeaders::Bare)
        }
        TunnelError::Refused(_) => typed(503),
        TunnelError::Timeout { .. } => typed(504),
    }
}

/// API servers see nothing but the status, so it says what the agent's text says.
fn status_of(text: &str) -> u16 {
    if text.contains("timeout") || text.contains("deadline exceeded") {
        504
    } else if text.contains("too many open files") {
        503
    } else {
        502
    }
}

/// How long a client may take to see the end of its tunnel.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of the client that are discarded at most meanwhile.
const LINGER_BYTES: usize = 64 * 1024;
/// How long a connection may take to end once it is cut.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use RefusalHeaders::{Bare, Closing, Typed};

    use super::*;

    #[test]
    fn failures_have_upstream_answers() {
        let limit = Duration::from_secs(10);
        let limited = knp_proto::DialRefused::Tunnels;
        let (no_agent, lost) = (TunnelError::NoAgent, TunnelError::Lost);
        let none = "currently no tunnels available: No agent available";
        for (error, status, headers, body) in [
            (no_agent, 500, Bare, none),
            (lost, 502, Typed, "Backend context error: "),
            (TunnelError::Refused(limited), 503, Typed, ""),
            (TunnelError::Timeout { limit }, 504, Typed, TIMEOUT),
            answered("dial tcp 127.0.0.1:1: connect: connection refused", 502),
            answered("dial tcp: lookup a.invalid: no such host", 502),
            answered("dial tcp 10.0.0.1:443: i/o timeout", 504),
            answered("context deadline exceeded", 504),
            answered("socket: too many open files", 503),
        ] {
            let answer = refusal(&error);
            assert_eq!((answer.status, answer.headers), (status, headers));
            match headers {
                Typed => assert!(answer.body.starts_with(body), "{}", answer.body),
                Bare | Closing => assert_eq!(answer.body, body),
            }
        }
    }

    const TIMEOUT: &str = "Backend dial timeout: ";

    /// The agent's text is the answer, and chooses its status.
    fn answered(text: &str, status: u16) -> (TunnelError, u16, RefusalHeaders, &str) {
        let error = text.to_owned();
        (TunnelError::Answered { error }, status, Closing, text)
    }
}
