//! HTTP/2 of clients: requests from streams, and answers into them.
//!
//! ```text
//!     TLS ─▶ http2_server ─▶ request ─▶ Client::answer ─▶ head, body as the client takes it
//!                └ a head not whole in time, or no sign of life: the end
//! ```
//!
//! What the protocol is, and its bounds, `http2_proto` knows. A connection without a head under way has one timer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, Uri, Version, header, uri};
use http_body::Body;
use http2_proto::ErrorCode;
use http2_server::{End, Host, Peer, Server, Stream};
use serve::Reason;
use tokio::io::AsyncRead;
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};
use tokio_util::io::poll_read_buf;
use tracing::debug;

use super::body::{AnswerError, ResponseBody};
use super::client::Client;
use super::client_body::{ClientBody, Http2Body, headers};
use super::exchange::{GRACE, Open};
use super::http1_stream::Timer;
use super::wire::MOST;
use super::{HEAD_BYTES, Tls};

/// Bytes of a client's stream, and of its connection, that wait for an API server.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a table of headers (RFC 7541 section 4.2), and of a frame: what both are by default.
const HEADER_TABLE: u32 = 4096;
const MAX_FRAME: u32 = 16 * 1024;
/// A silent client is asked whether it lives, and has as long to answer.
const PING: Duration = Duration::from_secs(55);
const PING_LIMIT: Duration = Duration::from_secs(20);
/// Time for what is left to be written once all has ended, and for the client to close then.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);
const CLOSED_LIMIT: Duration = Duration::from_millis(500);

thread_local! {
    /// What is read, until it is understood.
    static PLAIN: RefCell<BytesMut> = RefCell::default();
}

/// Serves a connection until it ends, and returns why.
pub(super) async fn serve(tls: Tls, client: &Rc<Client>) -> Reason {
    let (limits, params) = (
        &client.worker.shared.config.limits,
        &client.termination.params,
    );
    // Pinned here: moved into the `select!` it would be stored twice.
    let mut ending = pin!(client.ending());
    let settings = http2_proto::Params {
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        max_frame: MAX_FRAME,
        max_streams: params.max_streams,
        // What is larger than it may be is answered by a Status, unless it is much larger.
        max_head: 2 * HEAD_BYTES as u32,
        max_copied: MAX_FRAME as usize,
        header_table: HEADER_TABLE,
        send_buffer: STREAM_WINDOW as usize,
    };
    let watch = Watch::new(limits.preamble_timeout.0);
    let begin = |stream, request| begin(client, stream, request);
    let mut server = Server::new(tls, settings, watch, begin);
    match timeout_at(client.begins_by, server.begun()).await {
        Ok(Ok(())) => {}
        Ok(Err(end)) => {
            close(&mut server).await;
            debug!(end = %telemetry::chain(&end), "HTTP/2 was not begun");
            return unbegun(&end);
        }
        Err(_) => return Reason::PreambleTimeout,
    }
    let served = tokio::select! {
        end = poll_fn(|cx| server.poll(cx)) => Ok(end),
        (reason, _) = ending.as_mut() => Err(reason),
    };
    match served {
        Ok(end) => {
            let late = server.host().late;
            debug!(end = %telemetry::chain(&end), late, "HTTP/2 ended");
            let reason = match end {
                End::Closed | End::Left => Reason::Closed,
                End::Protocol(_) => Reason::Malformed,
                // Nothing that is written arrives any more, or need not.
                End::GivenUp if late => return Reason::PreambleTimeout,
                End::GivenUp | End::Socket(_) | _ => return Reason::DownstreamReset,
            };
            close(&mut server).await;
            reason
        }
        Err(reason) => {
            server.leave();
            let rest = pin!(async {
                let left = timeout(PING_LIMIT, poll_fn(|cx| server.poll(cx))).await;
                if left.is_err() {
                    // A client that has not heard of it by now does not want to.
                    server.go_away();
                    poll_fn(|cx| server.poll(cx)).await;
                }
                close(&mut server).await;
            });
            Box::pin(client.finished(reason, rest)).await;
            reason
        }
    }
}

/// Returns why a client has not begun.
fn unbegun(end: &End) -> Reason {
    match end {
        End::Socket(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Reason::DownstreamReset
        }
        End::Protocol(_) => Reason::Malformed,
        End::Closed | End::Socket(_) | End::GivenUp | End::Left | _ => Reason::Closed,
    }
}

/// Writes what is left, and closes.
async fn close<'a, B, F>(server: &mut Server<'a, Tls, Watch, B>)
where
    B: FnMut(Stream, http2_proto::Request) -> F,
    F: Future<Output = ()> + 'a,
{
    let written = timeout(CLOSE_LIMIT, poll_fn(|cx| server.poll_close(cx))).await;
    if matches!(written, Ok(Ok(()))) {
        let _ = timeout(CLOSED_LIMIT, poll_fn(|cx| server.poll_closed(cx))).await;
    }
}

/// Looks after a client's time.
struct Watch {
    head_limit: Duration,
    /// The head that is under way, and since when.
    head: Option<(u32, Instant)>,
    head_timer: Timer,
    /// A head was not whole in time.
    late: bool,
    heard: Instant,
    asked: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
}

impl Watch {
    fn new(head_limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            head_limit,
            head: None,
            head_timer: Timer::default(),
            late: false,
            heard: now,
            asked: None,
            sleep: Box::pin(sleep_until(now + PING)),
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, under_way: Option<u32>) -> Poll<()> {
        if self.head.map(|(number, _)| number) != under_way {
            self.head = under_way.map(|number| (number, Instant::now()));
            self.head_timer = Timer::default();
        }
        let Some((_, since)) = self.head else {
            return Poll::Pending;
        };
        self.late = self.head_timer.has_passed(cx, since + self.head_limit);
        match self.late {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> Host<S> for Watch {
    fn poll_read(&mut self, cx: &mut Context<'_>, io: &mut S) -> Poll<io::Result<Bytes>> {
        PLAIN.with_borrow_mut(|plain| {
            // The same memory again: all of what is kept is copied.
            plain.reserve(MOST);
            ready!(poll_read_buf(
                Pin::new(io),
                cx,
                &mut (&mut *plain).limit(MOST)
            ))?;
            self.heard = Instant::now();
            Poll::Ready(Ok(plain.split().freeze()))
        })
    }

    fn poll_given_up(&mut self, cx: &mut Context<'_>, peer: &Peer<'_>) -> Poll<()> {
        if self.poll_head(cx, peer.unfinished_block()).is_ready() {
            return Poll::Ready(());
        }
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let now = Instant::now();
            let until = match self.asked {
                // Whatever comes is a sign of life.
                Some(asked) if self.heard < asked => return Poll::Ready(()),
                None if self.heard + PING <= now => {
                    peer.ping();
                    self.asked = Some(now);
                    now + PING_LIMIT
                }
                Some(_) | None => {
                    self.asked = None;
                    self.heard + PING
                }
            };
            self.sleep.as_mut().reset(until);
        }
    }

    /// It may say nothing for long that reads much over a slow line, and hears the question late.
    fn unblocked(&mut self) {
        self.heard = Instant::now();
    }
}

/// Makes the future of a request, which is counted from now on.
fn begin(
    client: &Rc<Client>,
    stream: Stream,
    request: http2_proto::Request,
) -> impl Future<Output = ()> + use<> {
    let request = request_of(&stream, &request);
    let begun = request.map(|request| (client.exchanges.begin(&request), request));
    let client = Rc::clone(client);
    // A little later, so that one without an answer is told so.
    let limit = client.termination.params.stream_timeout + GRACE;
    let until = Instant::now() + limit;
    async move {
        match begun {
            Some((open, request)) => {
                let answered = answer(&client, &stream, request, open);
                within(until, &stream, answered).await;
            }
            None => stream.reset(ErrorCode::PROTOCOL_ERROR),
        }
    }
}

/// Resets a stream whose answer is not on its way as a whole by then.
async fn within(until: Instant, stream: &Stream, answered: impl Future<Output = ()>) {
    if timeout_at(until, answered).await.is_err() {
        stream.reset(ErrorCode::CANCEL);
    }
}

/// Finds the answer and sends it, unless the client gives it up.
async fn answer(client: &Client, stream: &Stream, request: Request<ClientBody>, open: Open) {
    let response = {
        // On the heap: its memory is given back before a watch goes on for hours.
        let mut answered = Box::pin(client.answer(request, open));
        poll_fn(|cx| {
            if stream.poll_end(cx).is_ready() {
                return Poll::Ready(None);
            }
            answered.as_mut().poll(cx).map(Some)
        })
        .await
    };
    if let Some(response) = response {
        send(stream, response).await;
    }
}

/// Sends an answer, and waits until it is on its way as a whole: until then the request is open, and within its limit.
async fn send(stream: &Stream, response: Response<ResponseBody>) {
    let (head, mut body) = response.into_parts();
    let ends = body.is_end_stream();
    let length = body.size_hint().exact().filter(|_| !ends);
    respond(stream, &head, length, ends);
    drop(head);
    if !ends && pass(stream, &mut body).await.is_none() {
        return;
    }
    let _open = body.finish();
    let _ = poll_fn(|cx| stream.poll_sent(cx)).await;
}

/// Passes a body as the client takes it; `None` when either side ended it early.
async fn pass(stream: &Stream, body: &mut ResponseBody) -> Option<()> {
    loop {
        // Ahead of what the client takes: an end, or a failure, needs no room.
        let next = poll_fn(|cx| match stream.poll_end(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => Pin::new(&mut *body).poll_frame(cx).map(Some),
        });
        let frame = match next.await? {
            None => break,
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                stream.reset(code_of(&error));
                return None;
            }
        };
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                poll_fn(|cx| stream.poll_ready(cx)).await.ok()?;
                stream.send(b"", data).ok()?;
                if body.is_end_stream() {
                    break;
                }
            }
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                stream.end(&fields(&trailers).collect::<Vec<_>>());
                return Some(());
            }
        }
    }
    stream.end(&[]);
    Some(())
}

fn respond(stream: &Stream, head: &http::response::Parts, length: Option<u64>, ends: bool) {
    let status = head.status;
    let length = length.filter(|_| !head.headers.contains_key(header::CONTENT_LENGTH));
    let length = length.map(|length| length.to_string());
    let mut all = Vec::with_capacity(2 + head.headers.len());
    all.push((&b":status"[..], status.as_str().as_bytes()));
    all.extend(fields(&head.headers));
    if let Some(length) = &length {
        all.push((b"content-length", length.as_bytes()));
    }
    stream.respond(&all, ends);
}

fn fields(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields = headers.iter();
    fields.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// Returns with what a stream is reset whose answer ended early: what the server said, if it did.
fn code_of(error: &AnswerError) -> ErrorCode {
    let said = match error {
        AnswerError::Http2(error) => error.reason(),
        AnswerError::Http1(_) | AnswerError::Cut => None,
    };
    said.map_or(ErrorCode::INTERNAL_ERROR, |reason| ErrorCode(reason.into()))
}

/// Makes a request of what a client sent; `None` when it is malformed (RFC 9113 section 8.1.1).
fn request_of(stream: &Stream, own: &http2_proto::Request) -> Option<Request<ClientBody>> {
    let mut parts = uri::Parts::default();
    if let Some(authority) = own.authority() {
        let authority = Authority::from_maybe_shared(authority.clone());
        parts.authority = Some(authority.ok()?);
    }
    if !own.path().is_empty() {
        let path = PathAndQuery::from_maybe_shared(own.path().clone());
        parts.path_and_query = Some(path.ok()?);
        // The client's own does not matter: it has come by TLS.
        parts.scheme = parts.authority.is_some().then_some(Scheme::HTTPS);
    }
    let body = Http2Body::new(stream.reader(), own.content_length());
    let mut request = Request::new(ClientBody::Http2(body));
    *request.method_mut() = Method::from_bytes(own.method()).ok()?;
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers(own.headers())?;
    Some(request)
}

#[cfg(test)]
mod tests;
