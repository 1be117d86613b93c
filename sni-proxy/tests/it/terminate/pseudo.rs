//! Heads of HTTP/2 that no honest client sends.

use super::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Said, block, head};
use super::recorder::Recorder;
use super::smuggling::shown;

const PROTOCOL_ERROR: u32 = 1;

/// Returns the usual head with some of it replaced or added.
fn with<'a>(changed: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = head("GET", "/a").to_vec();
    for (name, value) in changed {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some(known) if name.starts_with(':') => known.1 = value,
            _ => all.push((name, value)),
        }
    }
    all
}

#[tokio::test]
async fn malformed_head_reaches_no_server() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs"], &[])
        .unwrap();
    let usual = head("GET", "/a");
    let without = |name: &str| {
        let all = usual.iter().filter(|own| own.0 != name).copied();
        all.collect::<Vec<_>>()
    };
    let mut late = vec![("accept", "a")];
    late.extend(usual);
    let mut twice = usual.to_vec();
    twice.push((":path", "/b"));
    for sent in [
        late,
        twice,
        without(":method"),
        without(":scheme"),
        without(":path"),
        without(":authority"),
        with(&[(":path", "")]),
        with(&[(":path", "a")]),
        with(&[(":path", "*")]),
        with(&[(":path", "/a b")]),
        with(&[(":path", "/a\r\nx-remote-user: admin")]),
        with(&[(":path", "/a HTTP/1.1\r\nx-remote-user: admin\r\n\r\n")]),
        with(&[(":method", "GET /b HTTP/1.1\r\n\r\nGET")]),
        with(&[(":method", "")]),
        with(&[(":method", "CONNECT")]),
        with(&[(":method", "CONNECT"), (":protocol", "websocket")]),
        with(&[(":status", "200")]),
        with(&[(":x-remote-user", "admin")]),
        with(&[(":authority", "")]),
        with(&[(":authority", "a@api.test")]),
        with(&[(":authority", "api.test:x")]),
        with(&[(":authority", "api.test, b.test")]),
        with(&[(":authority", "b.test")]),
        with(&[("host", "b.test")]),
        with(&[("host", "api.test"), ("host", "api.test")]),
        with(&[("host", "api.test:443")]),
        with(&[("X-Remote-User", "admin")]),
        with(&[("Accept", "a")]),
        with(&[("x-remote user", "admin")]),
        with(&[("x-remote-user:", "admin")]),
        with(&[("", "admin")]),
        with(&[("accept\0", "a")]),
        with(&[("accept", "a\r\nx-remote-user: admin")]),
        with(&[("accept", "a\nb")]),
        with(&[("accept", "a\0b")]),
        with(&[("connection", "x-remote-user")]),
        with(&[("connection", "upgrade"), ("upgrade", "websocket")]),
        with(&[("keep-alive", "5")]),
        with(&[("proxy-connection", "a")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("upgrade", "h2c")]),
        with(&[("te", "chunked")]),
        with(&[("content-length", "1")]),
        with(&[("content-length", "x")]),
    ] {
        let mut frames = Frames::open(&world, Some(&identity)).await;
        let stream = frames.request(&sent, END_STREAM).await;
        let said = frames.said(stream).await;
        let refused = match said {
            Said::Reset(code) | Said::Ended(Some(code)) => code == PROTOCOL_ERROR,
            Said::Status(status) => status != 200,
            Said::Ended(None) => false,
        };
        let shown: Vec<_> = recorder.take().iter().map(shown).collect();
        assert!(refused && shown.is_empty(), "{sent:?}: {said:?}, {shown:?}");
    }
}

#[tokio::test]
async fn refused_head_request_has_no_body() {
    let (world, _recorder) = Recorder::start(&["h2"]);
    let mut frames = Frames::open(&world, None).await;
    let mut refused = head("HEAD", "/a");
    refused[2].1 = "b.test";
    let stream = frames.request(&refused, END_STREAM).await;
    loop {
        let frame = frames.next().await.expect("an answer");
        if frame.stream == stream {
            assert_eq!(
                (frame.kind, frame.flags),
                (HEADERS, END_HEADERS | END_STREAM)
            );
            break;
        }
    }
}

#[tokio::test]
async fn odd_head_arrives_clean() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs"], &[])
        .unwrap();
    for (sent, arrives) in [
        (with(&[(":scheme", "http")]), "GET /a"),
        (with(&[(":scheme", "")]), "GET /a"),
        (with(&[("host", "API.test")]), "GET /a"),
        (with(&[("te", "trailers")]), "GET /a"),
        (
            with(&[("x-remote-user", "admin"), ("x_remote_group", "b")]),
            "GET /a",
        ),
        (
            with(&[("x-remote-extra-a%2fb", "c"), ("x_remote-uid", "0")]),
            "GET /a",
        ),
        (
            with(&[("forwarded", "for=b"), ("x-forwarded_for", "b")]),
            "GET /a",
        ),
        (
            with(&[("accept", "\u{e9}\tb")]),
            "GET /a [accept: \\xc3\\xa9\\tb]",
        ),
        (
            with(&[("content-length", "0")]),
            "GET /a [content-length: 0]",
        ),
        (
            with(&[(":path", "//b.test/%0d?\u{e9}=%00")]),
            "GET //b.test/%0d?\u{e9}=%00",
        ),
    ] {
        for identity in [None, Some(&identity)] {
            let mut frames = Frames::open(&world, identity).await;
            let stream = frames.request(&sent, END_STREAM).await;
            assert_eq!(frames.said(stream).await, Said::Status(200), "{sent:?}");
            let seen = recorder.take();
            let [own] = &seen[..] else {
                panic!("{sent:?}: {seen:?}")
            };
            assert_eq!(shown(own), arrives);
            let mut expected = vec!["x-forwarded-for: 127.0.0.1"];
            if identity.is_some() {
                expected.extend(["x-remote-group: devs", "x-remote-user: jane"]);
            }
            assert_eq!(own.identity, expected);
            assert_eq!(own.mutual, identity.is_some());
        }
    }
}

#[tokio::test]
async fn trailers_carry_no_identity() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs"], &[])
        .unwrap();
    for (trailers, arrives) in [
        (
            &[
                ("x-remote-user", "admin"),
                ("x_remote_group", "b"),
                ("x-kept", "c"),
            ][..],
            Some("POST /a [x-kept: c] {hi}"),
        ),
        (
            &[("forwarded", "for=b"), ("x-real-ip", "b")],
            Some("POST /a {hi}"),
        ),
        (&[(":path", "/b")], None),
        (&[("X-Remote-User", "admin")], None),
        (&[("connection", "x-kept")], None),
        (&[("transfer-encoding", "chunked")], None),
        (&[("a(b", "1")], None),
        (&[("a", "\u{1}")], None),
    ] {
        let mut frames = Frames::open(&world, Some(&identity)).await;
        let stream = frames.request(&head("POST", "/a"), 0).await;
        frames.frame(DATA, 0, stream, b"hi").await;
        let flags = END_HEADERS | END_STREAM;
        frames.frame(HEADERS, flags, stream, &block(trailers)).await;
        let said = frames.said(stream).await;
        let seen = recorder.take();
        match arrives {
            Some(arrives) => {
                assert_eq!(said, Said::Status(200), "{trailers:?}");
                assert_eq!(seen.iter().map(shown).collect::<Vec<_>>(), [arrives]);
            }
            None => {
                // No fault of the server's.
                assert_eq!(said, Said::Reset(PROTOCOL_ERROR), "{trailers:?}");
                let whole = seen.iter().filter(|own| own.body != "broken off");
                assert_eq!(whole.count(), 0, "{trailers:?}: {seen:?}");
            }
        }
    }
}
