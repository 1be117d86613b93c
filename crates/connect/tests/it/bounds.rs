//! Every wait has an end.

use std::time::Duration;

use connect::{End, Params};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::{Instant, sleep};

use crate::doubles::{Double, Plan, serve, talk};

const CONNECT: &[u8] = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn slow_head_is_closed_without_answer() {
    let dial = Double::new(Plan::Echo);
    let (client, server) = duplex(1024);
    let (mut from, mut to) = tokio::io::split(client);
    let drip = async {
        for byte in CONNECT {
            if to.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(7)).await;
        }
    };
    let read = async {
        let mut all = Vec::new();
        from.read_to_end(&mut all).await.unwrap();
        all
    };
    let timed = async {
        let start = Instant::now();
        let double = &dial;
        let outcome = serve(server, double, &Params::default()).await;
        (outcome, start.elapsed())
    };
    let ((outcome, took), (), all) = tokio::join!(timed, drip, read);
    assert_eq!(
        (outcome.status, outcome.end),
        (None, End::HeadTimeout.reason())
    );
    assert_eq!(all, b"");
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(61));
}

#[tokio::test(start_paused = true)]
async fn next_head_has_full_time_limit() {
    let dial = Double::new(Plan::Echo);
    let (mut client, server) = duplex(1024);
    let start = Instant::now();
    let speak = async {
        for _ in 0..2 {
            sleep(Duration::from_secs(50)).await;
            client.write_all(GET).await.unwrap();
        }
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        all
    };
    let double = &dial;
    let params = Params::default();
    let (outcome, all) = tokio::join!(serve(server, double, &params), speak);
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(405), End::HeadTimeout.reason())
    );
    assert_eq!(outcome.other_requests, 2);
    assert_eq!(all.windows(4).filter(|it| it == b" 405").count(), 2);
    assert!(start.elapsed() >= Duration::from_secs(160));
}

#[tokio::test(start_paused = true)]
async fn last_of_too_many_other_requests_closes() {
    let dial = Double::new(Plan::Echo);
    let params = Params {
        other_requests: 3,
        ..Params::default()
    };
    let (outcome, answer) = talk(&dial, &params, &[GET, GET, GET, CONNECT]).await;
    assert_eq!(answer.matches(" 405 ").count(), 3);
    assert_eq!(answer.matches("Connection: close").count(), 1);
    assert_eq!(
        (outcome.other_requests, outcome.end),
        (3, End::MethodNotAllowed.reason())
    );
    assert!(dial.targets().is_empty());
}

#[tokio::test(start_paused = true)]
async fn endless_dial_is_answered_with_504() {
    let dial = Double::new(Plan::Hang);
    let start = Instant::now();
    let (outcome, answer) = talk(&dial, &Params::default(), &[CONNECT]).await;
    assert!(
        answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"),
        "{answer}"
    );
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(504), End::DialTimeout.reason())
    );
    assert_eq!(dial.canceled.get(), 1);
    assert!(start.elapsed() < Duration::from_secs(62));
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_closed() {
    let dial = Double::new(Plan::Echo);
    // Capacity for the request and not for the answer.
    let (mut client, server) = duplex(16);
    client.write_all(b"garbage\r\n\r\n").await.unwrap();
    let double = &dial;
    let outcome = serve(server, double, &Params::default()).await;
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(400), End::Malformed.reason())
    );

    // Takes the answer and stays.
    let (mut client, server) = duplex(1024);
    client.write_all(b"garbage\r\n\r\n").await.unwrap();
    let outcome = serve(server, double, &Params::default()).await;
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(400), End::Malformed.reason())
    );
}

/// A client that reads to the end need not wait for the time it is given.
#[tokio::test(start_paused = true)]
async fn end_follows_answer_at_once() {
    let dial = Double::new(Plan::Echo);
    let (mut client, server) = duplex(1024);
    let read = async {
        client.write_all(b"garbage\r\n\r\n").await.unwrap();
        let start = Instant::now();
        client.read_to_end(&mut Vec::new()).await.unwrap();
        drop(client);
        start.elapsed()
    };
    let double = &dial;
    let params = Params::default();
    let (_, took) = tokio::join!(serve(server, double, &params), read);
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn client_that_never_stops_sending_is_closed() {
    let dial = Double::new(Plan::Echo);
    let (client, server) = duplex(1024);
    let (_from, mut to) = tokio::io::split(client);
    let flood = async {
        let mut left = 10_000;
        while left > 0 && to.write_all(&[b'\n'; 512]).await.is_ok() {
            left -= 1;
        }
        assert!(left > 0, "the server took all there was");
    };
    // The clock stands still while there is something to do, so only the bound on bytes ends it.
    let double = &dial;
    let params = Params::default();
    let (outcome, ()) = tokio::join!(serve(server, double, &params), flood);
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(400), End::Malformed.reason())
    );
}
