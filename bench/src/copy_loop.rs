//! A loop that copies and does nothing else: what whatever copies costs on this machine at least.
//!
//! ```text
//! accept ─▶ connect ─▶ readable: recv of 1 MiB ─▶ send; what is not taken waits, and reading with it
//! ```
//!
//! Started as a target like any proxy (`profiles/copy-loop.yaml`), it says how much of a figure is the
//! machine's. It looks at no byte, times nothing out and bounds nothing: never use it as a proxy.

use std::mem;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use rustix::net::{SocketFlags, accept_with, sockopt};

use crate::poller::{self, EventFlags, Poller};

/// Copies what comes to one address to another one and back, on one thread, until it is ended.
#[derive(Debug, Args)]
pub(crate) struct CopyLoop {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Where to connect to.
    #[arg(long)]
    to: SocketAddr,
}

/// Runs until it is ended from outside.
pub(crate) fn run(asked: &CopyLoop) -> Result<ExitCode> {
    let listener = TcpListener::bind(asked.listen)
        .with_context(|| format!("listening at {}", asked.listen))?;
    listener.set_nonblocking(true).context("the listener")?;
    let poller = Poller::new()?;
    poller.add(&listener, LISTENER, EventFlags::IN)?;
    let mut pairs = Pairs::default();
    let mut scratch = vec![0; SCRATCH];
    loop {
        for (number, flags) in poller.wait(None)? {
            if number == LISTENER {
                pairs.accept(&poller, &listener, asked.to)?;
            } else {
                pairs.handle(&poller, number, flags, &mut scratch)?;
            }
        }
    }
}

/// Connections, by number.
#[derive(Debug, Default)]
struct Pairs {
    places: Vec<Option<[Side; 2]>>,
    free: Vec<usize>,
}

/// One socket of two.
#[derive(Debug)]
struct Side {
    socket: OwnedFd,
    /// What it is yet to be sent.
    rest: Vec<u8>,
}

impl Pairs {
    fn accept(&mut self, poller: &Poller, listener: &TcpListener, to: SocketAddr) -> Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // A connection that cannot be served is closed, and missed by the load.
        while let Ok(client) = accept_with(listener, flags) {
            let Ok(server) = poller::connect(to) else {
                continue;
            };
            let place = self.free.pop().unwrap_or_else(|| {
                self.places.push(None);
                self.places.len() - 1
            });
            for (side, socket) in [&client, &server].into_iter().enumerate() {
                sockopt::set_tcp_nodelay(socket, true).context("a socket's option")?;
                poller.add(socket, number(place, side), EventFlags::IN)?;
            }
            self.places[place] = Some([client, server].map(|socket| Side {
                socket,
                rest: Vec::new(),
            }));
        }
        Ok(())
    }

    fn handle(
        &mut self,
        poller: &Poller,
        number: u64,
        flags: EventFlags,
        scratch: &mut [u8],
    ) -> Result<()> {
        let place = usize::try_from(number >> 1).context("a number that was given")? - 1;
        let Some(Some([client, server])) = self.places.get_mut(place) else {
            return Ok(()); // closed by an event before this one
        };
        let (here, there) = if number & 1 == 0 {
            (client, server)
        } else {
            (server, client)
        };
        if copy(here, there, flags, scratch).is_none() {
            self.places[place] = None;
            self.free.push(place);
            return Ok(());
        }
        for (side, ours, other) in [(number, &*here, &*there), (number ^ 1, there, here)] {
            let mut wanted = EventFlags::empty();
            wanted.set(EventFlags::IN, other.rest.is_empty());
            wanted.set(EventFlags::OUT, !ours.rest.is_empty());
            if wanted != EventFlags::IN || flags.contains(EventFlags::OUT) {
                poller.change(&ours.socket, side, wanted)?;
            }
        }
        Ok(())
    }
}

/// Does once what a socket is ready for; `None` when the connection is over.
fn copy(here: &mut Side, there: &mut Side, flags: EventFlags, scratch: &mut [u8]) -> Option<()> {
    if flags.contains(EventFlags::OUT) {
        let rest = mem::take(&mut here.rest);
        let sent = poller::send(&here.socket, &rest).ok()?;
        here.rest = rest.get(sent..).unwrap_or_default().to_vec();
    }
    if there.rest.is_empty() && flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
    {
        let Some(read) = poller::receive(&here.socket, scratch).ok()? else {
            return Some(());
        };
        let read = scratch.get(..read).filter(|read| !read.is_empty())?;
        let sent = poller::send(&there.socket, read).ok()?;
        there.rest = read.get(sent..).unwrap_or_default().to_vec();
    }
    Some(())
}

/// The number of a socket: the pair's place from 1 on, and which of the two it is.
fn number(place: usize, side: usize) -> u64 {
    ((place as u64 + 1) << 1) | side as u64
}

const LISTENER: u64 = 0;

/// Bytes of one read, as many as the gateway copies at once: 16 KiB cost twice as much.
const SCRATCH: usize = 1024 * 1024;
