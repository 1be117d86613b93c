//! Sends datagrams, those that follow each other to one receiver in one call.
//!
//! ```text
//!     push(to, parts), slot(to, fill) ─▶ a run: one receiver, one size ─▶ sendmsg, UDP_SEGMENT
//!                                          another receiver or size, or full: the run is sent first
//! ```
//!
//! What the kernel does not take is counted and forgotten, since senders of datagrams repeat
//! them. A run that cannot be split (a device without the offload, a path narrower than the
//! datagrams) is sent one by one, and for a minute so are datagrams of that size to that receiver:
//! the path to another one may take them.

mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::time::Duration;

use tokio::time::Instant;

use self::message::Message;
use crate::socket::Datagrams;

/// Bytes of one run: what UDP over IPv6 carries, which is what the kernel checks.
const RUN: usize = 65_487;

/// How long a refused size is remembered. Paths change, and asking anew costs one refused call.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Receivers remembered, 64 bytes each.
const MAX_REMEMBERED: usize = 1024;

/// What waits to be sent on one socket: 64 KiB, which take memory as far as they were used.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    len: usize,
    route: Option<Route>,
    /// Bytes of each datagram of the run, the last one excepted.
    size: usize,
    count: usize,
    /// The last one was shorter, so it is the last.
    complete: bool,
    /// Datagrams above this are sent one by one, in this run.
    largest_joined: usize,
    refusals: Refusals,
    tally: Tally,
}

/// Where a datagram goes, and which address of ours it comes from. A connected socket needs
/// neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    to: Option<SocketAddr>,
    from: Option<IpAddr>,
}

/// What became of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Calls that this needed.
    pub messages: u64,
    /// Datagrams lost because the socket's buffer was full.
    pub blocked: u64,
    /// Datagrams larger than the device takes, or than any.
    pub too_large: u64,
    /// Datagrams refused for another reason, such as for want of a route.
    pub failed: u64,
    /// Runs that the kernel would not split, and that went one by one.
    pub gso_refused: u64,
}

impl Tally {
    /// Returns the datagrams that were not sent.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.blocked + self.too_large + self.failed
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.messages += other.messages;
        self.blocked += other.blocked;
        self.too_large += other.too_large;
        self.failed += other.failed;
        self.gso_refused += other.gso_refused;
    }
}

impl Outbox {
    /// Adds a datagram, put together from `head` and `body`, from the address `from` of ours. On a
    /// connected socket `to` is `None`.
    pub fn push(
        &mut self,
        through: &Datagrams,
        to: impl Into<Option<SocketAddr>>,
        from: Option<IpAddr>,
        (head, body): (&[u8], &[u8]),
    ) {
        if !self.has_room_for(head.len() + body.len()) {
            self.flush(through); // rather than move the datagram afterwards
        }
        let route = Route {
            to: to.into(),
            from,
        };
        self.add(through, route, head, body.len(), |buf| {
            buf.copy_from_slice(body);
            Some(body.len())
        });
    }

    /// Adds a datagram that begins with `head` and whose other bytes, `max` at most, `fill` puts
    /// where they are sent from. It returns how many there are; if none, nothing is sent. A `max`
    /// above what a datagram can hold, 65,487 bytes with the head, is counted as too large.
    pub fn slot(
        &mut self,
        through: &Datagrams,
        to: impl Into<Option<SocketAddr>>,
        from: Option<IpAddr>,
        head: &[u8],
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let route = Route {
            to: to.into(),
            from,
        };
        self.add(through, route, head, max, |buf| {
            Some(fill(buf)).filter(|filled| *filled > 0)
        });
    }

    fn add(
        &mut self,
        through: &Datagrams,
        route: Route,
        head: &[u8],
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) {
        let most = head.len() + max;
        if most > RUN {
            self.tally.too_large += 1;
            return;
        }
        if !self.may_go_on(through, route, most) {
            self.flush(through);
        }
        let start = self.len;
        let buf = self.bytes.get_mut(start..start + most).unwrap_or_default();
        let (front, body) = buf.split_at_mut(head.len());
        front.copy_from_slice(head);
        let Some(filled) = fill(body) else {
            return;
        };
        let len = head.len() + filled.min(max);
        if !self.has_room_for(len) {
            self.flush(through);
            self.bytes.copy_within(start..start + len, 0);
        }
        if self.count == 0 {
            (self.route, self.size) = (Some(route), len);
            self.largest_joined = self.refusals.largest_joined(route.to);
        }
        self.complete = len < self.size;
        self.count += 1;
        self.len += len;
    }

    /// Returns whether the run may get another datagram of at most `most` bytes.
    fn may_go_on(&self, through: &Datagrams, route: Route, most: usize) -> bool {
        self.count == 0
            || self.route == Some(route)
                && !self.complete
                && (1..=self.largest_joined).contains(&self.size)
                && self.count < through.max_segments()
                && self.len + most <= RUN
    }

    /// Returns whether a datagram is no larger than the others of the run.
    fn has_room_for(&self, len: usize) -> bool {
        self.count == 0 || len <= self.size
    }

    /// Sends what waits.
    pub fn flush(&mut self, through: &Datagrams) {
        let Some(route) = self.route.take() else {
            return;
        };
        let (count, size) = (self.count, self.size);
        let run = self.bytes.get(..self.len).unwrap_or_default();
        (self.len, self.count, self.complete) = (0, 0, false);
        let message = Message::new(through, route.to, route.from);
        let tally = &mut self.tally;
        if count == 1 {
            tally.one(message.send(run));
            return;
        }
        let error = match message.send_joined(run, size) {
            Ok(()) => return tally.taken(count),
            Err(error) => error,
        };
        if !is_refusal(&error) {
            return tally.lose(count, &error);
        }
        let before = tally.sent;
        for datagram in run.chunks(size.max(1)) {
            tally.one(message.send(datagram));
        }
        if tally.sent > before {
            tally.gso_refused += 1;
            // The device cannot do it, whatever the size; or this size was too large for the path.
            let never = error.raw_os_error() == Some(libc::EIO);
            let largest = if never { 0 } else { size.saturating_sub(1) };
            self.refusals.remember(route.to, largest);
            tracing::debug!(bytes = size, %error, "datagrams are sent one by one");
        }
    }

    /// Returns what became of datagrams since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
}

impl Default for Outbox {
    /// Returns an empty one.
    fn default() -> Self {
        Self {
            bytes: vec![0; RUN],
            len: 0,
            route: None,
            size: 0,
            count: 0,
            complete: false,
            largest_joined: RUN,
            refusals: Refusals::default(),
            tally: Tally::default(),
        }
    }
}

/// The largest datagrams that are joined for receivers whose runs the kernel would not split, and
/// when it last did not.
#[derive(Debug, Default)]
struct Refusals(HashMap<Option<SocketAddr>, (usize, Instant)>);

impl Refusals {
    fn largest_joined(&mut self, to: Option<SocketAddr>) -> usize {
        match self.0.get(&to) {
            None => RUN,
            Some((largest, at)) if at.elapsed() < REMEMBERED => *largest,
            Some(_) => {
                self.0.remove(&to);
                RUN
            }
        }
    }

    fn remember(&mut self, to: Option<SocketAddr>, largest: usize) {
        if self.0.len() >= MAX_REMEMBERED {
            // Those that still apply are refused once more.
            self.0.clear();
        }
        self.0.insert(to, (largest, Instant::now()));
    }
}

impl Tally {
    fn taken(&mut self, datagrams: usize) {
        self.sent += datagrams as u64;
        self.messages += 1;
    }

    fn one(&mut self, sent: io::Result<()>) {
        match sent {
            Ok(()) => self.taken(1),
            Err(error) => self.lose(1, &error),
        }
    }

    fn lose(&mut self, datagrams: usize, error: &io::Error) {
        let lost = match error.raw_os_error() {
            Some(libc::EAGAIN) => &mut self.blocked,
            Some(libc::EMSGSIZE) => &mut self.too_large,
            _ => &mut self.failed,
        };
        *lost += datagrams as u64;
    }
}

/// Returns whether the kernel would not split a run, which is no error of its datagrams: no
/// checksums by the device (EIO), larger than the path (EINVAL, later EMSGSIZE), not implemented.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}
