//! Clients that take their time: each wait has an end, and others are served meanwhile.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use http::StatusCode;
use testkit::client_hello::ClientHello;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::frames::{DATA, END_STREAM, Frames, Said, head};
use super::recorder::Recorder;
use super::smuggling::exchange;
use super::{NAME, World};
use crate::support::LIMIT;

/// `preambleTimeout`, and the time for a head, are 10 s; the rest is for a slow machine.
const ENDS: Range<Duration> = Duration::from_millis(9_900)..Duration::from_secs(15);

async fn assert_served(world: &World) {
    let mut client = world.client(None, "h2").await;
    let request = client.request(&[]);
    let answer = timeout(Duration::from_secs(5), client.send(request));
    let answer = answer.await.expect("an answer").unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

/// Returns how long a connection stays open on which these bytes were sent.
async fn lasts(gateway: SocketAddr, bytes: Vec<u8>) -> Duration {
    let began = Instant::now();
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut rest = Vec::new();
    let ended = timeout(LIMIT * 2, stream.read_to_end(&mut rest)).await;
    let _ = ended.expect("an end");
    began.elapsed()
}

/// Returns how long a connection stays open on which a head comes a byte at a time.
async fn slow_head(world: &World) -> Duration {
    let began = Instant::now();
    let (mut read, mut write) = tokio::io::split(world.raw(None, "http/1.1").await);
    let writing = tokio::spawn(async move {
        let head = format!(
            "GET /a HTTP/1.1\r\nHost: {NAME}\r\nX-A: {}",
            "a".repeat(1_000)
        );
        for byte in head.into_bytes() {
            if write.write_all(&[byte]).await.is_err() || write.flush().await.is_err() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    });
    let mut rest = Vec::new();
    let ended = timeout(LIMIT * 2, read.read_to_end(&mut rest)).await;
    let _ = ended.expect("an end");
    writing.abort();
    began.elapsed()
}

#[tokio::test]
async fn unfinished_handshakes_and_heads_end() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let hello = ClientHello::for_name(NAME).encode();
    let half = hello[..hello.len() / 2].to_vec();
    let handshakes: Vec<_> = [half, hello]
        .into_iter()
        .cycle()
        .take(50)
        .map(|bytes| tokio::spawn(lasts(world.gateway.addr("tls"), bytes)))
        .collect();
    let served = async {
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            assert_served(&world).await;
        }
    };
    let (head, ()) = tokio::join!(slow_head(&world), served);
    assert!(ENDS.contains(&head), "{head:?}");
    for handshake in handshakes {
        let lasted = handshake.await.unwrap();
        assert!(ENDS.contains(&lasted), "{lasted:?}");
    }
    assert_eq!(recorder.take().len(), 5);
    world.gateway.wait_idle();
}

#[tokio::test]
async fn head_that_is_too_large_reaches_no_server() {
    let (world, recorder) = Recorder::start(&["h2"]);
    for head in [
        format!(
            "GET /a HTTP/1.1\r\nHost: api.test\r\nX-A: {}\r\n\r\n",
            "a".repeat(300_000)
        ),
        format!(
            "GET /{} HTTP/1.1\r\nHost: api.test\r\n\r\n",
            "a".repeat(300_000)
        ),
        format!(
            "GET /a HTTP/1.1\r\nHost: api.test\r\n{}\r\n",
            "X-A: b\r\n".repeat(1_100)
        ),
    ] {
        let answer = exchange(&world, None, head.as_bytes()).await;
        // A client that still writes may be reset before it has read.
        let refused = ["HTTP/1.1 431 ", "HTTP/1.1 414 "].map(|own| answer.starts_with(own));
        assert!(refused.contains(&true) || answer.is_empty(), "{answer}");
    }
    assert!(recorder.take().is_empty());
    assert_served(&world).await;
}

/// Twenty whose body does not go on.
#[tokio::test]
async fn slow_writers_stall_no_other() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut frames = Frames::open(&world, None).await;
        let stream = frames.request(&head("POST", "/a"), 0).await;
        frames.frame(DATA, 0, stream, &[b'a'; 16_384]).await;
        slow.push((frames, stream));
    }
    recorder.wait_active(20).await;
    assert_served(&world).await;
    for (frames, stream) in &mut slow {
        frames.frame(DATA, END_STREAM, *stream, b"b").await;
        assert_eq!(frames.said(*stream).await, Said::Status(200));
    }
    let seen = recorder.take();
    let whole = seen.iter().filter(|own| own.body.len() == 16_385);
    assert_eq!(whole.count(), 20);
}
