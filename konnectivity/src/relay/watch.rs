//! Detects that the peer of a socket is gone while the socket is not read.
//!
//! A peer that has closed one direction of a connection may be gone altogether: both look the same
//! until something is sent. And a socket is not read while the tunnel is full. In these two cases,
//! and in no other, the socket is checked from time to time.

use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::relay::is_gone;
use knp_proto::EndReason;
use tokio::time::{Instant, Sleep, sleep};

use super::RelayEnd;

/// The watch over one socket; nothing runs while there is nothing to watch for.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Since when nothing has moved.
    since: Option<Instant>,
}

impl Watch {
    /// Something moved.
    pub(super) fn progress(&mut self) {
        self.sleep = None;
        self.since = None;
    }

    /// Ready once the connection is to be given up: when nothing has moved for long while it is
    /// `half_closed`, or when its peer is seen to be gone while it is `unread`.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        fd: Option<BorrowedFd<'_>>,
        half_closed: bool,
        unread: bool,
    ) -> Poll<RelayEnd> {
        if !half_closed && !unread {
            self.progress();
            return Poll::Pending;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        loop {
            let sleep = (self.sleep).get_or_insert_with(|| Box::pin(sleep(PERIOD)));
            ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
            if unread && fd.is_some_and(|fd| is_gone(fd, false)) {
                let error = io::ErrorKind::ConnectionReset.into();
                return Poll::Ready(RelayEnd::Socket(error));
            }
            if half_closed && since.elapsed() >= HALF_CLOSED_LIMIT {
                return Poll::Ready(RelayEnd::Tunnel(EndReason::LingerTimeout));
            }
        }
    }
}

/// Time between looks.
const PERIOD: Duration = Duration::from_secs(2);
/// Silence after which a connection that is closed in one direction is taken for closed.
const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(600);
