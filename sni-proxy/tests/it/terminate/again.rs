//! Requests whose server goes away before it has begun with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::Full;

use super::World;
use super::frames::{DATA, END_STREAM, Frames, Said, head};
use super::recorder::Recorder;

/// Posts a body to a server that goes away after as many bytes of it; returns the status.
async fn post(
    world: &World,
    recorder: &Arc<Recorder>,
    protocol: &str,
    (length, after): (usize, usize),
) -> StatusCode {
    recorder.go_away_after.store(after, Ordering::Relaxed);
    let mut client = world.client(None, protocol).await;
    let mut request = client.request(&[("x-kept", "a")]);
    *request.method_mut() = Method::POST;
    *request.body_mut() = Full::new(Bytes::from("b".repeat(length)));
    client.send(request).await.unwrap().status()
}

#[tokio::test]
async fn body_is_sent_again_from_its_beginning() {
    for protocol in ["h2", "http/1.1"] {
        // Also of a server that has a reason (RFC 9113 section 7).
        for (length, code) in [(1, 0), (1_000, 11), (60_000, 0)] {
            let (world, recorder) = Recorder::start(&["h2"]);
            recorder.go_away_code.store(code, Ordering::Relaxed);
            let status = post(&world, &recorder, protocol, (length, length)).await;
            assert_eq!(status, StatusCode::OK, "{protocol} {length}");
            let seen = recorder.take();
            let [own] = &seen[..] else { panic!("{seen:?}") };
            assert_eq!(own.body, "b".repeat(length), "{protocol}");
            assert_eq!(
                own.headers,
                [format!("content-length: {length}"), "x-kept: a".to_owned()]
            );
            assert_eq!(recorder.connections.load(Ordering::Relaxed), 2);
        }
    }
}

/// What is too long to be kept is sent once.
#[tokio::test]
async fn long_body_is_not_sent_again() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let status = post(&world, &recorder, "h2", (1_000_000, 200_000)).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(recorder.take().is_empty());
}

#[tokio::test]
async fn body_that_goes_on_is_sent_again() {
    let (world, recorder) = Recorder::start(&["h2"]);
    recorder.go_away_after.store(5, Ordering::Relaxed);
    let mut frames = Frames::open(&world, None).await;
    let stream = frames.request(&head("POST", "/a"), 0).await;
    frames.frame(DATA, 0, stream, b"first").await;
    recorder.wait_connections(2).await;
    frames.frame(DATA, 0, stream, b", then ").await;
    frames.frame(DATA, END_STREAM, stream, b"more").await;
    assert_eq!(frames.said(stream).await, Said::Status(200));
    let seen = recorder.take();
    let [own] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(own.body, "first, then more");
}
