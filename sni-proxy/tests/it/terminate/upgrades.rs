//! Upgrades and bodies that wait, as bytes of HTTP/1.1.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::recorder::Recorder;
use super::smuggling::{LAST, exchange, shown};
use crate::support::LIMIT;

#[tokio::test]
async fn upgrade_arrives_clean_and_takes_the_connection() {
    let (world, recorder) = Recorder::start(&["http/1.1"]);
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs"], &[])
        .unwrap();
    let head = "GET /switch?a=b HTTP/1.1\r\nHost: api.test\r\nConnection: keep-alive, x-remote-user, Upgrade\r\n\
        Upgrade: SPDY/3.1\r\nX-Remote-User: admin\r\nX_Remote_Group: admin\r\nX-Stream-Protocol-Version: v4\r\n\r\n";
    let mut stream = world.raw(Some(&identity), "http/1.1").await;
    // As a request that is only bytes by then: it was sent before the answer.
    let after = "GET /b HTTP/1.1\r\nHost: api.test\r\nX-Remote-User: admin\r\n\r\n";
    stream
        .write_all(format!("{head}{after}").as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(after.as_bytes()) {
        answer.push(timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap());
    }
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    let seen = recorder.take();
    let [own] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(own.line, "GET /switch?a=b");
    let headers = [
        "connection: upgrade",
        "host: api.test",
        "upgrade: SPDY/3.1",
        "x-stream-protocol-version: v4",
    ];
    assert_eq!(own.headers, headers);
    let identity = [
        "x-forwarded-for: 127.0.0.1",
        "x-remote-group: devs",
        "x-remote-user: jane",
    ];
    assert_eq!(own.identity, identity);
    assert!(own.mutual);
}

/// A server that goes on without the other protocol has its answer passed on whole, and the connection goes on.
#[tokio::test]
async fn declined_upgrade_keeps_its_answer() {
    let (world, recorder) = Recorder::start(&["http/1.1"]);
    let head =
        "GET /a HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let answer = exchange(&world, None, format!("{head}{LAST}").as_bytes()).await;
    let bodies = answer.matches("\r\n\r\nok").count();
    assert_eq!(
        (answer.matches("HTTP/1.1 200 OK\r\n").count(), bodies),
        (2, 2),
        "{answer}"
    );
    let lines: Vec<_> = recorder.take().iter().map(|own| own.line.clone()).collect();
    assert_eq!(lines, ["GET /a", "GET /last"]);
}

#[tokio::test]
async fn body_waits_for_100_continue() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let mut stream = world.raw(None, "http/1.1").await;
    let head = "POST /a HTTP/1.1\r\nHost: api.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 100 Continue\r\n"));
    stream.write_all(b"hi").await.unwrap();
    let mut answer = String::new();
    let _ = timeout(LIMIT, stream.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(
        shown(&recorder.take()[0]),
        "POST /a [content-length: 2; expect: 100-continue] {hi}"
    );
}
