//! Ending a connection by a reset, behind what was written to it.
//!
//! ```text
//!     written ──▶ the kernel's queue ──▶ sent? ──▶ close: RST
//! ```
//!
//! Closing with a linger time of zero throws away what the kernel has not sent yet (tcp(7),
//! socket(7)), so that is waited for. What was sent and is lost on the way is not sent again: that
//! is a reset's nature. Closes nothing itself.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::time::{sleep, timeout};

/// Longest time for a peer to receive what was read for it before its connection is reset.
pub const RESET_LIMIT: Duration = Duration::from_secs(30);

/// Has the close of a TCP socket reset its connection. A socket that knows no reset stays as it is.
pub fn reset_on_close(socket: &impl AsFd) {
    // Fails only on a socket that is gone already.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// As [`reset_on_close`], and completes once the kernel has sent what was written to the socket,
/// at the latest after `limit`. Dropped before, closing resets the connection all the same.
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

/// Asks the kernel: the runtime's readiness was reported under another threshold.
fn is_writable(socket: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Also ends the wait for a socket that failed, which poll(2) reports in any case.
    poll(&mut fds, Some(&at_once)) != Ok(0)
}

/// Pauses between looks: from here, doubling,
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// up to here.
const LAST_PAUSE: Duration = Duration::from_millis(64);
