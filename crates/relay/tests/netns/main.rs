//! What waits between a fast upstream and a downstream whose line is slow.
//!
//! One test leaves out the line: its reader is slow, and its small receive buffer stands for the line's. Needs root,
//! or a user, network and mount namespace of its own, and `/dev/net/tun`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use relay::{Direction, MIN_BYTES, Meter, Pool, PoolParams, Relay, Socket, Timers, round_trip};
use rustix::io::ioctl_fionread;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use testkit::impair::{Impairment, Link};
use testkit::netns::Namespace;

#[derive(Debug)]
struct Uncounted;

impl Meter for Uncounted {
    fn relayed(&self, _: Direction, _: u64, _: bool) {}
}

const UNREAD: u32 = 48 * 1024;
const UNSENT: u32 = 24 * 1024;

/// A connected pair: what a peer holds, and what the relay holds.
async fn pair(small_peer: bool, ours: u32) -> (TcpStream, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpSocket::new_v4().unwrap();
    // As on a line; loopback's are larger than these buffers.
    SockRef::from(&peer).set_tcp_mss(1400).unwrap();
    if small_peer {
        peer.set_recv_buffer_size(16 * 1024).unwrap();
    }
    if ours > 0 {
        let socket = SockRef::from(&listener);
        socket.set_recv_buffer_size(ours as usize).unwrap();
    }
    let address = listener.local_addr().unwrap();
    let (peer, accepted) = tokio::join!(peer.connect(address), listener.accept());
    let accepted = accepted.unwrap().0.into_std().unwrap();
    (peer.unwrap(), accepted.try_into().unwrap())
}

/// Returns what may wait unread and unsent.
fn may_wait(upstream: &Socket, downstream: &Socket) -> (u32, u32) {
    let unread = SockRef::from(upstream).recv_buffer_size().unwrap() / 2; // the kernel doubles it
    let unsent = SockRef::from(downstream).tcp_notsent_lowat().unwrap();
    (u32::try_from(unread).unwrap(), unsent)
}

/// Segments within a promised window for which a receive buffer had no place, in this namespace.
fn dropped() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == "TCPRcvQDrop").unwrap();
    value.parse().unwrap()
}

#[test]
fn little_waits_ahead_of_slow_line() {
    let namespace = Namespace::new("paced").unwrap();
    let outcome = namespace.run(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        for params in [PoolParams::for_workers(1), PoolParams::COPYING] {
            // One may go where a busy processor stops the relay between two calls, but not each time.
            let mut tries = (0..3).map(|_| runtime.block_on(slow_down(params)));
            let one_is_whole = tries.any(|lost| lost == 0);
            assert!(one_is_whole, "segments within a promised window are lost");
        }
    });
    outcome.unwrap();
}

/// Returns how many segments were dropped of those that a window had promised a place.
async fn slow_down(params: PoolParams) -> u64 {
    let before = dropped();
    let mut lost = 0;
    let (mut client, downstream) = pair(true, 0).await;
    let (mut server, upstream) = pair(false, UNREAD).await;
    SockRef::from(&downstream)
        .set_tcp_notsent_lowat(UNSENT)
        .unwrap();
    let pool = Rc::new(Pool::new(params));
    let (down, up, meter, timers) = (&downstream, &upstream, &Uncounted, Timers::default());
    let stop = Cell::new(false);
    let relayed = async {
        let mut relay = Relay::new(down, up, Rc::clone(&pool), meter, timers).paced(UNREAD);
        let stopped = poll_fn(|cx| match Pin::new(&mut relay).poll(cx) {
            Poll::Ready(outcome) => panic!("{outcome:?}"),
            Poll::Pending if stop.get() => Poll::Ready(relay.stop().unwrap()),
            Poll::Pending => Poll::Pending,
        });
        let stopped = stopped.await;
        // What a resumed one is limited by is as it was before.
        assert_eq!(may_wait(up, down), (UNREAD, UNSENT));
        let relay = Relay::resume(down, up, Rc::clone(&pool), meter, timers, stopped);
        relay.paced(UNREAD).await
    };
    // Bulk fills the window; what comes at a rate leaves it open, and arrives although it shrinks.
    let endless = async {
        for _ in 0..500 {
            server.write_all(&[7; 5000]).await.unwrap();
            sleep(Duration::from_millis(10)).await;
        }
        loop {
            server.write_all(&[7; 64 * 1024]).await.unwrap();
        }
    };
    let mut buffer = vec![0; 256 * 1024];
    let script = async {
        for _ in 0..100 {
            client.read_exact(&mut buffer[..5000]).await.unwrap();
        }
        for stops in [true, false] {
            // 2 Mb/s: 10 ms of it are less than the least.
            while may_wait(&upstream, &downstream) != (8 * 1024, 8 * 1024) {
                client.read_exact(&mut buffer[..2500]).await.unwrap();
                sleep(Duration::from_millis(10)).await;
            }
            stop.set(stops);
            while stops && may_wait(&upstream, &downstream) == (8 * 1024, 8 * 1024) {
                assert!(client.read(&mut buffer).await.unwrap() > 0);
            }
        }
        let waits = ioctl_fionread(&upstream).unwrap();
        assert!(waits <= 16 * 1024, "{waits} bytes unread");
        lost = dropped() - before;
        // A reader that has stopped: what its relay has lent comes back, and is not needed.
        sleep(Duration::from_secs(2)).await;
        (0..2).for_each(|_| pool.trim());
        assert_eq!(pool.pipes(), 0);
        // As fast as it goes, and so as much as was allowed.
        while may_wait(&upstream, &downstream) != (UNREAD, UNSENT) {
            assert!(client.read(&mut buffer).await.unwrap() > 0);
        }
    };
    tokio::select! {
        outcome = relayed => panic!("{outcome:?}"),
        () = endless => {}
        in_time = timeout(Duration::from_secs(60), script) => in_time.unwrap(),
    }
    lost
}

#[test]
fn more_waits_ahead_of_line_with_long_round_trip() {
    let (near, far) = (
        Namespace::new("near").unwrap(),
        Namespace::new("far").unwrap(),
    );
    let line = Link::lay(near.end("line"), far.end("line"), 1500, 1).unwrap();
    near.add_address("line", "192.0.2.1/24").unwrap();
    far.add_address("line", "192.0.2.2/24").unwrap();
    for delay in [10, 100] {
        line.set_both(Impairment {
            rate: Some(4_000_000),
            buffer: Duration::from_millis(500),
            queue: usize::MAX,
            ..Impairment::long(Duration::from_millis(delay), 0.0)
        });
        let listener = far.run(|| std::net::TcpListener::bind("192.0.2.2:0"));
        let listener = listener.unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let downstream = near.run(|| std::net::TcpStream::connect(to));
        let downstream = downstream.unwrap().unwrap();
        let bbr = SockRef::from(&downstream).set_tcp_congestion(b"bbr");
        bbr.expect("BBR, which `modprobe tcp_bbr` loads as root");
        let measured = u64::try_from(round_trip(&downstream).as_millis()).unwrap();
        let range = 2 * delay..2 * delay + 400;
        assert!(range.contains(&measured), "{measured} ms");
        let reader = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let (unsent, measured) = runtime.unwrap().block_on(fill(downstream));
        reader.join().unwrap();
        // What waits in the line's buffer does not count.
        assert!(
            measured < Duration::from_millis(2 * delay + 15),
            "{measured:?}"
        );
        // 10 ms of the rate are 5,000 bytes, which are less than the least; a third of 200 ms are 33,000.
        match delay {
            10 => assert!(unsent[0] < 2 * MIN_BYTES, "{unsent:?}"),
            _ => assert!(unsent[unsent.len() / 2] > 2 * MIN_BYTES, "{unsent:?}"),
        }
    }
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(round_trip(&other), Duration::ZERO);
}

/// Relays as much as a line takes; returns how many bytes might wait unsent from five to ten seconds after the
/// start, the fewest first: more may on a busy processor, but not always. And the round trip then.
async fn fill(downstream: std::net::TcpStream) -> (Vec<u32>, Duration) {
    downstream.set_nonblocking(true).unwrap();
    let downstream = Socket::try_from(downstream).unwrap();
    let (mut server, upstream) = pair(false, UNREAD).await;
    SockRef::from(&downstream)
        .set_tcp_notsent_lowat(4 * UNSENT)
        .unwrap();
    let pool = Rc::new(Pool::new(PoolParams::for_workers(1)));
    let timers = Timers::default();
    let relay = Relay::new(&downstream, &upstream, pool, &Uncounted, timers).paced(UNREAD);
    let endless = async {
        loop {
            server.write_all(&[7; 64 * 1024]).await.unwrap();
        }
    };
    let watch = async {
        sleep(Duration::from_secs(5)).await;
        let (mut seen, measured) = (Vec::new(), round_trip(&downstream));
        for _ in 0..100 {
            seen.push(may_wait(&upstream, &downstream).1);
            sleep(Duration::from_millis(50)).await;
        }
        seen.sort_unstable();
        (seen, measured)
    };
    tokio::select! {
        outcome = relay => panic!("{outcome:?}"),
        () = endless => unreachable!(),
        watched = watch => watched,
    }
}
