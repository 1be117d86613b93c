//! A client's body, whose beginning is kept until there is an answer: a server that goes away may not have begun with
//! the request, which is then sent again.
//!
//! ```text
//!     client ─▶ Kept ─▶ Sending 1 ─▶ a server that ends: not processed
//!                  └──▶ Sending 2 ─▶ another: from the first byte, then what the client sends on
//! ```

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::body::BodyError;
use super::headers::remove_identity;

/// Bytes of a body that are kept; one that is longer is sent once.
const KEPT_BYTES: usize = 64 * 1024;

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
    /// Frames of those kept that were sent.
    sent: usize,
}

#[derive(Debug)]
struct Kept {
    body: Incoming,
    frames: Vec<Bytes>,
    bytes: usize,
    /// All that was read is kept.
    is_whole: bool,
    /// Of the sending that may read.
    number: u32,
}

/// A request as it can be sent again.
#[derive(Debug)]
pub(crate) struct Again {
    head: Request<()>,
    kept: Option<Rc<RefCell<Kept>>>,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming) -> Self {
        if body.is_end_stream() {
            return Self::Empty;
        }
        let kept = Kept {
            body,
            frames: Vec::new(),
            bytes: 0,
            is_whole: true,
            number: 0,
        };
        Self::Incoming(Sending {
            kept: Rc::new(RefCell::new(kept)),
            number: 0,
            sent: 0,
        })
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

    /// There is an answer: nothing is kept any longer.
    pub(crate) fn forget(self) {
        if let Some(kept) = self.kept {
            kept.borrow_mut().forget();
        }
    }
}

impl Kept {
    fn keep(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if self.bytes > KEPT_BYTES {
            self.forget();
        }
        if self.is_whole {
            self.frames.push(data.clone());
        }
    }

    fn forget(&mut self) {
        self.is_whole = false;
        self.frames = Vec::new();
    }
}

impl Sending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let kept = &mut *self.kept.borrow_mut();
        if kept.number != self.number {
            return Poll::Ready(Some(Err(BodyError::SentAgain)));
        }
        if let Some(frame) = kept.frames.get(self.sent) {
            self.sent += 1;
            return Poll::Ready(Some(Ok(Frame::data(frame.clone()))));
        }
        let mut frame = ready!(Pin::new(&mut kept.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame {
            if let Some(trailers) = frame.trailers_mut() {
                remove_identity(trailers);
                kept.forget();
            } else if let Some(data) = frame.data_ref()
                && kept.is_whole
            {
                kept.keep(data);
                self.sent = kept.frames.len();
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    /// Bytes of those kept that were not sent.
    fn unsent(&self, kept: &Kept) -> usize {
        let frames = kept.frames.get(self.sent..).unwrap_or_default();
        frames.iter().map(Bytes::len).sum()
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
