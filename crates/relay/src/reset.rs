//! Ending a connection by a reset, behind what was written to it.
//!
//! ```text
//!     written ──▶ the kernel's queue ──▶ sent? ──▶ close: RST
//! ```
//!
//! Closing with a linger time of zero discards what the kernel has not sent yet (tcp(7), socket(7)),
//! so that is awaited. What was sent and is lost on the path is not sent again: that is a reset's
//! nature. Closes nothing itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::time::{sleep, timeout};

/// Longest time for a peer to receive what was read for it before its connection is reset.
pub const RESET_LIMIT: Duration = Duration::from_secs(30);

/// Makes closing a TCP socket reset its connection. Does nothing to other sockets.
pub fn reset_on_close(socket: &impl AsFd) {
    // Fails only on a socket that is gone already.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// As [`reset_on_close`], and completes once the kernel has sent what was written to the socket, at
/// the latest after `limit`. Also in effect when the future is dropped.
pub async fn reset_when_sent(socket: &impl AsFd, limit: Duration) {
    reset_on_close(socket);
    // From here on it is writable when nothing is unsent (tcp(7), TCP_NOTSENT_LOWAT).
    if SockRef::from(socket).set_tcp_notsent_lowat(1).is_err() {
        return;
    }
    let sent = async {
        let mut pause = FIRST_PAUSE;
        while !is_writable(socket) {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    };
    let _ = timeout(limit, sent).await;
}

/// Returns whether both directions of a connection are over, as a peer's reset leaves it. A peer that
/// has ended one direction may still read. With the write side `shut` a hang-up is the peer's end
/// alone, and only an error counts: what it sent before may still wait to be read.
pub fn is_gone(socket: BorrowedFd<'_>, shut: bool) -> bool {
    let mut gone = PollFlags::ERR;
    gone.set(PollFlags::HUP, !shut);
    poll_now(&socket, PollFlags::empty()).intersects(gone)
}

/// Asks the kernel: the runtime's readiness was reported under another threshold, or before segments
/// were filled up, which goes beyond `TCP_NOTSENT_LOWAT`. Also true for a socket that failed, which
/// poll(2) reports in any case. After `false` the socket reports when it is writable.
pub fn is_writable(socket: &impl AsFd) -> bool {
    !poll_now(socket, PollFlags::OUT).is_empty()
}

/// Returns which of `events` a socket has now, and its failures; empty also when it cannot be asked.
fn poll_now(socket: &impl AsFd, events: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(socket, events)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let polled = poll(&mut fds, Some(&at_once));
    let [fd] = fds;
    match polled {
        Ok(_) => fd.revents(),
        Err(_) => PollFlags::empty(),
    }
}

/// Pauses between looks: from here, doubling,
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// up to here.
const LAST_PAUSE: Duration = Duration::from_millis(64);
