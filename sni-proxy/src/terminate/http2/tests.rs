//! A client that sends frames, over a pipe, while time is stopped: heads that do not become whole, and silence.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::sleep;

use super::*;
use crate::terminate::exchange::Exchanges;
use crate::terminate::metrics::{Protocol, WorkerStats};

const LIMIT: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
const SETTINGS_OF_SERVER: http2_proto::Params = http2_proto::Params {
    stream_window: STREAM_WINDOW,
    connection_window: CONNECTION_WINDOW,
    max_frame: MAX_FRAME,
    max_streams: 100,
    max_head: 1000,
    max_copied: MAX_FRAME as usize,
    header_table: HEADER_TABLE,
    send_buffer: 1000,
};
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING_FRAME: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET https://a/`, of the static table and a literal (RFC 7541 appendix A).
const HEAD: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'a'];

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u8;
    [&[0, 0, len, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Serves a client that has said what it begins with: its first stream is answered, others wait. Returns how the connection ends and after which time;
/// an hour at most.
async fn serve<F: Future>(
    client: impl FnOnce(DuplexStream) -> F,
) -> (Option<(End, bool)>, Duration) {
    let (own, mut near) = duplex(64 * 1024);
    let begin = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &frame(SETTINGS, 0, 0, &[])[..],
    ];
    near.write_all(&begin.concat()).await.unwrap();
    let mut streams = 0;
    let answer = |stream: Stream, _| {
        streams += 1;
        let answered = streams == 1;
        async move {
            match answered {
                true => stream.respond(&[(b":status", b"200")], true),
                false => drop(poll_fn(|cx| stream.poll_end(cx)).await),
            }
        }
    };
    let mut server = Server::new(own, SETTINGS_OF_SERVER, Watch::new(LIMIT), answer);
    server.begun().await.unwrap();
    let began = Instant::now();
    let client = pin!(async {
        client(near).await;
        std::future::pending::<()>().await;
    });
    let ended = tokio::select! {
        end = timeout(HOUR, poll_fn(|cx| server.poll(cx))) => end.ok(),
        () = client => None,
    };
    let late = server.host().late;
    (ended.map(|end| (end, late)), began.elapsed())
}

/// Answers pings, and keeps the connection.
async fn answer_pings(mut client: DuplexStream) {
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[2])];
        client.read_exact(&mut payload).await.unwrap();
        if head[3] == PING_FRAME && head[4] & ACK == 0 {
            let pong = frame(PING_FRAME, ACK, 0, &payload);
            client.write_all(&pong).await.unwrap();
        }
    }
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
        let (ended, after) = serve(|mut client| async move {
            client.write_all(&sent).await.unwrap();
            answer_pings(client).await;
        })
        .await;
        assert!(matches!(ended, Some((End::GivenUp, true))), "{ended:?}");
        assert_eq!(after, LIMIT);
    }
}

#[tokio::test(start_paused = true)]
async fn head_that_goes_on_byte_by_byte_ends_in_time() {
    let head = frame(HEADERS, END_STREAM, 1, HEAD);
    let more = frame(CONTINUATION, 0, 1, &[0x90]).repeat(20);
    let (ended, after) = serve(|mut client| async move {
        for byte in [head, more].concat() {
            if client.write_all(&[byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    assert!(matches!(ended, Some((End::GivenUp, true))), "{ended:?}");
    assert!(after < LIMIT * 2, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn connection_between_heads_goes_on() {
    let (ended, after) = serve(|mut client| async move {
        for stream in [1, 3] {
            let (first, last) = HEAD.split_at(3);
            let begin = frame(HEADERS, END_STREAM, stream, first);
            client.write_all(&begin).await.unwrap();
            sleep(LIMIT - Duration::from_secs(1)).await;
            let last = frame(CONTINUATION, END_HEADERS, stream, last);
            client.write_all(&last).await.unwrap();
            sleep(LIMIT * 3).await;
        }
        let flags = END_STREAM | END_HEADERS;
        let head = frame(HEADERS, flags, 5, HEAD);
        client.write_all(&head).await.unwrap();
        answer_pings(client).await;
    })
    .await;
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(after, HOUR);
}

/// One that waits for an answer, and one that does not.
#[tokio::test(start_paused = true)]
async fn silent_client_is_given_up() {
    let get = frame(HEADERS, END_STREAM | END_HEADERS, 1, HEAD);
    let hang = frame(HEADERS, END_STREAM | END_HEADERS, 3, HEAD);
    for sent in [vec![], get.clone(), [get, hang].concat()] {
        let (ended, after) = serve(|mut client| async move {
            client.write_all(&sent).await.unwrap();
            std::future::pending::<()>().await;
            drop(client);
        })
        .await;
        assert!(matches!(ended, Some((End::GivenUp, false))), "{ended:?}");
        assert_eq!(after, PING + PING_LIMIT);
    }
}

/// Makes a client that has asked for something, and takes one byte of it; returns the server's end and its own.
async fn narrow_client() -> (DuplexStream, DuplexStream) {
    let (own, mut client) = duplex(64 * 1024);
    let window = [0, 4, 0, 0, 0, 1];
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &frame(SETTINGS, 0, 0, &window)[..],
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, HEAD),
    ];
    client.write_all(&sent.concat()).await.unwrap();
    (own, client)
}

/// Its window is so wide that it says nothing for long, and the question waits behind what it reads.
#[tokio::test(start_paused = true)]
async fn silent_client_that_reads_slowly_goes_on() {
    let (own, mut client) = duplex(1024);
    let window = [0, 4, 0, 0xff, 0xff, 0xff];
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &frame(SETTINGS, 0, 0, &window)[..],
        &frame(WINDOW_UPDATE, 0, 0, &[0, 0xff, 0, 0]),
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, HEAD),
    ];
    client.write_all(&sent.concat()).await.unwrap();
    let answer = |stream: Stream, _| async move {
        stream.respond(&[(b":status", b"200")], false);
        while poll_fn(|cx| stream.poll_ready(cx)).await.is_ok() {
            let data = Bytes::from_static(&[b'a'; 10_000]);
            if stream.send(b"", data).is_err() {
                break;
            }
        }
    };
    let mut server = Server::new(own, SETTINGS_OF_SERVER, Watch::new(LIMIT), answer);
    server.begun().await.unwrap();
    let began = Instant::now();
    let reads = pin!(async {
        for _ in 0..600 {
            client.read_exact(&mut [0; 1024]).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
    });
    tokio::select! {
        end = poll_fn(|cx| server.poll(cx)) => panic!("{end:?} after {:?}", began.elapsed()),
        () = reads => {}
    }
    // One that takes nothing more is.
    let end = timeout(HOUR, poll_fn(|cx| server.poll(cx))).await;
    assert!(matches!(end, Ok(End::GivenUp)), "{end:?}");
}

/// As long as the client's window has no room for all of the answer.
#[tokio::test(start_paused = true)]
async fn request_is_open_until_its_answer_is_sent() {
    let (own, mut client) = narrow_client().await;
    let exchanges = Exchanges::new(Protocol::Http2, &WorkerStats::detached(), None);
    let answer = |stream: Stream, _| {
        let open = exchanges.begin(&Request::new(()));
        async move {
            let text = Bytes::from_static(b"hello");
            send(&stream, Response::new(ResponseBody::own(Some(text), open))).await;
        }
    };
    let mut server = Server::new(own, SETTINGS_OF_SERVER, Watch::new(LIMIT), answer);
    server.begun().await.unwrap();
    let waited = timeout(LIMIT, poll_fn(|cx| server.poll(cx))).await;
    assert!(waited.is_err() && !exchanges.count.is_idle());
    let more = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]);
    client.write_all(&more).await.unwrap();
    let waited = timeout(LIMIT, poll_fn(|cx| server.poll(cx))).await;
    assert!(waited.is_err() && exchanges.count.is_idle());
}

/// One that the client does not take does not outlast its request's limit.
#[tokio::test(start_paused = true)]
async fn answer_is_reset_when_its_time_is_up() {
    let (own, mut client) = narrow_client().await;
    let exchanges = Exchanges::new(Protocol::Http2, &WorkerStats::detached(), None);
    let began = Instant::now();
    let answer = |stream: Stream, _| {
        let open = exchanges.begin(&Request::new(()));
        let text = Bytes::from_static(b"hello");
        let response = Response::new(ResponseBody::own(Some(text), open));
        async move { within(began + LIMIT, &stream, send(&stream, response)).await }
    };
    let mut server = Server::new(own, SETTINGS_OF_SERVER, Watch::new(LIMIT), answer);
    server.begun().await.unwrap();
    server.leave();
    tokio::spawn(async move {
        let mut bytes = Vec::new();
        client
            .write_all(&frame(PING_FRAME, ACK, 0, b"rhizome!"))
            .await
            .unwrap();
        client.read_to_end(&mut bytes).await.unwrap();
    });
    let end = poll_fn(|cx| server.poll(cx)).await;
    assert!(matches!(end, End::Left), "{end:?}");
    assert_eq!(began.elapsed(), LIMIT);
    assert!(exchanges.count.is_idle());
}
