//! What only streams have: buffers that want flushing, an end that is shut down or withheld, bytes
//! read before the relay.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use relay::{Outcome, Peer, Pool, PoolParams, Side, Timers, relay_streams};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, DuplexStream, ReadBuf, duplex,
};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::support::{Counts, pattern, peer, streams};

/// A hang is a failure.
const LIMIT: Duration = Duration::from_secs(20);

/// A stream that behaves as TLS does: what is written waits for a flush, being shut down is an
/// event of its own, and an end without it is an error.
struct Tls {
    stream: BufWriter<DuplexStream>,
    shut_down: Rc<Cell<bool>>,
    /// Whether the peer's end comes without its closing alert.
    truncated: bool,
}

impl Tls {
    fn new(stream: DuplexStream) -> (Self, Rc<Cell<bool>>) {
        let shut_down = Rc::new(Cell::new(false));
        let tls = Self {
            stream: BufWriter::with_capacity(1 << 16, stream),
            shut_down: Rc::clone(&shut_down),
            truncated: false,
        };
        (tls, shut_down)
    }

    fn peer(&mut self) -> Peer<'_, Self> {
        Peer {
            stream: self,
            socket: |_| None,
        }
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.truncated && buf.filled().is_empty() {
            return read.map(|_| Err(ErrorKind::UnexpectedEof.into()));
        }
        read
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut_down.set(true);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn reset_on_close(stream: &TcpStream) {
    relay::reset_on_close(stream);
}

fn pool() -> Pool {
    Pool::new(PoolParams::COPYING)
}

/// Relays until the end, and closes both sides.
async fn relayed(mut down: Tls, mut up: TcpStream, early: &'static [u8]) -> (Outcome, Counts) {
    let (pool, counts) = (pool(), Counts::default());
    let early = Bytes::from_static(early);
    let timers = Timers::default();
    let relayed = relay_streams(down.peer(), peer(&mut up), early, &pool, &counts, timers);
    (timeout(LIMIT, relayed).await.unwrap(), counts)
}

fn assert_reset_by(outcome: &Outcome, expected: Side) {
    let by = matches!(outcome, Outcome::Reset { side, .. } if *side == expected);
    assert!(by, "{outcome:?}");
}

#[tokio::test]
async fn early_bytes_precede_independent_half_closes() {
    const LEN: usize = 300_000;
    let (mut client, stream) = duplex(1024);
    let (mut server, upstream) = streams().await;
    let asking = async {
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer.len(), LEN);
    };
    let answering = async {
        // The question is over before the answer begins.
        let mut question = String::new();
        server.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "early question");
        server.write_all(&vec![7; LEN]).await.unwrap();
        server.shutdown().await.unwrap();
    };
    let (tls, shut_down) = Tls::new(stream);
    let ((outcome, counts), (), ()) =
        tokio::join!(relayed(tls, upstream, b"early "), asking, answering);
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
    assert_eq!((counts.rx.get(), counts.tx.get()), (14, LEN as u64));
    assert_eq!(counts.copied.get(), 14 + LEN as u64);
    assert!(shut_down.get());
}

/// Returns whether the client gets the end of an answer when the server resets the connection
/// during an upload, having `ended` the answer before or not.
async fn is_shut_down_after_reset(ended: bool) -> bool {
    let (mut client, stream) = duplex(1024);
    let (mut server, mut upstream) = streams().await;
    // All of it is there before the relay begins: it writes first, and then reads.
    client.write_all(b"upload").await.unwrap();
    server.write_all(b"answer").await.unwrap();
    if ended {
        server.shutdown().await.unwrap();
        upstream.write_all(b"begun").await.unwrap();
    }
    reset_on_close(&server);
    drop(server);
    let (tls, shut_down) = Tls::new(stream);
    let (outcome, _) = relayed(tls, upstream, b"").await;
    assert_reset_by(&outcome, Side::Upstream);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "answer");
    shut_down.get()
}

#[tokio::test]
async fn end_is_passed_only_if_before_reset() {
    assert!(is_shut_down_after_reset(true).await);
    assert!(!is_shut_down_after_reset(false).await);
}

#[tokio::test]
async fn bytes_before_reset_are_flushed_without_end() {
    let (mut client, stream) = duplex(1024);
    let (mut server, upstream) = streams().await;
    let (tls, shut_down) = Tls::new(stream);
    let peers = async {
        server.write_all(b"no").await.unwrap();
        let mut heard = [0; 2];
        client.read_exact(&mut heard).await.unwrap();
        reset_on_close(&server);
        drop(server);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&heard, rest.len()), (b"no", 0));
    };
    let ((outcome, _), ()) = tokio::join!(relayed(tls, upstream, b""), peers);
    assert_reset_by(&outcome, Side::Upstream);
    assert!(!shut_down.get());
}

#[tokio::test]
async fn missing_close_notify_becomes_reset() {
    let (mut client, stream) = duplex(1024);
    let (mut server, upstream) = streams().await;
    client.write_all(b"half of it").await.unwrap();
    client.shutdown().await.unwrap();
    let (mut tls, _) = Tls::new(stream);
    tls.truncated = true;
    let (outcome, _) = relayed(tls, upstream, b"").await;
    assert_reset_by(&outcome, Side::Downstream);
    let mut all = Vec::new();
    let end = server.read_to_end(&mut all).await.unwrap_err();
    assert_eq!(
        (all.as_slice(), end.kind()),
        (b"half of it".as_slice(), ErrorKind::ConnectionReset)
    );
}

#[tokio::test]
async fn dropped_relay_resets_upstream() {
    let (_client, stream) = duplex(1024);
    let (mut server, mut upstream) = streams().await;
    let (mut tls, shut_down) = Tls::new(stream);
    let (pool, counts) = (pool(), Counts::default());
    let (down, up) = (tls.peer(), peer(&mut upstream));
    let relayed = relay_streams(down, up, Bytes::new(), &pool, &counts, Timers::default());
    assert!(timeout(Duration::from_millis(10), relayed).await.is_err());
    drop(upstream);
    let read = timeout(LIMIT, server.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(!shut_down.get());
}

#[tokio::test(start_paused = true)]
async fn idle_timeout_spans_both_directions() {
    let limit = Duration::from_secs(10);
    let (mut client, mut downstream) = duplex(1024);
    let (mut server, mut upstream) = duplex(1024);
    let (pool, counts) = (pool(), Counts::default());
    let started = tokio::time::Instant::now();
    let timers = Timers {
        idle: Some(limit),
        deadline: None,
    };
    let (down, up) = (plain(&mut downstream), plain(&mut upstream));
    let relayed = relay_streams(down, up, Bytes::new(), &pool, &counts, timers);
    let peers = async {
        for _ in 0..3 {
            sleep(limit * 3 / 4).await;
            client.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
            std::mem::swap(&mut client, &mut server);
        }
    };
    let (outcome, ()) = tokio::join!(relayed, peers);
    assert!(matches!(outcome, Outcome::IdleTimeout), "{outcome:?}");
    assert!(started.elapsed() >= limit * 3);
}

fn plain(stream: &mut DuplexStream) -> Peer<'_, DuplexStream> {
    Peer {
        stream,
        socket: |_| None,
    }
}

/// A sink that accepts nothing stops the source after what two pipes and one read hold.
#[tokio::test(start_paused = true)]
async fn stalled_sink_stops_its_source() {
    const READ: usize = 64 * 1024;
    let (mut client, mut downstream) = duplex(1024);
    let (mut server, mut upstream) = duplex(1024);
    let (pool, counts) = (pool(), Counts::default());
    let data = pattern(1 << 20);
    let timers = Timers::default();
    let (down, up) = (plain(&mut downstream), plain(&mut upstream));
    let relayed = relay_streams(down, up, Bytes::new(), &pool, &counts, timers);
    let peers = async move {
        let mut sent = 0;
        // The clock is paused: the time passes only once nothing moves any more.
        while let Ok(written) = timeout(Duration::from_secs(1), client.write(&data[sent..])).await {
            sent += written.unwrap();
        }
        assert!(sent <= 2 * 1024 + READ, "{sent} bytes");
        // The other direction is not affected.
        server.write_all(b"still here").await.unwrap();
        client.read_exact(&mut [0; 10]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert!(all == data[..sent]);
    };
    let (outcome, ()) = tokio::join!(relayed, peers);
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
}

#[test]
fn stream_relay_state_is_small() {
    let (pool, counts) = (pool(), Counts::default());
    let (mut down, mut up) = (duplex(1).0, duplex(1).0);
    let (down, up) = (plain(&mut down), plain(&mut up));
    let relayed = relay_streams(down, up, Bytes::new(), &pool, &counts, Timers::default());
    let size = size_of_val(&relayed);
    assert!(size <= 640, "{size} bytes");
}

/// Both ends were passed on, and the sink reads slowly: the source's hang-up loses no byte.
#[tokio::test(start_paused = true)]
async fn hang_up_after_both_ends_loses_nothing() {
    let (mut client, mut downstream) = streams().await;
    let (mut server, mut upstream) = duplex(1024);
    let (pool, counts) = (pool(), Counts::default());
    let data = pattern(100 * 1024);
    let (down, up) = (peer(&mut downstream), plain(&mut upstream));
    let timers = Timers::default();
    let relayed = relay_streams(down, up, Bytes::new(), &pool, &counts, timers);
    let peers = async {
        server.shutdown().await.unwrap();
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        // The clock is paused: this passes once nothing moves anymore.
        sleep(Duration::from_secs(60)).await;
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert!(all == data, "{} bytes", all.len());
    };
    let (outcome, ()) = tokio::join!(relayed, peers);
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
}
