//! What a client sends behind the head of a request, by either protocol.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http2_proto::{Fields, Read, StreamEnd};
use http2_server::Reader;
use hyper::body::Incoming;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("the client failed")]
    Http1(#[from] hyper::Error),
    #[error("the client failed")]
    Http2(#[from] StreamEnd),
    #[error("the trailers are malformed")]
    Trailers,
}

/// A client's body as it comes.
#[derive(Debug)]
pub(crate) enum ClientBody {
    Http1(Incoming),
    Http2(Http2Body),
}

/// A body by HTTP/2.
#[derive(Debug)]
pub(crate) struct Http2Body {
    reader: Reader,
    /// What of the length that the client has said was not read.
    left: Option<u64>,
}

impl Http2Body {
    pub(super) fn new(reader: Reader, length: Option<u64>) -> Self {
        let left = length;
        Self { reader, left }
    }

    fn poll_frame(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReceiveError>>> {
        let frame = match ready!(self.reader.poll_read(cx))? {
            Read::Data(data) => {
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(data.len() as u64);
                }
                Frame::data(data)
            }
            Read::Trailers(fields) => {
                Frame::trailers(headers(&fields).ok_or(ReceiveError::Trailers)?)
            }
            Read::End => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(frame)))
    }
}

/// Makes headers of fields, whose values they share; `None` when one is malformed.
pub(super) fn headers(fields: &Fields) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields.iter() {
        let name = HeaderName::from_lowercase(name).ok()?;
        let value = HeaderValue::from_maybe_shared(fields.share(value)).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ReceiveError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReceiveError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(ReceiveError::from),
            Self::Http2(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.reader.is_at_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) if body.reader.is_at_end() => SizeHint::with_exact(0),
            Self::Http2(body) => body.left.map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}
