//! The kept connections to a server: which requests share one, and what happens when one takes no more of them.

use std::sync::atomic::Ordering;

use http_body_util::BodyExt;
use tokio::time::timeout;

use super::frames::{DATA, END_STREAM, Frames, RST_STREAM, Said, head};
use super::recorder::Recorder;
use super::until;
use crate::support::LIMIT;

const CLUSTER: (&str, &str) = ("cluster", "api");
const CONNECTIONS: &str = "rhizome_upstream_connections_active";
const STREAMS: &str = "rhizome_upstream_streams_active";

impl Frames {
    /// Begins a GET with this Authorization, if there is one, and returns what it is answered.
    async fn ask(&mut self, path: &str, authorization: Option<&str>) -> Said {
        let head = head("GET", path).into_iter();
        let authorization = authorization.map(|value| ("authorization", value));
        let headers: Vec<_> = head.chain(authorization).collect();
        let stream = self.request(&headers, END_STREAM).await;
        self.said(stream).await
    }
}

/// Since Kubernetes 1.29 an API server ends the connection of a request that it cannot attribute to a user.
#[tokio::test]
async fn unauthorized_requests_end_no_connection_of_others() {
    let good = Some("Bearer good");
    for bad in [None, Some("Basic Og=="), Some("Bearer wrong")] {
        for anew in [false, true] {
            let (world, _recorder) = Recorder::start(&["h2"]);
            let mut stranger = Frames::open(&world, None).await;
            let mut watching = Frames::open(&world, None).await;
            for _ in 0..10 {
                if anew {
                    stranger = Frames::open(&world, None).await;
                }
                // What comes ahead of authentication says nothing of a token.
                let said = stranger.ask("/bad", bad).await;
                assert!(matches!(said, Said::Status(_)), "{bad:?}: {said:?}");
                let said = stranger.ask("/unauthorized", bad).await;
                assert!(matches!(said, Said::Status(_)), "{bad:?}: {said:?}");
                let said = watching.ask("/events", good).await;
                assert_eq!(said, Said::Status(200), "{bad:?}");
            }
            // A good token is known by its first answer, which keeps one connection of the others.
            until("connections that end", || {
                world.gateway.value(CONNECTIONS, &[CLUSTER]) <= 2.0
            })
            .await;
            for _ in 0..2 {
                assert_eq!(stranger.ask("/events", good).await, Said::Status(200));
            }
            for (pool, streams) in [("anonymous", 0.0), ("unproven", 2.0), ("token", 10.0)] {
                let open = world.gateway.value(STREAMS, &[CLUSTER, ("pool", pool)]);
                assert_eq!(open, streams, "{bad:?} {anew}: {pool}");
            }
        }
    }
}

#[tokio::test]
async fn connection_has_no_more_streams_than_permitted() {
    let (world, recorder) = Recorder::start(&["h2"]);
    recorder.max_streams.store(2, Ordering::Relaxed);
    let mut frames = Frames::open(&world, None).await;
    for _ in 0..2 {
        assert_eq!(frames.ask("/events", None).await, Said::Status(200));
    }
    assert!(frames.serves().await);
    assert_eq!(recorder.connections.load(Ordering::Relaxed), 2);
}

/// More than a request has tries.
#[tokio::test]
async fn connections_that_end_cost_no_try() {
    let (world, recorder) = Recorder::start(&["h2"]);
    recorder.max_streams.store(2, Ordering::Relaxed);
    let mut frames = Frames::open(&world, None).await;
    let mut watches = Vec::new();
    for _ in 0..10 {
        let watch = frames.get("/events").await;
        assert_eq!(frames.said(watch).await, Said::Status(200));
        watches.push(watch);
    }
    assert_eq!(recorder.connections.load(Ordering::Relaxed), 5);
    for watch in watches.into_iter().step_by(2) {
        frames.frame(RST_STREAM, 0, watch, &[0, 0, 0, 8]).await;
    }
    world.wait_value(STREAMS, &[CLUSTER], 5.0).await;
    recorder.leaving.notify_waiters();
    let dialed = async {
        while recorder.connections.load(Ordering::Relaxed) == 5 {
            assert!(frames.serves().await);
        }
    };
    timeout(LIMIT, dialed).await.expect("a further connection");
}

/// Whatever the server says is the reason.
#[tokio::test]
async fn answer_that_is_cut_does_not_look_whole() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    for protocol in ["h2", "http/1.1"] {
        let mut client = world.client(None, protocol).await;
        let request = client.request_of("/cut", &[]);
        // The reset may overtake the head.
        let whole = async { client.send(request).await?.collect().await };
        let whole = timeout(LIMIT, whole).await.expect("an end");
        assert!(whole.is_err(), "{protocol}: {whole:?}");
    }
    // One that has ended is whole, though the rest of the request is not read (RFC 9113 section 8.1).
    let mut frames = Frames::open(&world, None).await;
    let stream = frames.request(&head("POST", "/stream/5/5"), 0).await;
    assert_eq!(frames.said(stream).await, Said::Status(200));
    loop {
        let frame = frames.next().await.expect("a frame");
        assert!(frame.stream != stream || frame.kind == DATA, "{frame:?}");
        if frame.stream == stream && frame.flags & END_STREAM != 0 {
            return;
        }
    }
}
