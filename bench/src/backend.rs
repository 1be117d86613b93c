//! What canned connections end at: skips a ClientHello, reads one byte, and does what it says.
//!
//! ```text
//! ClientHello │ E │ …  echoes              ClientHello │ S │ …  throws away, and counts
//! ClientHello │ B │ …  echoes, blocking    ClientHello │ G      sends without end
//! ClientHello │ W │ …  sends the address it was reached at, then echoes
//! ClientHello │ D │ n  sends n bytes       ClientHello │ T │ n │ …  throws n bytes away, sends one
//! ClientHello │ H │ …  never reads, until it is released
//! ```
//!
//! Lengths are of eight bytes, big endian. A client without TLS sends an empty record in place of the
//! ClientHello. The number of open connections is known at any time: what is left open has leaked.
//!
//! One thread for all connections but those of B, which get a thread each: a round trip then costs
//! two system calls here and no more. Knows nothing of TLS: no handshake is finished.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::net::RecvFlags;
use rustix::process::Pid;
use socket2::{Domain, Socket, Type};
use testkit::background::{self, Background};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::cpus;

/// The running thread; dropping it ends it and closes what is open.
#[derive(Debug)]
pub(crate) struct Backend {
    address: SocketAddr,
    counts: Arc<Counts>,
    thread_id: Pid,
    _thread: Background,
}

/// What is known of it at any time.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    accepted: AtomicU64,
    discarded: AtomicU64,
    release: Notify,
}

/// What a client wants of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Command {
    /// Echo, by a thread that blocks.
    Block = b'B' as isize,
    Echo = b'E' as isize,
    Generate = b'G' as isize,
    /// Never read.
    Hold = b'H' as isize,
    Sink = b'S' as isize,
    /// Send as many bytes as the length behind it says.
    Source = b'D' as isize,
    /// Throw as many bytes away as the length behind it says, then send one.
    Take = b'T' as isize,
    /// Send the address that the connection came to, four bytes of IPv4, then echo.
    Where = b'W' as isize,
}

impl Command {
    pub(crate) fn byte(self) -> u8 {
        self as u8
    }

    /// Returns what a client without TLS says.
    pub(crate) fn bare(self) -> [u8; 6] {
        [HANDSHAKE, 3, 1, 0, 0, self.byte()]
    }
}

impl Backend {
    pub(crate) fn start(address: SocketAddr) -> Result<Self> {
        let what = || format!("listening on {address}");
        let listener = listen(address).with_context(what)?;
        let address = listener.local_addr().with_context(what)?;
        let counts = Arc::new(Counts::default());
        let (sender, receiver) = channel();
        let shared = Arc::clone(&counts);
        let thread = Background::spawn("backend", move || {
            let _ = sender.send(rustix::thread::gettid());
            background::accept(listener, move |stream, _| {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                let counted = Counted::new(&shared);
                // A peer that resets, or goes away meanwhile, ends its connection and no more.
                async move { drop(serve(stream, counted).await) }
            })
        })?;
        let thread_id = receiver.recv().context("waiting for the backend")?;
        Ok(Self {
            address,
            counts,
            thread_id,
            _thread: thread,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn discarded(&self) -> u64 {
        self.counts.discarded.load(Ordering::Relaxed)
    }

    pub(crate) fn release(&self) {
        self.counts.release.notify_waiters();
    }

    /// Binds its thread, and those it will start, to processors.
    pub(crate) fn bind(&self, processors: &[usize]) -> Result<()> {
        cpus::bind(Some(self.thread_id), processors)
    }
}

/// Listens with a queue that is long enough for any load here.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(8192)?;
    Ok(socket.into())
}

async fn serve(mut stream: TcpStream, counted: Counted) -> Result<()> {
    stream.set_nodelay(true)?;
    let (command, mut rest) = question(&mut stream).await?;
    match command {
        Command::Block => {
            stream.write_all(&rest).await?;
            let stream = stream.into_std()?;
            // It begins on the processors of this one.
            let thread = thread::Builder::new().name("echo".to_owned());
            thread.spawn(move || drop(echo_blocking(stream, counted)))?;
            return Ok(());
        }
        Command::Echo => {}
        Command::Generate => loop {
            stream.write_all(&CHUNK).await?;
        },
        Command::Hold => {
            counted.0.release.notified().await;
            return Ok(());
        }
        Command::Sink => {
            let counts = &counted.0.discarded;
            counts.fetch_add(rest.len() as u64, Ordering::Relaxed);
            drop(rest);
            let mut sink = sink();
            loop {
                let count = discard(&stream, &mut sink).await?;
                ensure!(count > 0, "closed");
                counts.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
        Command::Source => {
            let (mut left, _) = length(&mut stream, rest).await?;
            while left > 0 {
                let len = usize::try_from(left).map_or(CHUNK.len(), |left| left.min(CHUNK.len()));
                stream.write_all(&CHUNK[..len]).await?;
                left -= len as u64;
            }
            rest = Vec::new();
        }
        Command::Take => {
            let (length, mut taken) = length(&mut stream, rest).await?;
            let mut sink = sink();
            while taken < length {
                let count = discard(&stream, &mut sink).await?;
                ensure!(count > 0, "closed");
                taken += count as u64;
            }
            rest = vec![1];
        }
        Command::Where => {
            let IpAddr::V4(address) = stream.local_addr()?.ip() else {
                bail!("no address of IPv4");
            };
            rest = address.octets().to_vec();
        }
    }
    stream.write_all(&rest).await?;
    drop(rest);
    // Small: thousands of connections may be open.
    let mut bytes = [0; 64];
    loop {
        let count = stream.read(&mut bytes).await?;
        ensure!(count > 0, "closed");
        stream.write_all(&bytes[..count]).await?;
    }
}

/// Reads a ClientHello and a command; also returns what came behind it.
async fn question(stream: &mut TcpStream) -> Result<(Command, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(2048);
    loop {
        ensure!(stream.read_buf(&mut bytes).await? > 0, "closed");
        if let Some((command, rest)) = command(&bytes)? {
            return Ok((command, rest.to_vec()));
        }
    }
}

/// Reads a length, which may have come in part; also returns how many bytes came behind it.
async fn length(stream: &mut TcpStream, mut bytes: Vec<u8>) -> Result<(u64, u64)> {
    loop {
        if let Some((length, rest)) = bytes.split_first_chunk() {
            return Ok((u64::from_be_bytes(*length), rest.len() as u64));
        }
        ensure!(stream.read_buf(&mut bytes).await? > 0, "closed");
    }
}

/// Finds the command behind a ClientHello in one TLS record (RFC 8446 section 5.1), and what is
/// behind it; `None` while it has not come.
fn command(bytes: &[u8]) -> Result<Option<(Command, &[u8])>> {
    let Some(([kind, _, _, high, low], record)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    ensure!(*kind == HANDSHAKE, "no TLS record with a handshake");
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let Some((byte, rest)) = record.get(length..).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    let mut all = Command::value_variants().iter();
    let command = all.find(|command| command.byte() == *byte);
    let command = command.with_context(|| format!("{byte:#04x} asks for nothing"))?;
    Ok(Some((*command, rest)))
}

fn echo_blocking(mut stream: std::net::TcpStream, _counted: Counted) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut bytes = [0; 4096];
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count])?;
    }
}

/// Throws away what has come, and returns how much that was: the kernel copies nothing into `sink`,
/// whose length is the most that is thrown away at once (tcp(7), `MSG_TRUNC`).
pub(crate) async fn discard(stream: &TcpStream, sink: &mut [u8]) -> io::Result<usize> {
    let receive = || Ok(rustix::net::recv(stream, &mut *sink, RecvFlags::TRUNC)?.1);
    stream.async_io(Interest::READABLE, receive).await
}

/// For [`discard`]. Never written to, so that it costs no memory.
pub(crate) fn sink() -> Vec<u8> {
    vec![0; 4 << 20]
}

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

const HANDSHAKE: u8 = 22;

/// What is sent at once: in the processor's second cache, and few system calls.
pub(crate) static CHUNK: [u8; 256 << 10] = [0x5a; 256 << 10];

#[cfg(test)]
mod tests;
