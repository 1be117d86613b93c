//! Bodies on their way through: as they come, a frame at a time, as fast as the other side takes them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::headers::remove_identity;
use super::metrics::Counted;
use super::upstream::Active;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the other side failed")]
    Hyper(#[from] hyper::Error),
    #[error("a request took longer than it may")]
    TooLong,
}

/// What a client sends.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    Incoming(Incoming),
}

impl RequestBody {
    pub(crate) fn new(body: Incoming) -> Self {
        if body.is_end_stream() {
            Self::Empty
        } else {
            Self::Incoming(body)
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Incoming(body) => {
                let mut frame = ready!(Pin::new(body).poll_frame(cx));
                if let Some(Ok(frame)) = &mut frame
                    && let Some(trailers) = frame.trailers_mut()
                {
                    remove_identity(trailers);
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Incoming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Incoming(body) => body.size_hint(),
        }
    }
}

/// What a client is answered.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// The gateway's own words.
    Own(
        Option<Bytes>,
        #[expect(dead_code, reason = "counts until it is dropped")] Counted,
    ),
    /// The server's.
    Upstream(Box<Upstream>),
}

/// A body of the server's, and what is counted until it ends.
#[derive(Debug)]
pub(crate) struct Upstream {
    body: Incoming,
    /// Of HTTP/1.1.
    limit: Option<Pin<Box<Sleep>>>,
    _active: Active,
    _counted: Counted,
}

impl Upstream {
    pub(crate) fn new(
        body: Incoming,
        limit: Option<Instant>,
        active: Active,
        counted: Counted,
    ) -> Self {
        Self {
            body,
            limit: limit.map(|limit| Box::pin(sleep_until(limit))),
            _active: active,
            _counted: counted,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(text, _) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Upstream(own) => {
                let frame = Pin::new(&mut own.body).poll_frame(cx);
                if frame.is_pending()
                    && let Some(limit) = &mut own.limit
                    && limit.as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(Some(Err(BodyError::TooLong)));
                }
                frame.map_err(BodyError::from)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(text, _) => text.is_none(),
            Self::Upstream(own) => own.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(text, _) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Upstream(own) => own.body.size_hint(),
        }
    }
}
