//! A server's body on its way through: as it comes, a frame at a time, as fast as the client takes it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::metrics::Counted;
use super::upstream::Active;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the other side failed")]
    Hyper(#[from] hyper::Error),
    #[error("the request is sent again to another server")]
    SentAgain,
    #[error("a request took longer than it may")]
    TooLong,
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
