//! One TCP connection without a tunnel that was opened and used while the line was empty, as a tunnel's
//! own connection is: its congestion control knows the empty line's round trip. iperf3 opens its
//! connections when it begins to send.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use testkit::wait::{self, Stopwatch};

use super::iperf::{Bulk, Moved};
use super::network::Network;
use super::ping::INTERVAL;
use crate::latency::Latencies;

#[derive(Debug)]
pub(crate) struct Plain {
    source: TcpStream,
    sink: TcpStream,
}

impl Plain {
    /// Connects the server to `address` at the client, and exchanges 30 bytes, one each 50 ms. The end that
    /// sends afterwards, the client if `reverse`, has `congestion`.
    pub(crate) fn open(
        network: &Network,
        address: Ipv4Addr,
        reverse: bool,
        congestion: &str,
    ) -> Result<Self> {
        let listener = network.client.run(|| TcpListener::bind((address, 0)))??;
        let to = listener.local_addr()?;
        let connect = || TcpStream::connect_timeout(&to, LIMIT);
        let near = network.server.run(connect)?.context("connecting")?;
        let (far, _): (_, SocketAddr) = listener.accept()?;
        let (mut source, mut sink) = if reverse { (far, near) } else { (near, far) };
        SockRef::from(&source)
            .set_tcp_congestion(congestion.as_bytes())
            .with_context(|| format!("setting congestion control {congestion}"))?;
        for stream in [&source, &sink] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_write_timeout(Some(LIMIT))?;
        }
        for _ in 0..EXCHANGES {
            source.write_all(b"?")?;
            sink.read_exact(&mut [0])?;
            sink.write_all(b"!")?;
            source.read_exact(&mut [0])?;
            wait::pause(BETWEEN);
        }
        Ok(Self { source, sink })
    }

    /// Sends as much as goes, for `lead` and `length` of `bulk`, and returns what arrived during the second.
    pub(crate) fn run(self, bulk: Bulk<'_>) -> Result<Moved> {
        let Self { source, sink } = self;
        let clock = Stopwatch::start();
        let Bulk { length, lead, .. } = bulk;
        let bytes = std::thread::scope(|scope| {
            let sent = scope.spawn(|| send(source, clock, lead + length));
            let arrived =
                receive(&sink, clock, lead).and_then(|_| receive(&sink, clock, lead + length));
            drop(sink); // else a write would wait
            let sent = sent.join();
            sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            arrived
        })?;
        Ok(Moved {
            bytes,
            rate: bytes * 8.0 / length.as_secs_f64(),
            retransmits: None,
        })
    }

    /// Fills the connection with messages for `length`, of which few wait unsent, and returns how long it takes until
    /// one has arrived that is due each 10 ms, and `back` besides: as a ping would that had to go through it, ahead of
    /// all that the socket has not taken.
    pub(crate) fn messages(self, length: Duration, back: Duration) -> Result<Latencies> {
        let Self { source, mut sink } = self;
        SockRef::from(&source).set_tcp_notsent_lowat(relay::MIN_BYTES)?;
        let clock = Stopwatch::start();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send_messages(source, clock, length));
            let received = receive_messages(&mut sink, clock, back);
            drop(sink); // else a write would wait
            let sent = sent.join();
            sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            received
        })
    }
}

/// Each message begins with when it was due, ns; 0 in those between.
fn send_messages(mut source: TcpStream, clock: Stopwatch, length: Duration) -> Result<()> {
    let (mut message, mut due) = ([0; MESSAGE], INTERVAL);
    let limit = Timespec::try_from(LIMIT).context("a wait's length")?;
    while clock.elapsed() < length {
        let mut fds = [PollFd::new(&source, PollFlags::OUT)];
        let ready = poll(&mut fds, Some(&limit)).context("waiting for space in a socket")?;
        ensure!(ready > 0, "a socket has had no space for {LIMIT:?}");
        let mut stamp = Duration::ZERO;
        if due <= clock.elapsed() {
            (stamp, due) = (due, due + INTERVAL);
        }
        let stamp = u64::try_from(stamp.as_nanos()).context("a time")?;
        message[..8].copy_from_slice(&stamp.to_be_bytes());
        source.write_all(&message).context("sending a message")?;
    }
    Ok(())
}

/// Receives messages until the other end is closed.
fn receive_messages(sink: &mut TcpStream, clock: Stopwatch, back: Duration) -> Result<Latencies> {
    let (mut message, mut latencies) = ([0; MESSAGE], Latencies::default());
    loop {
        match sink.read_exact(&mut message) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(latencies),
            Err(error) => return Err(error).context("receiving a message"),
        }
        let due = message.first_chunk().copied().map(u64::from_be_bytes);
        if let Some(due) = due.filter(|due| *due > 0) {
            let took = clock.elapsed().saturating_sub(Duration::from_nanos(due));
            latencies.record(took + back);
        }
    }
}

fn send(mut source: TcpStream, clock: Stopwatch, length: Duration) -> Result<()> {
    let chunk = [0; CHUNK];
    while clock.elapsed() < length {
        match source.write(&chunk) {
            Ok(_) => {}
            // The reader has seen all that counts and is gone.
            Err(_) if clock.elapsed() >= length => {}
            Err(error) => return Err(error).context("sending"),
        }
    }
    Ok(())
}

fn receive(mut sink: &TcpStream, clock: Stopwatch, length: Duration) -> Result<f64> {
    let (mut chunk, mut bytes) = (vec![0; CHUNK], 0.0);
    loop {
        let rest = length.saturating_sub(clock.elapsed());
        if rest.is_zero() {
            return Ok(bytes);
        }
        sink.set_read_timeout(Some(rest))?;
        match sink.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes += read as f64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
}

const LIMIT: Duration = Duration::from_secs(10);
const EXCHANGES: u32 = 30;
const BETWEEN: Duration = Duration::from_millis(50);
const CHUNK: usize = 64 * 1024;
const MESSAGE: usize = 1024;
