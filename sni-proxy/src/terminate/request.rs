//! A client's body, whose beginning is kept until there is an answer: a server that goes away may not have begun with
//! the request, which is then sent again.
//!
//! ```text
//!     client ─▶ Kept ─▶ Sending 1 ─▶ a server that ends: not processed
//!                  └──▶ Sending 2 ─▶ another: from the first byte, then what the client sends on
//! ```

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::{Request, StatusCode};
use http_body::{Body, Frame, SizeHint};
use relay::{Direction, Meter};
use tokio::time::{Instant, Sleep, sleep_until};

use super::client_body::{ClientBody, ReceiveError};
use super::exchange::Exchange;
use super::headers::remove_identity;

/// Bytes of a body that are kept; one that is longer is sent once.
const KEPT_BYTES: usize = 64 * 1024;

/// A client that sends nothing of its body for this long, while an API server waits for it, is given up (408);
/// what Envoy grants a stream by default.
const BODY_STALL: Duration = Duration::from_secs(300);

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error("the request is sent again to another server")]
    SentAgain,
    #[error("the client has stopped sending")]
    Stalled,
}

/// What a client sends.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    Incoming(Sending),
}

/// One sending of a body. An earlier one reads nothing more.
#[derive(Debug)]
pub(crate) struct Sending {
    kept: Rc<RefCell<Kept>>,
    number: u32,
    /// Bytes of those kept that were sent.
    sent: usize,
}

#[derive(Debug)]
struct Kept {
    body: ClientBody,
    /// A copy: what was read holds all that was read with it.
    bytes: Vec<u8>,
    /// All that was read is kept.
    is_whole: bool,
    /// Of the sending that may read.
    number: u32,
    exchange: Rc<Exchange>,
    /// Armed when the client has kept the server waiting.
    stall: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

/// A request as it can be sent again.
#[derive(Debug)]
pub(crate) struct Again {
    head: Request<()>,
    kept: Option<Rc<RefCell<Kept>>>,
}

/// Returns the bytes of a head, as HTTP/2 counts them (RFC 9113 section 6.5.2).
pub(crate) fn head_size<B>(request: &Request<B>) -> usize {
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = request.uri().path_and_query();
    fields.sum::<usize>() + target.map_or(0, |target| target.as_str().len())
}

impl RequestBody {
    pub(crate) fn new(body: ClientBody, exchange: &Rc<Exchange>) -> Self {
        if body.is_end_stream() {
            return Self::Empty;
        }
        let kept = Kept {
            body,
            bytes: Vec::new(),
            is_whole: true,
            number: 0,
            exchange: Rc::clone(exchange),
            stall: None,
            waits: false,
        };
        Self::Incoming(Sending {
            kept: Rc::new(RefCell::new(kept)),
            number: 0,
            sent: 0,
        })
    }

    /// Sends it by a stream of HTTP/2, which is reset when the client's side of it fails.
    pub(crate) async fn send(mut self, mut stream: SendStream<Bytes>) {
        while !self.is_end_stream() {
            let next = poll_fn(|cx| {
                if stream.poll_reset(cx).is_ready() {
                    return Poll::Ready(None);
                }
                Pin::new(&mut self).poll_frame(cx).map(Some)
            });
            let sent = match next.await {
                None => return,
                Some(None) => break,
                Some(Some(Err(_))) => return stream.send_reset(Reason::CANCEL),
                Some(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => send_data(data, &mut stream, || self.is_end_stream()).await,
                    Err(frame) => match frame.into_trailers() {
                        Ok(trailers) => return drop(stream.send_trailers(trailers)),
                        Err(_) => Some(()),
                    },
                },
            };
            if sent.is_none() || self.is_end_stream() {
                return;
            }
        }
        drop(stream.send_data(Bytes::new(), true));
    }
}

/// Sends bytes as the server takes them; `None` when it takes no more.
async fn send_data(
    mut data: Bytes,
    stream: &mut SendStream<Bytes>,
    ends: impl Fn() -> bool,
) -> Option<()> {
    loop {
        let mut now = data.len();
        if now > 0 {
            stream.reserve_capacity(now);
            now = loop {
                let capacity = poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
                if capacity > 0 {
                    break capacity.min(now);
                }
            };
        }
        let now = data.split_to(now);
        let last = data.is_empty();
        stream.send_data(now, last && ends()).ok()?;
        if last {
            return Some(());
        }
    }
}

impl Again {
    pub(crate) fn of(request: &Request<RequestBody>) -> Self {
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.headers_mut() = request.headers().clone();
        let kept = match request.body() {
            RequestBody::Empty => None,
            RequestBody::Incoming(own) => Some(Rc::clone(&own.kept)),
        };
        Self { head, kept }
    }

    /// Returns the request from its beginning, unless that is gone.
    pub(crate) fn request(self) -> Option<Request<RequestBody>> {
        let Some(kept) = self.kept else {
            return Some(self.head.map(|()| RequestBody::Empty));
        };
        let number = {
            let mut kept = kept.borrow_mut();
            if !kept.is_whole {
                return None;
            }
            kept.number += 1;
            kept.number
        };
        let sending = Sending {
            kept,
            number,
            sent: 0,
        };
        Some(self.head.map(|()| RequestBody::Incoming(sending)))
    }

    /// There is an answer: nothing more is kept, and what is kept goes once it was sent.
    pub(crate) fn forget(self) {
        if let Some(kept) = self.kept {
            kept.borrow_mut().is_whole = false;
        }
    }
}

impl Kept {
    fn keep(&mut self, data: &[u8]) {
        if self.bytes.len() + data.len() > KEPT_BYTES {
            return self.forget();
        }
        self.bytes.extend_from_slice(data);
    }

    fn forget(&mut self) {
        self.is_whole = false;
        self.bytes = Vec::new();
    }

    /// Bounds how long the client keeps the server waiting.
    fn poll_stall<T>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, BodyError>>> {
        let until = Instant::now() + BODY_STALL;
        let stall = { &mut self.stall }.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if !std::mem::replace(&mut self.waits, true) {
            stall.as_mut().reset(until);
        }
        if stall.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.exchange.set_fault(StatusCode::REQUEST_TIMEOUT);
        Poll::Ready(Some(Err(BodyError::Stalled)))
    }
}

impl Sending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let kept = &mut *self.kept.borrow_mut();
        if kept.number != self.number {
            return Poll::Ready(Some(Err(BodyError::SentAgain)));
        }
        if let Some(unsent @ [_, ..]) = kept.bytes.get(self.sent..) {
            let unsent = Bytes::copy_from_slice(unsent);
            self.sent = kept.bytes.len();
            return Poll::Ready(Some(Ok(Frame::data(unsent))));
        }
        if !kept.is_whole {
            (kept.bytes, self.sent) = (Vec::new(), 0);
        }
        let Poll::Ready(mut frame) = Pin::new(&mut kept.body).poll_frame(cx) else {
            return kept.poll_stall(cx);
        };
        kept.waits = false;
        if let Some(Ok(frame)) = &mut frame {
            if let Some(trailers) = frame.trailers_mut() {
                remove_identity(trailers);
                kept.forget();
            } else if let Some(data) = frame.data_ref() {
                let bytes = data.len() as u64;
                kept.exchange.relayed(Direction::Rx, bytes, true);
                if kept.is_whole {
                    kept.keep(data);
                    self.sent = kept.bytes.len();
                }
            }
        }
        if let Some(Err(_)) = &frame {
            kept.exchange.set_fault(StatusCode::BAD_REQUEST);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    /// Bytes of those kept that were not sent.
    fn unsent(&self, kept: &Kept) -> usize {
        kept.bytes.len().saturating_sub(self.sent)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Incoming(own) => own.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Incoming(own) => {
                let kept = own.kept.borrow();
                own.unsent(&kept) == 0 && kept.body.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Incoming(own) => {
                let kept = own.kept.borrow();
                let (rest, unsent) = (kept.body.size_hint(), own.unsent(&kept) as u64);
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower() + unsent);
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + unsent);
                }
                hint
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminate::exchange::Exchanges;
    use crate::terminate::metrics::{Protocol, WorkerStats};
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::sync::mpsc;

    #[tokio::test(start_paused = true)]
    async fn client_that_stops_sending_is_given_up() {
        let (own, mut client) = duplex(1024);
        let (bodies, mut body) = mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Incoming>| {
            let exchanges = Exchanges::new(Protocol::Http1, &WorkerStats::detached(), None);
            let open = exchanges.begin(&request);
            let body = ClientBody::Http1(request.into_body());
            let body = RequestBody::new(body, open.exchange());
            bodies.send((body, open)).unwrap();
            std::future::pending::<Result<Response<Full<Bytes>>, hyper::Error>>()
        });
        let io = TokioIo::new(own);
        let serve = async {
            let _ = http1::Builder::new().serve_connection(io, service).await;
        };
        let stop = async {
            let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n";
            client.write_all(head).await.unwrap();
            let (mut body, open) = body.recv().await.unwrap();
            // A server that does not ask for more is no fault of the client's.
            tokio::time::sleep(BODY_STALL * 3).await;
            for _ in 0..3 {
                let before = Instant::now();
                let (frame, _) = tokio::join!(body.frame(), async {
                    tokio::time::sleep(BODY_STALL / 2).await;
                    client.write_all(b"a").await.unwrap();
                });
                assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "a");
                assert_eq!(before.elapsed(), BODY_STALL / 2);
            }
            let before = Instant::now();
            let frame = body.frame().await.unwrap();
            assert!(matches!(frame, Err(BodyError::Stalled)), "{frame:?}");
            assert_eq!(open.fault(), Some(StatusCode::REQUEST_TIMEOUT));
            assert_eq!(before.elapsed(), BODY_STALL);
        };
        tokio::select! {
            () = serve => panic!("the connection has ended"),
            () = stop => {}
        }
    }
}
