//! Clients of HTTP/2 that cost more than they send: each has its bound, and others are served meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout};

use super::World;
use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, PING, RST_STREAM,
    SETTINGS, Said, WINDOW_UPDATE, block, encode, head,
};
use super::recorder::Recorder;
use crate::support::LIMIT;

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// What the process holds, in bytes; the gateway and the recorder are in it.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Asserts that an ordinary client is served, and soon.
async fn assert_others_served(world: &World) {
    let asked = async {
        let mut client = world.client(None, "h2").await;
        let request = client.request(&[]);
        client.send(request).await.unwrap().status()
    };
    let began = Instant::now();
    let status = timeout(LIMIT, asked).await.expect("an answer");
    assert_eq!(status, StatusCode::OK);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

/// Writes the same bytes until the connection takes no more, `total` bytes at most; returns how many it took.
async fn pour(frames: &mut Frames, piece: &[u8], total: usize) -> usize {
    let many = piece.repeat((64 * 1024 / piece.len()).max(1));
    let mut sent = 0;
    while sent < total {
        let written = timeout(Duration::from_secs(2), frames.write(&many)).await;
        if !written.unwrap_or(false) {
            break;
        }
        sent += many.len();
    }
    sent
}

#[tokio::test]
async fn reset_streams_cost_no_other_client() {
    let (world, recorder) = Recorder::start(&["h2"]);
    // One that waits, over the same connection to the server.
    let mut watching = Frames::open(&world, None).await;
    let watch = watching.get("/events").await;
    assert_eq!(watching.said(watch).await, Said::Status(200));
    let mut frames = Frames::open(&world, None).await;
    let mut ended = false;
    for _ in 0..200 {
        let mut bytes = Vec::new();
        for _ in 0..50 {
            let stream = frames.stream_id();
            let flags = END_HEADERS | END_STREAM;
            bytes.extend(encode(
                HEADERS,
                flags,
                stream,
                &block(&head("GET", "/hang")),
            ));
            bytes.extend(encode(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
        }
        ended = !frames.write(&bytes).await;
        if ended {
            break;
        }
    }
    if !ended {
        assert_eq!(frames.ended().await, Some(ENHANCE_YOUR_CALM));
    }
    assert_others_served(&world).await;
    // Neither has the first one lost its stream.
    let more = watching.next_within(Duration::from_millis(500)).await;
    let more = more.filter(|own| own.kind != DATA && own.kind != SETTINGS);
    assert!(more.is_none(), "{more:?}");
    assert_eq!(recorder.connections.load(Ordering::Relaxed), 1);
    recorder.wait_active(1).await;
}

/// As a client that is not in such a hurry: each stream is reset when the server has it.
#[tokio::test]
async fn streams_reset_one_by_one_cost_no_other_client() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let mut watching = Frames::open(&world, None).await;
    let watch = watching.get("/events").await;
    assert_eq!(watching.said(watch).await, Said::Status(200));
    assert_eq!(recorder.wait_taken().await.len(), 1);
    let mut frames = Frames::open(&world, None).await;
    for _ in 0..300 {
        let stream = frames.get("/hang").await;
        assert_eq!(recorder.wait_taken().await.len(), 1);
        let cancel = CANCEL.to_be_bytes();
        assert!(frames.frame(RST_STREAM, 0, stream, &cancel).await);
    }
    assert_others_served(&world).await;
    assert_eq!(recorder.connections.load(Ordering::Relaxed), 1);
    recorder.wait_active(1).await;
}

#[tokio::test]
async fn endless_head_ends_the_connection() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let before = resident();
    let large = block(&[("x-filler", &"a".repeat(16_000))]);
    for piece in [&large[..], &block(&[("a", "b")]), b""] {
        let mut frames = Frames::open(&world, None).await;
        let stream = frames.stream_id();
        frames
            .frame(HEADERS, 0, stream, &block(&head("GET", "/a")))
            .await;
        let piece = encode(CONTINUATION, 0, stream, piece);
        let sent = pour(&mut frames, &piece, 32 << 20).await;
        assert!(sent < 16 << 20, "{sent} bytes of {}", piece.len());
        let _ = frames.ended().await;
    }
    assert!(recorder.take().is_empty());
    assert_others_served(&world).await;
    let held = resident().saturating_sub(before);
    assert!(held < 32 << 20, "{held} bytes");
}

#[tokio::test]
async fn compressed_head_is_measured_as_it_was() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let before = resident();
    for _ in 0..10 {
        let mut frames = Frames::open(&world, None).await;
        let stream = frames.stream_id();
        let mut bomb = block(&head("GET", "/a"));
        // One that is indexed (RFC 7541 section 6.2.1), and then named again and again.
        let value = "a".repeat(3_900);
        bomb.push(0x40);
        bomb.extend(&block(&[("x", &value)])[1..]);
        bomb.extend([0xbe; 12_000]);
        let flags = END_HEADERS | END_STREAM;
        frames.frame(HEADERS, flags, stream, &bomb).await;
        assert!(!matches!(frames.said(stream).await, Said::Status(200)));
    }
    assert!(recorder.take().is_empty());
    assert_others_served(&world).await;
    let held = resident().saturating_sub(before);
    assert!(held < 32 << 20, "{held} bytes");
}

#[tokio::test]
async fn control_frames_cost_no_other_client() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    let before = resident();
    for piece in [
        encode(PING, 0, 0, &[0; 8]),
        encode(SETTINGS, 0, 0, &[]),
        encode(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]),
        encode(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        // PRIORITY, and a kind that is unknown.
        encode(2, 0, 1, &[0, 0, 0, 0, 1]),
        encode(0xfa, 0, 1, &[0; 64]),
    ] {
        let mut frames = Frames::open(&world, None).await;
        // What it is answered is not read.
        let poured = pour(&mut frames, &piece, 2 << 20);
        let served = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_others_served(&world).await;
        };
        tokio::join!(poured, served);
    }
    let held = resident().saturating_sub(before);
    assert!(held < 64 << 20, "{held} bytes");
}

#[tokio::test]
async fn empty_data_ends_the_connection() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    // Padding alone: a length byte and as many more.
    let padded = [&[255][..], &[0; 255]].concat();
    for (flags, payload) in [(0, &[][..]), (8, &padded)] {
        let mut frames = Frames::open(&world, None).await;
        let stream = frames.request(&head("POST", "/a"), 0).await;
        let piece = encode(DATA, flags, stream, payload);
        pour(&mut frames, &piece, 4 << 20).await;
        let code = frames.ended().await;
        assert!(
            code.is_none_or(|code| code == ENHANCE_YOUR_CALM),
            "{code:?}"
        );
    }
    assert_others_served(&world).await;
}

#[tokio::test]
async fn stream_beyond_the_limit_is_refused() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    let mut first = 0;
    for number in 0..100 {
        let stream = frames.get("/hang").await;
        first = if number == 0 { stream } else { first };
    }
    recorder.wait_active(100).await;
    let more = frames.get("/a").await;
    assert_eq!(frames.said(more).await, Said::Reset(REFUSED_STREAM));
    // Those before it stay, and one that ends makes place for another.
    assert_eq!(recorder.active.load(Ordering::Relaxed), 100);
    let cancel = CANCEL.to_be_bytes();
    assert!(frames.frame(RST_STREAM, 0, first, &cancel).await);
    recorder.wait_active(99).await;
    assert!(frames.serves().await);
    let active = [("cluster", "api")];
    world
        .gateway
        .wait_value("rhizome_requests_active", &active, 99.0);
    drop(frames);
    recorder.wait_active(0).await;
    world
        .gateway
        .wait_value("rhizome_requests_active", &active, 0.0);
}

/// Ten that do not read, of large pieces, small ones and the smallest lines, over the server's one connection.
#[tokio::test]
async fn stalled_readers_stall_no_other() {
    for (piece, streams) in [(16_384, 5), (32, 5), (2, 2)] {
        let (world, recorder) = Recorder::start(&["h2"]);
        let mut stalled = Vec::new();
        for _ in 0..10 {
            let mut frames = Frames::open(&world, None).await;
            for _ in 0..streams {
                let stream = frames.get(&format!("/stream/{piece}/10000000")).await;
                assert_eq!(frames.said(stream).await, Said::Status(200));
            }
            stalled.push(frames);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut client = world.client(None, "h2").await;
        let length = 20_000_000;
        let mut request = client.request(&[]);
        let uri = format!("https://api.test/stream/16384/{length}");
        *request.uri_mut() = uri.parse().unwrap();
        let response = client.send(request).await.unwrap();
        let body = http_body_util::BodyExt::collect(response.into_body());
        let body = timeout(LIMIT, body).await.expect("a body").unwrap();
        assert_eq!(body.to_bytes().len(), length, "pieces of {piece}");
        assert_eq!(recorder.connections.load(Ordering::Relaxed), 1);
        // And they have lost nothing.
        for frames in &mut stalled {
            while let Some(frame) = frames.next_within(Duration::from_millis(10)).await {
                assert!(![GOAWAY, RST_STREAM].contains(&frame.kind), "{frame:?}");
            }
        }
    }
}

/// The answer fills the window, and its end comes behind it.
#[tokio::test]
async fn end_does_not_wait_for_the_window() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    assert!(frames.frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 5]).await);
    let stream = frames.get("/stream/5/5").await;
    assert_eq!(frames.said(stream).await, Said::Status(200));
    let mut got = 0;
    loop {
        let frame = frames.next().await.expect("a connection that goes on");
        if frame.kind == DATA {
            got += frame.payload.len();
            if frame.flags & END_STREAM != 0 {
                break;
            }
        }
    }
    assert_eq!(got, 5);
}

#[tokio::test]
async fn broken_protocol_is_counted_as_malformed() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    assert!(frames.serves().await);
    // Of no stream, as it may not be.
    assert!(frames.frame(DATA, 0, 0, b"a").await);
    assert_eq!(frames.ended().await, Some(PROTOCOL_ERROR));
    let labels = [("listener", "tls"), ("reason", "malformed")];
    let closed = "rhizome_connections_closed_total";
    world.wait_value(closed, &labels, 1.0).await;
}

#[tokio::test]
async fn empty_bodies_end_no_connection() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    for _ in 0..1500 {
        let stream = frames.request(&head("POST", "/a"), 0).await;
        assert!(frames.frame(DATA, END_STREAM, stream, b"").await);
        assert_eq!(frames.said(stream).await, Said::Status(200));
    }
}

#[tokio::test]
async fn given_up_answers_give_back_the_window() {
    let (world, recorder) = Recorder::start(&["h2"]);
    for _ in 0..50 {
        let mut frames = Frames::open(&world, None).await;
        for _ in 0..10 {
            let stream = frames.get("/stream/16384/1000000").await;
            assert_eq!(frames.said(stream).await, Said::Status(200));
            let cancel = CANCEL.to_be_bytes();
            frames.frame(RST_STREAM, 0, stream, &cancel).await;
        }
    }
    recorder.wait_active(0).await;
    let mut client = world.client(None, "h2").await;
    let mut request = client.request(&[]);
    *request.uri_mut() = "https://api.test/stream/16384/20000000".parse().unwrap();
    let response = client.send(request).await.unwrap();
    let body = http_body_util::BodyExt::collect(response.into_body());
    let body = timeout(LIMIT, body).await.expect("a body").unwrap();
    assert_eq!(body.to_bytes().len(), 20_000_000);
    assert_eq!(recorder.connections.load(Ordering::Relaxed), 1);
}

/// Each byte comes within much that is not kept.
#[tokio::test]
async fn kept_body_holds_its_own_bytes_alone() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(frames.request(&head("POST", "/a"), 0).await);
    }
    recorder.wait_active(20).await;
    let before = resident();
    let filler = encode(0xfa, 0, 1, &[0; 8192]);
    for _ in 0..250 {
        for stream in &streams {
            let piece = [encode(DATA, 0, *stream, b"a"), filler.clone()].concat();
            assert!(frames.write(&piece).await);
        }
    }
    assert!(frames.serves().await);
    let held = resident().saturating_sub(before);
    assert!(held < 16 << 20, "{held} bytes");
    assert_eq!(recorder.active.load(Ordering::Relaxed), 20);
}

/// Whichever protocol it speaks, and while no byte of an answer has come.
#[tokio::test]
async fn client_that_leaves_gives_up_its_request() {
    let (world, recorder) = Recorder::start(&["h2"]);
    for protocol in ["h2", "http/1.1"] {
        for path in ["/hang", "/events"] {
            let mut client = world.client(None, protocol).await;
            let mut request = client.request(&[]);
            let target = match protocol {
                "h2" => format!("https://api.test{path}"),
                _ => path.to_owned(),
            };
            *request.uri_mut() = target.parse().unwrap();
            let asked = tokio::spawn(async move {
                let answer = client.send(request).await;
                std::future::pending::<()>().await;
                drop(answer);
            });
            recorder.wait_active(1).await;
            asked.abort();
            recorder.wait_active(0).await;
        }
    }
}
