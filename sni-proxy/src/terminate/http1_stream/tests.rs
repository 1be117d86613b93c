//! hyper above, a client that sends raw bytes below, time that is stopped.

use std::convert::Infallible;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::time::timeout;

use super::*;

const HEAD_LIMIT: Duration = Duration::from_secs(10);
const BEGIN_LIMIT: Duration = Duration::from_secs(3600);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// Serves bodies of `len` bytes, and returns the client's side.
fn serve(len: usize) -> (DuplexStream, Arc<HttpState>) {
    let (own, client) = duplex(1024);
    let (count, state) = (Arc::<RequestCount>::default(), HttpState::new(HEAD_LIMIT));
    let params = Http1Params {
        count: Arc::clone(&count),
        state: Arc::clone(&state),
        hsts: Some(HeaderValue::from_static("max-age=1")),
        begins_by: Instant::now() + BEGIN_LIMIT,
        reset_on_close: |_| {},
    };
    let io = TokioIo::new(Http1Stream::new(own, params));
    tokio::spawn(async move {
        let service = service_fn(move |_| {
            count.begin();
            let count = Arc::clone(&count);
            async move {
                // Earlier than in the gateway, where the request is open until its body has ended.
                count.end();
                let body = Full::new(Bytes::from(vec![b'a'; len]));
                Ok::<_, Infallible>(Response::new(body))
            }
        });
        let _ = http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(64 * 1024)
            .serve_connection(io, service)
            .await;
    });
    (client, state)
}

/// Reads a head and a body of the length that it says.
async fn answer(client: &mut DuplexStream) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let (_, len) = head.split_once("content-length: ").unwrap();
    let len = len.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; len];
    client.read_exact(&mut body).await.unwrap();
    (head, body)
}

async fn refused(client: &mut DuplexStream, code: u16) {
    let (head, body) = answer(client).await;
    assert!(head.starts_with(&format!("http/1.1 {code} ")), "{head}");
    assert!(head.contains("strict-transport-security: max-age=1\r\n"));
    assert!(head.contains(" gmt\r\n"), "{head}");
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&status["kind"], &status["code"]),
        (&"Status".into(), &code.into())
    );
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0, "the end");
}

#[tokio::test(start_paused = true)]
async fn client_that_never_begins_is_closed_without_answer() {
    let (mut client, state) = serve(3);
    let began = Instant::now();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(began.elapsed(), BEGIN_LIMIT);
    assert!(state.is_silent() && state.refused().is_none());
    // One that has had a request is not.
    let (mut client, state) = serve(3);
    client.write_all(REQUEST).await.unwrap();
    answer(&mut client).await;
    let ended = timeout(2 * BEGIN_LIMIT, client.read(&mut [0; 8])).await;
    assert!(ended.is_err() && !state.is_silent());
}

#[tokio::test(start_paused = true)]
async fn kept_connection_may_be_idle() {
    let (mut client, _) = serve(3);
    for _ in 0..3 {
        tokio::time::sleep(HEAD_LIMIT * 100).await;
        client.write_all(REQUEST).await.unwrap();
        assert_eq!(answer(&mut client).await.1, b"aaa");
    }
}

#[tokio::test(start_paused = true)]
async fn unfinished_head_is_refused_in_time() {
    for before in [0, 2] {
        let (mut client, state) = serve(3);
        for _ in 0..before {
            client.write_all(REQUEST).await.unwrap();
            answer(&mut client).await;
        }
        tokio::time::sleep(HEAD_LIMIT * 3).await;
        let began = Instant::now();
        for byte in REQUEST.chunks(9).take(2) {
            client.write_all(byte).await.unwrap();
            tokio::time::sleep(HEAD_LIMIT / 4).await;
        }
        refused(&mut client, 408).await;
        assert_eq!(began.elapsed(), HEAD_LIMIT);
        assert_eq!(state.refused(), Some(StatusCode::REQUEST_TIMEOUT));
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_of_hypers_is_a_status() {
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "a".repeat(70_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(200));
    for (text, code) in [(&*large, 431), (&many, 431), ("GET / HTTP/9\r\n\r\n", 400)] {
        for before in [0, 1] {
            let (mut client, state) = serve(0);
            for _ in 0..before {
                client.write_all(REQUEST).await.unwrap();
                let (head, _) = answer(&mut client).await;
                assert!(head.starts_with("http/1.1 200"), "{head}");
            }
            let (mut read, mut write) = split(client);
            let text = text.to_owned();
            // What comes after the refusal is discarded.
            let sent = tokio::spawn(async move {
                let _ = write.write_all(text.as_bytes()).await;
                write
            });
            let mut all = Vec::new();
            let whole = timeout(REFUSAL_LIMIT * 2, read.read_to_end(&mut all)).await;
            whole.unwrap().unwrap();
            drop(sent.await.unwrap());
            let text = String::from_utf8(all).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {code} ")), "{text}");
            assert!(text.contains("\"kind\":\"Status\""), "{text}");
            assert_eq!(state.refused().unwrap().as_u16(), code);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_reader_is_given_up() {
    let (mut client, state) = serve(1 << 20);
    client.write_all(REQUEST).await.unwrap();
    let began = Instant::now();
    // A byte now and then is progress, until it stops.
    let mut read = 0;
    while read < 4096 {
        tokio::time::sleep(WRITE_STALL / 2).await;
        read += client.read(&mut [0; 1024]).await.unwrap();
    }
    assert!(began.elapsed() >= WRITE_STALL && !state.is_reset());
    let stalled = Instant::now();
    while !state.is_reset() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let waited = stalled.elapsed();
    assert!(waited <= WRITE_STALL + Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn upgraded_reader_may_stall() {
    let (own, mut client) = duplex(1024);
    let (count, state) = (Arc::<RequestCount>::default(), HttpState::new(HEAD_LIMIT));
    count.begin();
    count.set_upgraded();
    let params = Http1Params {
        count,
        state: Arc::clone(&state),
        hsts: None,
        begins_by: Instant::now() + BEGIN_LIMIT,
        reset_on_close: |_| {},
    };
    let mut stream = Http1Stream::new(own, params);
    let mut written = std::pin::pin!(stream.write_all(&[1; 4096]));
    let stalled = timeout(WRITE_STALL * 2, written.as_mut()).await;
    assert!(stalled.is_err(), "{stalled:?}");
    let mut bytes = [0; 4096];
    let (written, read) = tokio::join!(written, client.read_exact(&mut bytes));
    written.unwrap();
    read.unwrap();
    assert_eq!(bytes, [1; 4096]);
    assert!(!state.is_reset());
}
