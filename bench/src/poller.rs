//! epoll with numbers for names, and sockets that never block: the cheapest load there is.
//!
//! ```text
//! socket ──add(number)──▶ Poller ──wait──▶ [(number, flags)]
//! ```
//!
//! Level-triggered. The owner of the sockets gives them numbers; closing one takes it out.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

pub(crate) use rustix::event::epoll::EventFlags;

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).context("making an epoll instance")?,
        })
    }

    pub(crate) fn add(&self, socket: impl AsFd, number: u64, flags: EventFlags) -> Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(number), flags)
            .context("watching a socket")
    }

    pub(crate) fn change(&self, socket: impl AsFd, number: u64, flags: EventFlags) -> Result<()> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(number), flags)
            .context("watching a socket")
    }

    /// No longer watches `socket`.
    pub(crate) fn remove(&self, socket: impl AsFd) -> Result<()> {
        epoll::delete(&self.epoll, socket).context("watching a socket no longer")
    }

    /// Waits for at most `limit` (whole milliseconds), for ever without one, and returns what
    /// happened; nothing, when nothing did.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<Vec<(u64, EventFlags)>> {
        let limit = limit.map(Timespec::try_from).transpose();
        let limit = limit.context("a time to wait")?;
        let mut events = [const { MaybeUninit::<Event>::uninit() }; MAX_EVENTS];
        let happened = match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
            Ok((happened, _)) => happened,
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error).context("waiting for sockets"),
        };
        let told = |event: &Event| {
            let (data, flags) = (event.data, event.flags);
            (data.u64(), flags)
        };
        Ok(happened.iter().map(told).collect())
    }
}

/// Begins to connect to `address`, with a socket that never blocks.
pub(crate) fn connect(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Sends what the socket takes of `bytes` now; 0 when it takes nothing, or is not connected yet.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(0),
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Receives what is there; `None` when that is nothing yet, 0 bytes at the end.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8]) -> Result<Option<usize>, Errno> {
    with_flags(socket, into, RecvFlags::empty())
}

/// As [`receive`], but throws away what is there: the kernel copies nothing into `into`, whose
/// length is the most that is thrown away at once (tcp(7), `MSG_TRUNC`).
pub(crate) fn discard(socket: impl AsFd, into: &mut [u8]) -> Result<Option<usize>, Errno> {
    with_flags(socket, into, RecvFlags::TRUNC)
}

fn with_flags(
    socket: impl AsFd,
    into: &mut [u8],
    flags: RecvFlags,
) -> Result<Option<usize>, Errno> {
    loop {
        match rustix::net::recv(&socket, &mut *into, flags) {
            Ok((_, count)) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// More are told by the next wait.
const MAX_EVENTS: usize = 256;
