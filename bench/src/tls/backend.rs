//! What canned connections end at: skips a ClientHello, reads one byte, and does what it says.
//!
//! ```text
//! ClientHello │ E │ …  echoes              ClientHello │ S │ …  throws away, and counts
//! ClientHello │ B │ …  echoes, blocking    ClientHello │ G      sends without end
//! ClientHello │ W │ …  tells the address it was reached at, then echoes
//! ```
//!
//! One thread for all connections but those of B, which get a thread each: a round trip then costs
//! two system calls here and no more. Knows nothing of TLS: no handshake is finished.

mod skip;

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::Pid;
use socket2::{Domain, SockRef, Socket, Type};
use testkit::wait;

pub(crate) use self::skip::Command;
use self::skip::Skip;
use crate::cpus;
use crate::poller::{EventFlags, Poller, discard, receive, send};

/// The running thread; dropping it ends it and closes what is open.
#[derive(Debug)]
pub(crate) struct Backend {
    address: SocketAddr,
    counts: Arc<Counts>,
    thread_id: Pid,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of it at any time.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    accepted: AtomicU64,
    discarded: AtomicU64,
}

impl Backend {
    /// Listens on `address` and starts a thread.
    pub(crate) fn start(address: SocketAddr) -> Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr().context("a backend's address")?;
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = UnixStream::pair().context("making a pair of sockets")?;
        let (tell, told) = channel();
        let mut serving = Serving::new(listener, stopped, Arc::clone(&counts))?;
        let thread = thread::Builder::new()
            .name("backend".to_owned())
            .spawn(move || {
                let _ = tell.send(rustix::thread::gettid());
                // Only the kernel's refusal to watch sockets ends it early; the load notices.
                let _ = serving.run();
            })
            .context("starting the backend's thread")?;
        Ok(Self {
            address,
            counts,
            thread_id: told.recv().context("waiting for the backend's thread")?,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Returns how many connections there have been.
    #[cfg(test)]
    pub(crate) fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    /// Returns how many bytes it has thrown away.
    pub(crate) fn discarded(&self) -> u64 {
        self.counts.discarded.load(Ordering::Relaxed)
    }

    /// Binds its thread, and those it will start, to processors.
    pub(crate) fn bind(&self, processors: &[usize]) -> Result<()> {
        cpus::bind(Some(self.thread_id), processors)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving {
    poller: Poller,
    listener: TcpListener,
    stopped: UnixStream,
    counts: Arc<Counts>,
    open: Vec<Option<Connection>>,
    free: Vec<usize>,
    scratch: Vec<u8>,
    /// Never written to, so that it costs no memory: see [`discard`].
    sink: Vec<u8>,
    chunk: Vec<u8>,
}

struct Connection {
    socket: OwnedFd,
    state: State,
    _count: Counted,
}

enum State {
    Skip(Skip),
    Echo,
    Generate,
    Sink,
}

enum Next {
    Close,
    HandOver,
    Stay,
}

impl Serving {
    fn new(listener: TcpListener, stopped: UnixStream, counts: Arc<Counts>) -> Result<Self> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, EventFlags::IN)?;
        poller.add(&stopped, STOP, EventFlags::IN)?;
        Ok(Self {
            poller,
            listener,
            stopped,
            counts,
            open: Vec::new(),
            free: Vec::new(),
            scratch: vec![0; 16 << 10],
            sink: vec![0; SINK],
            chunk: vec![0x5a; CHUNK],
        })
    }

    fn run(&mut self) -> Result<()> {
        loop {
            for (number, flags) in self.poller.wait(None)? {
                match number {
                    STOP => {
                        let ended = self.stopped.read(&mut [0; 1]).is_ok_and(|count| count == 0);
                        debug_assert!(ended, "nothing is ever said");
                        return Ok(());
                    }
                    LISTENER => self.accept()?,
                    number => self.turn(usize::try_from(number).unwrap_or(usize::MAX), flags)?,
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // Out of descriptors, most likely: let some be closed first.
                    wait::pause(Duration::from_millis(5));
                    return Ok(());
                }
                // None left, or one that its peer took back.
                Err(_) => return Ok(()),
            };
            let place = self.free.pop().unwrap_or_else(|| {
                self.open.push(None);
                self.open.len() - 1
            });
            let interest = EventFlags::IN | EventFlags::RDHUP;
            self.poller.add(&socket, place as u64, interest)?;
            self.counts.accepted.fetch_add(1, Ordering::Relaxed);
            if let Some(slot) = self.open.get_mut(place) {
                *slot = Some(Connection {
                    socket,
                    state: State::Skip(Skip::default()),
                    _count: Counted::new(&self.counts),
                });
            }
        }
        Ok(())
    }

    fn turn(&mut self, place: usize, flags: EventFlags) -> Result<()> {
        let Some(Some(mut connection)) = self.open.get_mut(place).map(Option::take) else {
            return Ok(());
        };
        // A peer that resets, or goes away while it is sent to, ends its connection and no more.
        let next = self
            .serve(&mut connection, place, flags)
            .unwrap_or(Next::Close);
        match next {
            Next::Stay => {
                if let Some(slot) = self.open.get_mut(place) {
                    *slot = Some(connection);
                }
                return Ok(());
            }
            Next::HandOver => {
                self.poller.remove(&connection.socket)?;
                answer_blocking(connection)?;
            }
            Next::Close => drop(connection),
        }
        self.free.push(place);
        Ok(())
    }

    fn serve(
        &mut self,
        connection: &mut Connection,
        place: usize,
        flags: EventFlags,
    ) -> Result<Next> {
        let socket = connection.socket.as_fd();
        match &mut connection.state {
            State::Generate => {
                if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                    return Ok(Next::Close);
                }
                send(socket, &self.chunk)?;
            }
            State::Sink => match discard(socket, &mut self.sink)? {
                Some(0) => return Ok(Next::Close),
                Some(count) => self.count(count),
                None => {}
            },
            State::Echo => match receive(socket, &mut self.scratch)? {
                Some(0) => return Ok(Next::Close),
                Some(count) => return echo(socket, self.scratch.get(..count)),
                None => {}
            },
            State::Skip(skip) => {
                let count = match receive(socket, &mut self.scratch)? {
                    Some(0) => return Ok(Next::Close),
                    Some(count) => count,
                    None => return Ok(Next::Stay),
                };
                let bytes = self.scratch.get(..count).unwrap_or_default();
                let Some((command, rest)) = skip.feed(bytes)? else {
                    return Ok(Next::Stay);
                };
                return self.obey(connection, place, command, count - rest..count);
            }
        }
        Ok(Next::Stay)
    }

    /// Begins what a client asks for, with what came behind its question.
    fn obey(
        &self,
        connection: &mut Connection,
        place: usize,
        command: Command,
        rest: std::ops::Range<usize>,
    ) -> Result<Next> {
        let socket = connection.socket.as_fd();
        let rest = self.scratch.get(rest).unwrap_or_default();
        match command {
            Command::Block => {
                echo(socket, Some(rest))?;
                return Ok(Next::HandOver);
            }
            Command::Echo => {
                connection.state = State::Echo;
                return echo(socket, Some(rest));
            }
            Command::Generate => {
                let interest = EventFlags::OUT | EventFlags::RDHUP;
                self.poller.change(socket, place as u64, interest)?;
                connection.state = State::Generate;
            }
            Command::Sink => {
                self.count(rest.len());
                connection.state = State::Sink;
            }
            Command::Where => {
                connection.state = State::Echo;
                let local = SockRef::from(&connection.socket).local_addr()?;
                let local = local.as_socket_ipv4().context("no address of IPv4")?;
                return echo(socket, Some(&local.ip().octets()));
            }
        }
        Ok(Next::Stay)
    }

    fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.counts.discarded.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Echoes are of small messages: a peer that does not take one is done with.
fn echo(socket: impl AsFd, bytes: Option<&[u8]>) -> Result<Next> {
    let bytes = bytes.unwrap_or_default();
    if bytes.is_empty() || send(socket, bytes)? == bytes.len() {
        return Ok(Next::Stay);
    }
    Ok(Next::Close)
}

/// Echoes on a thread of its own, which begins on the processors of this one.
fn answer_blocking(connection: Connection) -> Result<()> {
    let answer = move || -> std::io::Result<()> {
        let Connection { socket, _count, .. } = connection;
        let mut stream = TcpStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let mut bytes = [0; 4096];
        loop {
            let count = stream.read(&mut bytes)?;
            let Some(some) = bytes.get(..count).filter(|some| !some.is_empty()) else {
                return Ok(());
            };
            std::io::Write::write_all(&mut stream, some)?;
        }
    };
    thread::Builder::new()
        .name("echo".to_owned())
        .spawn(move || drop(answer()))
        .map(drop)
        .context("starting a thread")
}

/// Listens with a queue that is long enough for any load here.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let what = || format!("listening on {address}");
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, None).with_context(what)?;
    socket.set_reuse_address(true).with_context(what)?;
    socket.set_nonblocking(true).with_context(what)?;
    socket.bind(&address.into()).with_context(what)?;
    socket.listen(BACKLOG).with_context(what)?;
    Ok(socket.into())
}

/// Counts one open connection for as long as it lives.
struct Counted(Arc<Counts>);

impl Counted {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
/// So many in a row, before those that are open get their turn.
const ACCEPTS: usize = 64;
const BACKLOG: i32 = 8192;

/// What a socket has ready is thrown away at once.
pub(super) const SINK: usize = 4 << 20;

/// What is sent at once: in the processor's second cache, and few system calls.
pub(super) const CHUNK: usize = 256 << 10;

#[cfg(test)]
mod tests;
