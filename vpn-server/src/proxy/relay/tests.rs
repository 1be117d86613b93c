//! The relay between an in-memory stream and a real socket.

use std::cell::Cell;
use std::os::fd::BorrowedFd;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;

/// A hang is a failure.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Counts {
    rx: Cell<u64>,
    tx: Cell<u64>,
}

impl Meter for Counts {
    fn relayed(&self, direction: Direction, bytes: u64, copied: bool) {
        assert!(copied);
        let count = match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        };
        count.set(count.get() + bytes);
    }
}

/// Returns both ends of a TCP connection, ours first.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    (ours.unwrap(), theirs.unwrap().0)
}

/// Runs a relay beside `peers`, which has the other end of each side.
async fn beside<T>(
    early: &'static [u8],
    idle: Option<Duration>,
    peers: impl AsyncFnOnce(DuplexStream, TcpStream) -> T,
) -> (Outcome, T, Counts) {
    let (client, downstream) = duplex(1024);
    let (upstream, server) = connection().await;
    let (scratch, counts) = (Scratch::default(), Counts::default());
    let early = Bytes::from_static(early);
    let relayed = async {
        let (mut downstream, mut upstream) = (downstream, upstream);
        relay(
            &mut downstream,
            &mut upstream,
            early,
            &scratch,
            &counts,
            idle,
        )
        .await
    };
    let both = async { tokio::join!(relayed, peers(client, server)) };
    let (outcome, value) = timeout(LIMIT, both).await.unwrap();
    (outcome, value, counts)
}

#[tokio::test]
async fn each_direction_ends_for_itself_and_all_arrives() {
    const LEN: usize = 300_000;
    let (outcome, (), counts) = beside(b"early ", None, async |mut client, mut server| {
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
        tokio::join!(asking, answering);
    })
    .await;
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
    assert_eq!((counts.rx.get(), counts.tx.get()), (14, LEN as u64));
}

#[tokio::test]
async fn what_a_destination_said_before_it_reset_is_delivered() {
    let (outcome, (), _) = beside(b"", None, async |mut client, mut server| {
        server.write_all(b"no").await.unwrap();
        let mut heard = [0; 2];
        client.read_exact(&mut heard).await.unwrap();
        reset_on_close(&server);
        drop(server);
        // The other end is dropped with the relay.
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&heard, rest.len()), (b"no", 0));
    })
    .await;
    let upstream = matches!(
        outcome,
        Outcome::Reset {
            side: Side::Upstream,
            ..
        }
    );
    assert!(upstream, "{outcome:?}");
}

/// A stream that records whether it was shut down, which TLS passes on by its closing alert.
struct Recording {
    stream: DuplexStream,
    shut_down: Rc<Cell<bool>>,
}

impl Stream for Recording {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl AsyncRead for Recording {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Recording {
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

/// Returns whether the API server gets the end of an answer when its destination resets the
/// connection during an upload, having `ended` the answer before or not.
async fn is_shut_down_after_reset(ended: bool) -> bool {
    let (mut client, stream) = duplex(1024);
    let (mut upstream, mut server) = connection().await;
    let (scratch, counts) = (Scratch::default(), Counts::default());
    // All of it is there before the relay begins: it writes first, and then reads.
    client.write_all(b"upload").await.unwrap();
    server.write_all(b"answer").await.unwrap();
    if ended {
        server.shutdown().await.unwrap();
        upstream.write_all(b"begun").await.unwrap();
    }
    reset_on_close(&server);
    drop(server);
    let shut_down = Rc::new(Cell::new(false));
    let mut recording = Recording {
        stream,
        shut_down: Rc::clone(&shut_down),
    };
    let (down, up, early) = (&mut recording, &mut upstream, Bytes::new());
    let outcome = timeout(LIMIT, relay(down, up, early, &scratch, &counts, None));
    let outcome = outcome.await.unwrap();
    assert!(matches!(outcome, Outcome::Reset { .. }), "{outcome:?}");
    drop(recording);
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
async fn a_relay_that_is_cut_resets_the_destination() {
    let (client, mut downstream) = duplex(1024);
    let (mut upstream, mut server) = connection().await;
    let (scratch, counts) = (Scratch::default(), Counts::default());
    let (down, up) = (&mut downstream, &mut upstream);
    drop(Relay::new(down, up, Bytes::new(), &scratch, &counts, None));
    drop(upstream);
    let read = timeout(LIMIT, server.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_it_and_octets_either_way_put_that_off() {
    let limit = Duration::from_secs(10);
    let (client, mut downstream) = duplex(1024);
    let (mut upstream, mut server) = connection().await;
    let (scratch, counts) = (Scratch::default(), Counts::default());
    let started = Instant::now();
    let (down, up, early) = (&mut downstream, &mut upstream, Bytes::new());
    let relayed = relay(down, up, early, &scratch, &counts, Some(limit));
    let peers = async {
        let mut client = client;
        for _ in 0..3 {
            sleep(limit * 3 / 4).await;
            client.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
        }
        client
    };
    let (outcome, client) = tokio::join!(relayed, peers);
    assert!(matches!(outcome, Outcome::IdleTimeout), "{outcome:?}");
    assert!(started.elapsed() >= limit * 3);
    drop(client);
}
