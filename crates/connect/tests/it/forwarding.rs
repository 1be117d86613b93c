//! Requests in absolute form: what their target is sent, and what it never is.

use connect::{End, Params};
use preamble::{Progress, RequestHead};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::doubles::{Double, Plan, talk, talk_and_end};

/// Of a proxy's client, as Go's transport sends it, with fields that are the proxy's.
const REQUEST: &str = "GET http://10.0.0.1:9153/metrics?a=b HTTP/1.1\r\nHost: other.example\r\n\
    User-Agent: Prometheus/2.42.0\r\nProxy-Authorization: Basic c2VjcmV0\r\nX-Hop: 1\r\n\
    Connection: X-Hop, keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
    TE: trailers\r\nUpgrade: h2c\r\nContent-Length: 0\r\nAccept-Encoding: gzip\r\n\r\n";
const SENT: &str = "GET /metrics?a=b HTTP/1.1\r\nHost: 10.0.0.1:9153\r\nConnection: close\r\n\
    User-Agent: Prometheus/2.42.0\r\nAccept-Encoding: gzip\r\n\r\n";
/// A second request, for another target.
const NEXT: &str = "GET http://10.0.0.2/secret HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn target_gets_one_request_however_input_is_cut() {
    let input = format!("{REQUEST}{NEXT}");
    for at in 1..input.len() {
        let dial = Double::new(Plan::Echo);
        let (first, second) = input.as_bytes().split_at(at);
        let (outcome, echoed) = talk_and_end(&dial, &Params::default(), &[first, second]).await;
        assert_eq!(echoed, SENT, "cut at {at}");
        assert_eq!(dial.targets(), ["10.0.0.1:9153"], "cut at {at}");
        assert_eq!((outcome.status, outcome.end), (Some(200), "closed"));
    }
}

#[tokio::test(start_paused = true)]
async fn target_is_named_by_request_line_alone() {
    for (target, dialed, path) in [
        ("http://a.example", "a.example:80", "/"),
        ("HTTP://a.example?q=/", "a.example:80", "/?q=/"),
        ("http://[fd00::1]/x", "[fd00::1]:80", "/x"),
        ("http://[fd00::1]:8080/x", "[fd00::1]:8080", "/x"),
    ] {
        for version in ["HTTP/1.0", "HTTP/1.1"] {
            let dial = Double::new(Plan::Echo);
            let input = format!("GET {target} {version}\r\nHost: b\r\nX: y\r\n\r\n");
            let chunks = [input.as_bytes()];
            let (_, echoed) = talk_and_end(&dial, &Params::default(), &chunks).await;
            let host = target.split(['/', '?']).nth(2).unwrap();
            let expected = format!(
                "GET {path} {version}\r\nHost: {host}\r\nConnection: close\r\nX: y\r\n\r\n"
            );
            assert_eq!(echoed, expected, "{target}");
            assert_eq!(dial.targets(), [dialed], "{target}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_refused_unless_forwarded_safely() {
    let long = "a".repeat(1100);
    for (line, fields, status, end) in [
        ("GET https://a/", "", 405, End::MethodNotAllowed),
        ("GET ftp://a/", "", 405, End::MethodNotAllowed),
        ("HEAD http://a/", "", 405, End::MethodNotAllowed),
        ("POST http://a/", "", 405, End::MethodNotAllowed),
        (
            "GET http://a/",
            "Content-Length: 5\r\n",
            405,
            End::MethodNotAllowed,
        ),
        (
            "GET http://a/",
            "Content-Length: 0\r\nContent-Length: 5\r\n",
            405,
            End::MethodNotAllowed,
        ),
        (
            "GET http://a/",
            "Content-Length: 0, 5\r\n",
            405,
            End::MethodNotAllowed,
        ),
        (
            "GET http://a/",
            "Transfer-Encoding: chunked\r\n",
            405,
            End::MethodNotAllowed,
        ),
        (
            "GET http://a/",
            "Transfer-Encoding : chunked\r\n",
            400,
            End::Malformed,
        ),
        ("GET http://a/", "X: y\nHost: b\r\n", 400, End::Malformed),
        ("GET http://a/", "Host: b\r\n", 400, End::Malformed),
        ("GET http://user@a/", "", 400, End::Malformed),
        (&format!("GET http://{long}/"), "", 400, End::Malformed),
    ] {
        let dial = Double::new(Plan::Echo);
        let last = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
        let (outcome, answer) = talk(&dial, &Params::default(), &[last.as_bytes()]).await;
        assert!(dial.targets().is_empty(), "{last}");
        assert_eq!(
            (outcome.status, outcome.end),
            (Some(status), end.reason()),
            "{last}"
        );
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{last}: {answer}"
        );
    }
}

fn field() -> impl Strategy<Value = String> {
    let names = [
        "Connection",
        "Content-Length",
        "Host",
        "TE",
        "Transfer-Encoding",
        "Upgrade",
        "X-a",
        "x-A",
    ];
    let values = [
        "",
        "0",
        "5",
        "X-a",
        "a:1",
        "close, host",
        "chunked",
        "keep-alive,\tx-a",
    ];
    let parts = (
        prop::sample::select(names.to_vec()),
        prop::sample::select(values.to_vec()),
    );
    parts.prop_map(|(name, value)| format!("{name}: {value}\r\n"))
}

proptest! {
    #[test]
    fn target_gets_one_well_formed_head(fields in vec(field(), 0..6), rest in vec(any::<u8>(), 0..64)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let dial = Double::new(Plan::Echo);
        let head = format!("GET http://a:1/x HTTP/1.1\r\n{}\r\n", fields.concat());
        let chunks = [head.as_bytes(), &rest];
        let params = Params::default();
        let talking = talk_and_end(&dial, &params, &chunks);
        let (outcome, echoed) = runtime.block_on(talking);
        if outcome.status == Some(200) {
            let parsed = RequestHead::parse(echoed.as_bytes(), 1024);
            let Ok(Progress::Done { value, consumed }) = parsed else {
                panic!("{echoed:?}");
            };
            prop_assert_eq!(consumed, echoed.len());
            prop_assert_eq!((value.target(), value.host()), ("/x", Some("a:1")));
            let names: Vec<_> = value.headers().map(|(name, _)| name.to_ascii_lowercase()).collect();
            prop_assert_eq!(&names[..2], ["host", "connection"]);
            prop_assert!(names[2..].iter().all(|name| name == "x-a"), "{:?}", echoed);
            prop_assert!(!value.announces_body());
        }
    }
}
