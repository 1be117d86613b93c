//! One TCP connection without a tunnel that was opened and used while the line was empty, as a tunnel's
//! own connection is: its congestion control knows the empty line's round trip. iperf3 opens its
//! connections when it begins to send.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use testkit::wait::{self, Stopwatch};

use super::iperf::{Bulk, Moved};
use super::network::Network;
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
}

impl Plain {
    /// Sends messages for `length`, as much as goes, of which little waits unsent. Returns how long each took from when
    /// the socket had a place for it until it was read, and `back` besides: what no tunnel in a TCP connection is
    /// faster than.
    pub(crate) fn messages(self, length: Duration, back: Duration) -> Result<Latencies> {
        let Self { source, mut sink } = self;
        SockRef::from(&source).set_tcp_notsent_lowat(UNSENT)?;
        let clock = Stopwatch::start();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send_messages(source, clock, length));
            let (mut message, mut latencies) = ([0; MESSAGE], Latencies::default());
            // Until the other end is closed.
            while sink.read_exact(&mut message).is_ok() {
                let begun = message.first_chunk().copied().map(u64::from_be_bytes);
                let begun = Duration::from_nanos(begun.unwrap_or_default());
                latencies.record(clock.elapsed().saturating_sub(begun) + back);
            }
            let sent = sent.join();
            sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(latencies)
        })
    }
}

fn send_messages(mut source: TcpStream, clock: Stopwatch, length: Duration) -> Result<()> {
    let mut message = [0; MESSAGE];
    let limit = Timespec::try_from(LIMIT).context("a wait's length")?;
    while clock.elapsed() < length {
        let mut fds = [PollFd::new(&source, PollFlags::OUT)];
        poll(&mut fds, Some(&limit)).context("waiting for a place")?;
        let now = u64::try_from(clock.elapsed().as_nanos()).context("a time")?;
        message[..8].copy_from_slice(&now.to_be_bytes());
        source.write_all(&message).context("sending a message")?;
    }
    Ok(())
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
/// What the gateway has wait at least.
const UNSENT: u32 = 8 * 1024;
