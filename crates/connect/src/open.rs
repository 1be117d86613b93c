//! One connection, from its first byte to its end.
//!
//! ```text
//!   client ──head──▶ open ──request──▶ Dial::dial          client is watched, early bytes kept
//!   client ◀──200──   │   ◀──tunnel──
//!   client ◀─────────────▶ Dial::relay ◀──▶ tunnel
//! ```
//!
//! Moves no bytes through the tunnel itself.

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use crate::answer;
use crate::head::{self, Head, Other};
use crate::{Dial, End, Ended, Outcome, Params, Refusal, Request, Stream};

/// Serves one connection until it ends, and says what became of it.
///
/// Every wait before the relay is bounded by `params`. Cancel-safe in the sense that dropping the
/// future closes the stream, calls a dial off and closes the tunnel; nothing is left behind, and
/// no answer is given. While a tunnel is open the future holds the stream, the relay's own state
/// and no buffer of the head's.
pub async fn serve<S, D>(mut stream: S, dial: &D, params: &Params) -> Outcome
where
    S: Stream,
    D: Dial,
{
    let mut outcome = Outcome {
        request: None,
        status: None,
        other_requests: 0,
        received: 0,
        sent: 0,
        end: End::ClientGone,
    };
    // In a box of its own, so that an open tunnel does not carry the room that opening it took.
    let opened = Box::pin(open(&mut stream, dial, params, &mut outcome)).await;
    match opened {
        Ok((tunnel, early)) => {
            let Ended {
                received,
                sent,
                reason,
            } = dial.relay(tunnel, stream, early).await;
            outcome.received = received;
            outcome.sent = sent;
            outcome.end = End::Relayed(reason);
        }
        Err(end) => outcome.end = end,
    }
    outcome
}

/// Goes all the way to an open tunnel of which the client knows.
async fn open<S, D>(
    stream: &mut S,
    dial: &D,
    params: &Params,
    outcome: &mut Outcome,
) -> Result<(D::Tunnel, Bytes), End>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Dial,
{
    let mut buf = BytesMut::new();
    let request = request(stream, &mut buf, params, outcome).await?;
    let request = &**outcome.request.insert(request);
    let tunnel = match dial_watched(stream, &mut buf, request, dial, params).await? {
        Ok(tunnel) => tunnel,
        Err((refusal, end)) => {
            outcome.status = Some(refusal.status);
            answer::write_and_linger(stream, &refusal.to_bytes(), params).await;
            return Err(end);
        }
    };
    outcome.status = Some(200);
    answer::write(stream, answer::ESTABLISHED, params.answer_limit).await?;
    // Copied, so that the rest of the head's buffer does not live as long as these bytes.
    Ok((tunnel, Bytes::copy_from_slice(&buf)))
}

/// Reads requests until there is a CONNECT, and answers those that are none.
async fn request<S>(
    stream: &mut S,
    buf: &mut BytesMut,
    params: &Params,
    outcome: &mut Outcome,
) -> Result<Box<Request>, End>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let (status, answer, end) = match head::read(stream, buf, params).await {
            Head::Connect(request) => return Ok(request),
            Head::Other(other) => {
                outcome.status = Some(405);
                outcome.other_requests += 1;
                let may_go_on = outcome.other_requests < params.other_requests;
                other_request(stream, &other, may_go_on, params).await?;
                continue;
            }
            Head::Gone if outcome.other_requests > 0 => return Err(End::MethodNotAllowed),
            Head::Gone => return Err(End::ClientGone),
            Head::TimedOut => return Err(End::HeadTimeout),
            Head::Malformed => (400, answer::BAD_REQUEST, End::Malformed),
            Head::TooLarge => (431, answer::TOO_LARGE, End::TooLarge),
        };
        outcome.status = Some(status);
        answer::write_and_linger(stream, answer, params).await;
        return Err(end);
    }
}

/// Answers a request that is not CONNECT; an error ends the connection.
async fn other_request<S>(
    stream: &mut S,
    other: &Other,
    may_go_on: bool,
    params: &Params,
) -> Result<(), End>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let keep_alive = other.keep_alive && may_go_on;
    let answer = answer::method_not_allowed(other.version, other.is_head, !keep_alive);
    if keep_alive {
        return answer::write(stream, &answer, params.answer_limit).await;
    }
    answer::write_and_linger(stream, &answer, params).await;
    Err(End::MethodNotAllowed)
}

/// Dials while watching the client, whose going away calls the dial off.
///
/// Bytes that come meanwhile are added to `early`. Whoever gave the inner error wants its refusal
/// to be sent.
async fn dial_watched<S, D>(
    stream: &mut S,
    early: &mut BytesMut,
    request: &Request,
    dial: &D,
    params: &Params,
) -> Result<Result<D::Tunnel, (Refusal, End)>, End>
where
    S: AsyncRead + Unpin,
    D: Dial,
{
    tokio::select! {
        biased;
        dialled = timeout(params.dial_limit, dial.dial(request)) => Ok(match dialled {
            Ok(Ok(tunnel)) => Ok(tunnel),
            Ok(Err(refusal)) => {
                let end = End::Refused(refusal.reason);
                Err((refusal, end))
            }
            Err(_) => {
                let end = End::DialTimeout;
                let body = "the destination did not answer in time";
                Err((Refusal::new(504, end.reason(), body), end))
            }
        }),
        () = watch(stream, early, params.early_bytes) => Err(End::ClientGone),
    }
}

/// Keeps what the client sends, at most `most` bytes; returns when the client is gone, and never
/// once the room is full.
async fn watch<S>(stream: &mut S, early: &mut BytesMut, most: usize)
where
    S: AsyncRead + Unpin,
{
    while early.len() < most {
        let room = most - early.len();
        match stream.read_buf(&mut (&mut *early).limit(room)).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    std::future::pending().await
}
