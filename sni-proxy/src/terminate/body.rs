//! A server's body on its way through: as it comes, a frame at a time, as fast as the client takes it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use relay::{Direction, Meter};

use super::exchange::Open;
use super::received::Listed;
use super::upstream::Active;

/// Why a server's body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("the other side ended it early")]
    Cut,
    #[error("the other side failed")]
    Http1(#[from] hyper::Error),
    #[error("the other side failed")]
    Http2(#[from] h2::Error),
}

/// What a server answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Http1(Incoming),
    Http2(Listed),
}

impl Answer {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let mut stream = match self {
            Self::Http1(body) => {
                return Pin::new(body).poll_frame(cx).map_err(AnswerError::from);
            }
            Self::Http2(stream) => stream.borrow_mut(),
        };
        // A poll comes when the client can take it.
        match ready!(stream.poll_data(cx)) {
            Some(Ok(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            // A client that was told this reason could take the answer for whole (RFC 9113 section 8.1).
            Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => {
                Poll::Ready(Some(Err(AnswerError::Cut)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error.into()))),
            None => {
                let trailers = ready!(stream.poll_trailers(cx)).transpose();
                let frame = trailers.map(|own| own.map(Frame::trailers));
                Poll::Ready(frame.map(|own| own.map_err(AnswerError::from)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(stream) => stream.borrow().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            // The head says what is known.
            Self::Http2(_) => SizeHint::default(),
        }
    }
}

/// What a client is answered; its request is open for as long.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// The gateway's own words. An upgraded request stays open without this.
    Own(Option<Box<Own>>),
    /// The server's.
    Upstream(Box<Upstream>),
}

/// Words of the gateway's, until they are sent.
#[derive(Debug)]
pub(crate) struct Own {
    text: Option<Bytes>,
    open: Open,
}

/// A body of the server's, and what is counted until it ends.
#[derive(Debug)]
pub(crate) struct Upstream {
    body: Answer,
    open: Open,
    _active: Active,
}

impl Upstream {
    pub(crate) fn new(body: Answer, active: Active, open: Open) -> Self {
        Self {
            body,
            open,
            _active: active,
        }
    }
}

impl ResponseBody {
    /// Gives up all but what keeps the request open.
    pub(crate) fn finish(self) -> Option<Open> {
        match self {
            Self::Own(own) => own.map(|own| own.open),
            Self::Upstream(own) => Some(own.open),
        }
    }

    pub(crate) fn own(text: Option<Bytes>, open: Open) -> Self {
        Self::Own(Some(Box::new(Own { text, open })))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        match self.get_mut() {
            Self::Own(own) => {
                let text = own.as_mut().and_then(|own| own.text.take());
                Poll::Ready(text.map(|text| Ok(Frame::data(text))))
            }
            Self::Upstream(own) => {
                let frame = own.body.poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    own.open.relayed(Direction::Tx, data.len() as u64, true);
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(own) => own.as_ref().is_none_or(|own| own.text.is_none()),
            Self::Upstream(own) => own.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(own) => {
                let text = own.as_ref().and_then(|own| own.text.as_ref());
                SizeHint::with_exact(text.map_or(0, |text| text.len() as u64))
            }
            Self::Upstream(own) => own.body.size_hint(),
        }
    }
}
