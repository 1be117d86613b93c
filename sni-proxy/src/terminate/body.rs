//! A server's body on its way through: as it comes, a frame at a time, as fast as the client takes it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use relay::{Direction, Meter};

use super::exchange::Open;
use super::upstream::Active;

/// What a client is answered; its request is open for as long.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// The gateway's own words. An upgraded request stays open without this.
    Own(
        Option<Bytes>,
        #[expect(dead_code, reason = "open until it is dropped")] Option<Open>,
    ),
    /// The server's.
    Upstream(Box<Upstream>),
}

/// A body of the server's, and what is counted until it ends.
#[derive(Debug)]
pub(crate) struct Upstream {
    body: Incoming,
    open: Open,
    _active: Active,
}

impl Upstream {
    pub(crate) fn new(body: Incoming, active: Active, open: Open) -> Self {
        Self {
            body,
            open,
            _active: active,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(text, _) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Upstream(own) => {
                let frame = Pin::new(&mut own.body).poll_frame(cx);
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
