//! What waits between a fast upstream and a downstream whose line is slow.
//!
//! Leaves out the line: here the reader is slow, and its small receive buffer stands for the line's.

use std::rc::Rc;
use std::time::Duration;

use relay::{Pool, PoolParams, Relay, Timers};
use rustix::io::ioctl_fionread;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};

use crate::support::Counts;

const UNREAD: u32 = 48 * 1024;
const UNSENT: u32 = 24 * 1024;

/// A connected pair: what a peer holds, and what the relay holds.
async fn pair(small_peer: bool, ours: u32) -> (TcpStream, TcpStream) {
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
    (peer.unwrap(), accepted.unwrap().0)
}

/// Returns what may wait unread and unsent, and what does wait unread.
fn waiting(upstream: &TcpStream, downstream: &TcpStream) -> (usize, u32, u64) {
    let unread = SockRef::from(upstream).recv_buffer_size().unwrap() / 2; // the kernel doubles it
    let unsent = SockRef::from(downstream).tcp_notsent_lowat().unwrap();
    (unread, unsent, ioctl_fionread(upstream).unwrap())
}

/// Reads `bytes` each 10 ms for two seconds.
async fn read_slowly(client: &mut TcpStream, bytes: usize) {
    let mut buffer = vec![0; bytes];
    let mut due = Instant::now();
    for _ in 0..200 {
        client.read_exact(&mut buffer).await.unwrap();
        due += Duration::from_millis(10);
        sleep_until(due).await;
    }
}

#[tokio::test]
async fn little_waits_ahead_of_slow_line() {
    for params in [PoolParams::for_workers(1), PoolParams::COPYING] {
        let (mut client, downstream) = pair(true, 0).await;
        let (mut server, upstream) = pair(false, UNREAD).await;
        SockRef::from(&downstream)
            .set_tcp_notsent_lowat(UNSENT)
            .unwrap();
        let (pool, counts) = (Rc::new(Pool::new(params)), Counts::default());
        let relay = Relay::new(&downstream, &upstream, pool, &counts, Timers::default());
        let endless = async {
            loop {
                server.write_all(&[7; 64 * 1024]).await.unwrap();
            }
        };
        let script = async {
            // 4 Mb/s: 10 ms of it are less than the least.
            read_slowly(&mut client, 5_000).await;
            let (unread, unsent, waits) = waiting(&upstream, &downstream);
            assert_eq!((unread, unsent), (8 * 1024, 8 * 1024));
            assert!(waits <= 16 * 1024, "{waits} bytes unread");
            // As fast as it goes, and so as much as was allowed.
            let mut buffer = vec![0; 256 * 1024];
            let all = async { while client.read(&mut buffer).await.unwrap() > 0 {} };
            let _ = timeout(Duration::from_secs(1), all).await;
            let (unread, unsent, _) = waiting(&upstream, &downstream);
            assert_eq!((unread, unsent), (UNREAD as usize, UNSENT));
        };
        tokio::select! {
            outcome = relay.paced(UNREAD) => panic!("{outcome:?}"),
            () = endless => {}
            () = script => {}
        }
    }
}
