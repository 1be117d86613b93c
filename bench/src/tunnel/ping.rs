//! ICMP echo requests at fixed times, and when their answers came.
//!
//! ```text
//!   due at 0, 10 ms, 20 ms, … ──▶ raw socket in a namespace ──▶ tunnel ──▶ the other end's kernel
//! ```
//!
//! A request is sent when it is due, whether or not the one before was answered: a stall shows in
//! every request it delayed. Only [`Pinger::in_turn`] waits for answers.

use std::io::Read;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Type, SlicedPacket, TransportSlice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use testkit::netns::Namespace;
use testkit::wait::Stopwatch;

use super::running::Inner;
use crate::latency::Latencies;

#[derive(Clone, Debug)]
pub(crate) struct Pings {
    pub(crate) latencies: Latencies,
    pub(crate) sent: usize,
}

impl Pings {
    pub(crate) fn lost(&self) -> f64 {
        let lost = self.sent as f64 - self.latencies.count() as f64;
        100.0 * lost / self.sent.max(1) as f64
    }
}

#[derive(Debug)]
pub(crate) struct Pinger {
    socket: Socket,
    to: SockAddr,
    id: u16,
}

impl Pinger {
    /// Opens a socket in `from` for requests to `to`, bound to `device` if there is one.
    pub(crate) fn open(from: &Namespace, to: Inner) -> Result<Self> {
        static OPENED: AtomicU16 = AtomicU16::new(1);
        let make = || {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
            socket.set_nonblocking(true)?;
            socket.bind_device(to.device.map(str::as_bytes))?;
            std::io::Result::Ok(socket)
        };
        Ok(Self {
            socket: from.run(make)?.context("opening a socket for pings")?,
            to: SocketAddrV4::new(to.address, 0).into(),
            id: OPENED.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Sends until something comes back, and returns how long that took since `clock` was started.
    pub(crate) fn first(&self, clock: Stopwatch, limit: Duration) -> Result<Duration> {
        let over = |pings: &Pings| pings.latencies.count() > 0 || clock.elapsed() > limit;
        let pings = self.send(Some(Duration::from_millis(2)), Duration::ZERO, over)?;
        if pings.latencies.count() == 0 {
            bail!("nothing came back through the tunnel within {limit:?}");
        }
        Ok(clock.elapsed())
    }

    /// Sends one request each [`INTERVAL`] until `over`, and waits a while for what is missing.
    pub(crate) fn run(&self, over: impl Fn() -> bool) -> Result<Pings> {
        self.send(Some(INTERVAL), TAIL, |_| over())
    }

    /// Sends each request when the one before is answered, for `length`: what the way costs while
    /// no processor on it has gone to sleep or done something else.
    pub(crate) fn in_turn(&self, length: Duration) -> Result<Pings> {
        let clock = Stopwatch::start();
        self.send(None, Duration::ZERO, |_| clock.elapsed() >= length)
    }

    /// Sends a request each `interval`, else when the one before is answered, until `over`; then waits
    /// for `tail` at most.
    fn send(
        &self,
        interval: Option<Duration>,
        tail: Duration,
        over: impl Fn(&Pings) -> bool,
    ) -> Result<Pings> {
        let clock = Stopwatch::start();
        let mut due = Vec::new();
        let mut pings = Pings {
            latencies: Latencies::default(),
            sent: 0,
        };
        while !over(&pings) && pings.sent < MOST {
            let number = u16::try_from(pings.sent).context("too many requests")?;
            let since = interval.map_or_else(|| clock.elapsed(), |each| each * u32::from(number));
            due.push(since);
            // No way there yet, or a full queue, is a request without an answer.
            let _ = self.socket.send_to(&request(self.id, number), &self.to);
            pings.sent += 1;
            let next = since + interval.unwrap_or(GIVEN_UP);
            let before = pings.latencies.count();
            let waits = |pings: &Pings| interval.is_some() || pings.latencies.count() == before;
            while clock.elapsed() < next && waits(&pings) && !over(&pings) {
                self.receive(clock, next, &due, &mut pings)?;
            }
        }
        let end = clock.elapsed() + tail;
        while clock.elapsed() < end && (pings.latencies.count() as usize) < pings.sent {
            self.receive(clock, end, &due, &mut pings)?;
        }
        Ok(pings)
    }

    fn receive(
        &self,
        clock: Stopwatch,
        until: Duration,
        due: &[Duration],
        pings: &mut Pings,
    ) -> Result<()> {
        let left = until.saturating_sub(clock.elapsed());
        let left = Timespec::try_from(left).context("a wait's length")?;
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&left)).context("waiting for answers")? == 0 {
            return Ok(());
        }
        let mut buffer = [0; 256];
        let Ok(length) = (&self.socket).read(&mut buffer) else {
            return Ok(());
        };
        let packet = buffer.get(..length);
        let answer = packet.and_then(|packet| number(packet, self.id));
        if let Some(due) = answer.and_then(|number| due.get(usize::from(number))) {
            pings.latencies.record(clock.elapsed().saturating_sub(*due));
        }
        Ok(())
    }
}

/// Makes an echo request (RFC 792) of 64 bytes.
fn request(id: u16, seq: u16) -> Vec<u8> {
    let echo = Icmpv4Type::EchoRequest(IcmpEchoHeader { id, seq });
    let header = Icmpv4Header::with_checksum(echo, &DATA);
    [&header.to_bytes()[..], &DATA].concat()
}

/// Returns the number of an answer to `id`, from an IPv4 packet.
fn number(packet: &[u8], id: u16) -> Option<u16> {
    let packet = SlicedPacket::from_ip(packet).ok()?;
    let Some(TransportSlice::Icmpv4(message)) = packet.transport else {
        return None;
    };
    if let Icmpv4Type::EchoReply(echo) = message.icmp_type()
        && echo.id == id
    {
        return Some(echo.seq);
    }
    None
}

const DATA: [u8; 56] = [0; 56];
const MOST: usize = 60_000;

pub(crate) const INTERVAL: Duration = Duration::from_millis(10);

/// After this a request that others wait for is taken to be lost.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// How long the last answers are waited for: more than any stall that is accepted.
const TAIL: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    #[test]
    fn an_answer_is_told_by_its_id() {
        let [source, destination] = [[192, 0, 2, 1], [192, 0, 2, 2]];
        let header = || PacketBuilder::ipv4(source, destination, 64);
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        let request = header().icmpv4_echo_request(0x1234, 0xfedc);
        request.write(&mut asked, &DATA).unwrap();
        let reply = header().icmpv4_echo_reply(0x1234, 0xfedc);
        reply.write(&mut answered, &DATA).unwrap();
        assert_eq!(asked[20..], super::request(0x1234, 0xfedc));
        assert_eq!(number(&asked, 0x1234), None);
        assert_eq!(number(&answered, 0x1234), Some(0xfedc));
        assert_eq!(number(&answered, 0x1235), None);
        assert_eq!(number(&answered[..23], 0x1234), None);
    }
}
