//! API servers that ask by HTTP CONNECT: what a request becomes, and the words it is refused with.
//!
//! ```text
//!   connect::serve ──▶ dial ──▶ Tenant::dial ──▶ Tunnel ──▶ 200 ──▶ relay
//!                        └── refused: 500, 502, 503, 504 with upstream's texts
//! ```
//!
//! Reads no request and writes no answer; that is the `connect` crate's business.

use std::cell::Cell;
use std::time::Duration;

use ::relay::{RESET_LIMIT, reset_on_close, reset_when_sent};
use bytes::Bytes;
use connect::{Dial, End, Ended, Params, Refusal, RefusalHeaders, Request, Stream};
use knp_proto::DialTarget;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::frontends::Frontend;
use super::tenant::{Dialed, TunnelError};
use crate::metrics::DialFailure;
use crate::relay::{Octets, RelayEnd, relay};

/// Serves one connection from its first byte to its end.
pub(crate) async fn serve<S: Stream>(stream: S, frontend: &Frontend) {
    let _held = frontend.cx.metrics.http_connection();
    let params = Params {
        dial_limit: frontend.cx.limits.dial * 2,
        ..Params::default()
    };
    let dialler = Dialler {
        frontend,
        state: Cell::new(State::Idle),
    };
    let tenant = frontend.tenant.clone();
    let outcome = tokio::select! {
        outcome = connect::serve(stream, &dialler, &params) => outcome,
        // A tunnel ends by itself then; whatever else is going on has a moment to end.
        () = async { frontend.cut().await; sleep(FLUSH_TIMEOUT).await } => return,
    };
    match dialler.state.get() {
        // Called off: the client left.
        State::Dialing => tenant.metrics().dial_failure(DialFailure::FrontendClose),
        // It left, or did not read, before it was told.
        State::Answered => match outcome.end {
            End::AnswerTimeout | End::ClientGone => {
                tenant.metrics().dial_failure(DialFailure::SendResponse);
            }
            End::DialTimeout
            | End::HeadTimeout
            | End::Malformed
            | End::MethodNotAllowed
            | End::Refused(_)
            | End::Relayed(_)
            | End::TooLarge => {}
        },
        State::Idle => {}
    }
    let target = outcome
        .request
        .as_ref()
        .map(|request| request.target.as_str());
    frontend.log(target, outcome.received, outcome.sent, outcome.end.reason());
}

/// What one connection's request is dialed with.
struct Dialler<'a> {
    frontend: &'a Frontend,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Dialing,
    Answered,
}

impl Dial for Dialler<'_> {
    type Tunnel = Dialed;

    async fn dial(&self, request: &Request) -> Result<Dialed, Refusal> {
        self.state.set(State::Dialing);
        let target = DialTarget {
            protocol: "tcp".to_owned(),
            address: request.target.clone(),
        };
        let result = self.frontend.dial(target).await;
        self.state.set(State::Answered);
        result.map_err(|error| refusal(&error))
    }

    async fn relay<S>(&self, dialed: Dialed, mut stream: S, early: Bytes) -> Ended
    where
        S: Stream,
    {
        let frontend = self.frontend;
        let open = frontend.open(&dialed);
        let octets = Octets::default();
        let relayed = relay(dialed.tunnel, &mut stream, early, &frontend.means, &octets);
        let (reason, clean) = tokio::select! {
            end = relayed => match end {
                RelayEnd::Socket(_) => ("frontend_reset", true),
                RelayEnd::Tunnel(reason) => (reason.reason(), reason.is_clean()),
            },
            reason = frontend.cut() => (reason, false),
        };
        drop(open);
        if clean {
            drop(timeout(LINGER, linger(&mut stream)).await);
        } else {
            // On the heap: relaying, which lasts, does not need it.
            Box::pin(reset(&mut stream)).await;
        }
        Ended {
            received: octets.from_socket.get(),
            sent: octets.to_socket.get(),
            reason,
        }
    }
}

/// Lets the client see the end: closing on what it has still sent would be a reset to it.
async fn linger<S: Stream>(stream: &mut S) -> std::io::Result<()> {
    stream.shutdown().await?;
    let mut scrap = [0; 256];
    let mut left = MAX_DISCARDED;
    while left > 0 {
        let read = stream.read(&mut scrap).await?;
        if read == 0 {
            break;
        }
        left = left.saturating_sub(read);
    }
    Ok(())
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

/// How long a client may take to see the end of its tunnel, and what it may send meanwhile.
const LINGER: Duration = Duration::from_secs(1);
const MAX_DISCARDED: usize = 64 << 10;
/// How long a connection may take to end once it is cut.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_agents_words_choose_the_status() {
        for (text, status) in [
            ("dial tcp 127.0.0.1:1: connect: connection refused", 502),
            ("dial tcp: lookup a.invalid: no such host", 502),
            ("dial tcp 10.0.0.1:443: i/o timeout", 504),
            ("context deadline exceeded", 504),
            ("socket: too many open files", 503),
        ] {
            let error = text.to_owned();
            let answer = refusal(&TunnelError::Answered { error });
            assert_eq!((answer.status, answer.body.as_str()), (status, text));
            assert_eq!(answer.headers, RefusalHeaders::Closing);
        }
    }

    #[test]
    fn each_failure_has_upstreams_answer() {
        let answer = refusal(&TunnelError::NoAgent);
        assert_eq!(answer.status, 500);
        assert_eq!(
            answer.body,
            "currently no tunnels available: No agent available"
        );
        assert_eq!(answer.headers, RefusalHeaders::Bare);
        let answer = refusal(&TunnelError::Lost);
        assert_eq!(answer.status, 502);
        assert!(answer.body.starts_with("Backend context error: "));
        let limit = Duration::from_secs(10);
        let answer = refusal(&TunnelError::Timeout { limit });
        assert_eq!(answer.status, 504);
        assert!(answer.body.starts_with("Backend dial timeout: "));
        let answer = refusal(&TunnelError::Refused(knp_proto::DialRefused::Tunnels));
        assert_eq!(answer.status, 503);
    }
}
