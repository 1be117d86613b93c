//! hyper above, a client that sends frames below, time that is stopped.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Empty;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{sleep, timeout};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);
const SETTINGS: u8 = 4;
/// `GET https://a/`, of the static table and a literal (RFC 7541 appendix A).
const HEAD: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'a'];
const END_STREAM: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u8;
    [&[0, 0, len, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Serves a client that has said what it begins with, and returns its side.
async fn serve() -> (DuplexStream, Arc<HttpState>) {
    let (own, mut client) = duplex(64 * 1024);
    let state = HttpState::new(LIMIT);
    let begin = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &frame(SETTINGS, 0, 0, &[])[..],
    ];
    client.write_all(&begin.concat()).await.unwrap();
    let stream = preface(own, Instant::now() + LIMIT, Arc::clone(&state));
    let stream = stream.await.unwrap();
    tokio::spawn(async move {
        let answer = |_| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) };
        let _ = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service_fn(answer))
            .await;
    });
    (client, state)
}

/// Returns how long the connection lasts, an hour at most.
async fn lasts(client: &mut DuplexStream) -> Duration {
    let began = Instant::now();
    let _ = timeout(
        Duration::from_secs(3600),
        client.read_to_end(&mut Vec::new()),
    )
    .await;
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn head_that_stops_halfway_ends_the_connection() {
    let head = frame(HEADERS, END_STREAM | END_HEADERS, 1, HEAD);
    let begun = frame(HEADERS, END_STREAM, 1, HEAD);
    let more = frame(CONTINUATION, 0, 1, &[0x90]);
    for sent in [
        head[..9].to_vec(),
        head[..head.len() - 1].to_vec(),
        begun.clone(),
        [&begun[..], &more].concat(),
        [&begun[..], &more[..5]].concat(),
        // After one that is whole.
        [&head[..], &frame(HEADERS, END_STREAM, 3, HEAD)].concat(),
    ] {
        let (mut client, state) = serve().await;
        client.write_all(&sent).await.unwrap();
        assert_eq!(lasts(&mut client).await, LIMIT, "{sent:?}");
        assert_eq!(state.refused(), Some(StatusCode::REQUEST_TIMEOUT));
    }
}

#[tokio::test(start_paused = true)]
async fn head_that_goes_on_byte_by_byte_ends_in_time() {
    let (mut client, state) = serve().await;
    let began = Instant::now();
    let head = frame(HEADERS, END_STREAM, 1, HEAD);
    let more = frame(CONTINUATION, 0, 1, &[0x90]).repeat(20);
    for byte in [head, more].concat() {
        if client.write_all(&[byte]).await.is_err() {
            break;
        }
        sleep(Duration::from_millis(200)).await;
    }
    lasts(&mut client).await;
    assert!(began.elapsed() < LIMIT * 2, "{:?}", began.elapsed());
    assert_eq!(state.refused(), Some(StatusCode::REQUEST_TIMEOUT));
}

#[tokio::test(start_paused = true)]
async fn connection_between_heads_goes_on() {
    let (mut client, state) = serve().await;
    let flags = END_STREAM | END_HEADERS;
    for stream in [1, 3] {
        let (first, last) = HEAD.split_at(3);
        client
            .write_all(&frame(HEADERS, END_STREAM, stream, first))
            .await
            .unwrap();
        sleep(LIMIT - Duration::from_secs(1)).await;
        let last = frame(CONTINUATION, END_HEADERS, stream, last);
        client.write_all(&last).await.unwrap();
        sleep(LIMIT * 3).await;
    }
    client
        .write_all(&frame(HEADERS, flags, 5, HEAD))
        .await
        .unwrap();
    // Of another frame, whatever it is, only pings say how long it may take.
    client
        .write_all(&frame(SETTINGS, 0, 0, &[])[..5])
        .await
        .unwrap();
    assert_eq!(lasts(&mut client).await, Duration::from_secs(3600));
    assert_eq!(state.refused(), None);
}

#[test]
fn frames_are_followed_wherever_they_are_cut() {
    let bytes = [
        frame(SETTINGS, 0, 0, &[0; 12]),
        frame(HEADERS, END_STREAM, 1, HEAD),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, &[0x90; 3]),
        frame(0, END_HEADERS, 1, &[HEADERS; 40]),
        frame(HEADERS, END_HEADERS, 3, HEAD),
        frame(HEADERS, 0, 5, HEAD),
    ]
    .concat();
    let ends = |len: usize| bytes.len() - len;
    let last = 9 + HEAD.len();
    let first = 21;
    let expected = |at: usize| {
        let of_first = (first + 9..first + 9 + HEAD.len() + 9 + 12).contains(&at);
        let of_second = (ends(2 * last) + 9..ends(last)).contains(&at);
        of_first || of_second || at >= ends(last) + 9
    };
    for size in 1..=bytes.len() {
        let (mut frames, mut at, mut whole) = (Frames::default(), 0, 0);
        for piece in bytes.chunks(size) {
            at += piece.len();
            whole += usize::from(frames.follow(piece));
            assert_eq!(frames.in_head, expected(at), "{at} of pieces of {size}");
        }
        assert!((1..=2).contains(&whole));
    }
}
