//! What is answered to what, byte for byte.

use connect::{End, HttpVersion, Params, Refusal, RefusalHeaders};

use crate::doubles::{Double, Plan, talk, talk_and_end};

const CONNECT: &str = "CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
const ESTABLISHED: &str = "HTTP/1.1 200 Connection Established\r\n\r\n";
const BAD_REQUEST: &str = "HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request";
const TOO_LARGE: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\n\
    Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    431 Request Header Fields Too Large";
const ONLY_CONNECT: &str = "HTTP/1.1 405 Method Not Allowed\r\n\
    Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
    Content-Length: 45\r\n\r\nthis proxy only supports CONNECT passthrough\n";
const ONLY_CONNECT_THEN_CLOSE: &str = "HTTP/1.1 405 Method Not Allowed\r\n\
    Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
    Content-Length: 45\r\nConnection: close\r\n\r\n\
    this proxy only supports CONNECT passthrough\n";
const HTTP2: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Every input that is answered without a dial, with its answer.
fn answered_without_dial() -> Vec<(String, &'static str, u16, End)> {
    let line = |text: &str| format!("{text}\r\n\r\n");
    let long = "a".repeat(1021);
    vec![
        (line("garbage"), BAD_REQUEST, 400, End::Malformed),
        (
            line("CONNECT a:1 HTTP/1.1\nHost: a"),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (
            line("CONNECT /a:1 HTTP/1.1"),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (
            line("CONNECT u@a:1 HTTP/1.1"),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (
            line("CONNECT http://a:1/ HTTP/1.1"),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (
            line("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHost: b"),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (
            line("CONNECT a:1 HTTP/1.1\r\nContent-Length: 3"),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (
            line(&format!("CONNECT {long}:443 HTTP/1.1")),
            BAD_REQUEST,
            400,
            End::Malformed,
        ),
        (line("GET / HTTP/1.1"), BAD_REQUEST, 400, End::Malformed),
        (line("GET / HTTP/3.0"), BAD_REQUEST, 400, End::Malformed),
        (
            HTTP2.to_owned(),
            ONLY_CONNECT_THEN_CLOSE,
            405,
            End::MethodNotAllowed,
        ),
        (
            line("GET / HTTP/1.1\r\nHost: a\r\nConnection: te, Close"),
            ONLY_CONNECT_THEN_CLOSE,
            405,
            End::MethodNotAllowed,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn unusable_request_is_answered_and_closed() {
    for (input, expected, status, end) in answered_without_dial() {
        let dial = Double::new(Plan::Echo);
        let (outcome, answer) = talk(&dial, &Params::default(), &[input.as_bytes()]).await;
        assert_eq!(answer, expected, "{input:?}");
        assert_eq!(
            (outcome.status, outcome.end),
            (Some(status), end.reason()),
            "{input:?}"
        );
        assert!(outcome.request.is_none(), "{input:?}");
        assert!(dial.targets().is_empty(), "{input:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_does_not_depend_on_input_cuts() {
    let mut cases = answered_without_dial();
    // Cut after its first line, a preface is complete already.
    cases.retain(|(input, ..)| input.len() < 200);
    for (input, expected, ..) in cases {
        for at in 1..input.len() {
            let dial = Double::new(Plan::Echo);
            let (first, second) = input.as_bytes().split_at(at);
            let (_, answer) = talk(&dial, &Params::default(), &[first, second]).await;
            assert_eq!(answer, expected, "{input:?} cut at {at}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connect_cut_anywhere_is_one_connect() {
    let input = format!("{CONNECT}hello");
    for at in 1..input.len() {
        let dial = Double::new(Plan::Echo);
        let (first, second) = input.as_bytes().split_at(at);
        let (outcome, answer) = talk_and_end(&dial, &Params::default(), &[first, second]).await;
        assert_eq!(answer, format!("{ESTABLISHED}hello"), "cut at {at}");
        assert_eq!((outcome.received, outcome.sent), (5, 5), "cut at {at}");
        assert_eq!(dial.targets(), ["10.0.0.1:443"], "cut at {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn http10_and_missing_host_get_same_tunnel() {
    let cases = [
        ("CONNECT a:1 HTTP/1.0\r\n\r\n", HttpVersion::Http10, "a:1"),
        (
            "CONNECT [fd00::1]:1 HTTP/1.1\r\n\r\n",
            HttpVersion::Http11,
            "[fd00::1]:1",
        ),
        // That it lacks a port is for an agent to say, in its own words.
        (
            "CONNECT a HTTP/1.1\r\nHost: b:2\r\n\r\n",
            HttpVersion::Http11,
            "a",
        ),
    ];
    for (input, version, target) in cases {
        let dial = Double::new(Plan::Echo);
        let chunks = [input.as_bytes(), b"hello"];
        let (outcome, answer) = talk_and_end(&dial, &Params::default(), &chunks).await;
        assert_eq!(answer, format!("{ESTABLISHED}hello"), "{input:?}");
        let request = outcome.request.unwrap();
        assert_eq!(
            (request.target.as_str(), request.version),
            (target, version)
        );
        assert_eq!(outcome.status, Some(200));
        assert_eq!(outcome.end, "closed");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_match_reference_server() {
    let closing = "Connection: close\r\nContent-Type: text/plain; charset=utf-8\r\n";
    let refused = "dial tcp 127.0.0.1:1: connect: connection refused";
    let no_agent = "currently no tunnels available: No agent available";
    let late = "Backend dial timeout: backend dial timed out\r\n";
    let cases = [
        (
            Refusal::new(500, "no_agent", no_agent).with_headers(RefusalHeaders::Bare),
            format!("500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n{no_agent}"),
        ),
        (
            Refusal::new(502, "dial_failed", refused),
            format!("502 Bad Gateway\r\n{closing}\r\n{refused}"),
        ),
        (
            Refusal::new(503, "dial_failed", "too many open files"),
            format!("503 Service Unavailable\r\n{closing}\r\ntoo many open files"),
        ),
        (
            Refusal::new(504, "dial_failed", "i/o timeout"),
            format!("504 Gateway Timeout\r\n{closing}\r\ni/o timeout"),
        ),
        (
            Refusal::new(504, "dial_timeout", late).with_headers(RefusalHeaders::Typed),
            format!("504 Gateway Timeout\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{late}"),
        ),
        (
            Refusal::new(403, "forbidden", "not in the networks"),
            format!("403 Forbidden\r\n{closing}\r\nnot in the networks"),
        ),
    ];
    for (refusal, expected) in cases {
        let dial = Double::new(Plan::Refuse(refusal.clone()));
        let (outcome, answer) = talk(&dial, &Params::default(), &[CONNECT.as_bytes()]).await;
        assert_eq!(answer, format!("HTTP/1.1 {expected}"));
        assert_eq!(outcome.status, Some(refusal.status));
        assert_eq!(outcome.end, refusal.reason);
        assert_eq!(outcome.end, refusal.reason);
        assert_eq!(outcome.request.unwrap().target, "10.0.0.1:443");
    }
}

#[tokio::test(start_paused = true)]
async fn connection_continues_after_other_method() {
    let dial = Double::new(Plan::Echo);
    let input = format!("GET / HTTP/1.1\r\nHost: a\r\n\r\n{CONNECT}hello");
    let (outcome, answer) = talk_and_end(&dial, &Params::default(), &[input.as_bytes()]).await;
    assert_eq!(answer, format!("{ONLY_CONNECT}{ESTABLISHED}hello"));
    assert_eq!(outcome.other_requests, 1);
    assert_eq!(outcome.end, "closed");
}

#[tokio::test(start_paused = true)]
async fn body_is_never_read_as_request() {
    for field in [
        "Content-Length: 64",
        "Transfer-Encoding: chunked",
        "Content-Length: 0, 64",
    ] {
        let dial = Double::new(Plan::Echo);
        let input = format!("POST / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n{CONNECT}");
        let (outcome, answer) = talk(&dial, &Params::default(), &[input.as_bytes()]).await;
        assert_eq!(answer, ONLY_CONNECT_THEN_CLOSE, "{field}");
        assert_eq!(outcome.end, End::MethodNotAllowed.reason());
        assert!(dial.targets().is_empty(), "{field}");
    }
}

#[tokio::test(start_paused = true)]
async fn post_without_body_keeps_connection_open() {
    let dial = Double::new(Plan::Echo);
    let input = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let (outcome, answer) = talk_and_end(&dial, &Params::default(), &[input.as_bytes()]).await;
    assert_eq!(answer, ONLY_CONNECT);
    assert_eq!(outcome.end, End::MethodNotAllowed.reason());
}

#[tokio::test(start_paused = true)]
async fn head_and_http10_requests_are_respected() {
    let dial = Double::new(Plan::Echo);
    let input = format!("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\n\r\n{CONNECT}");
    let (outcome, answer) = talk(&dial, &Params::default(), &[input.as_bytes()]).await;
    let (head, _) = ONLY_CONNECT.split_once("this").unwrap();
    let last = ONLY_CONNECT_THEN_CLOSE.replacen("HTTP/1.1", "HTTP/1.0", 1);
    assert_eq!(answer, format!("{head}{last}"));
    assert_eq!(outcome.other_requests, 2);
    assert!(dial.targets().is_empty());
}

#[tokio::test(start_paused = true)]
async fn head_size_is_bounded_exactly() {
    let params = Params {
        head_bytes: 200,
        ..Params::default()
    };
    let sized = |size: usize| {
        let start = "CONNECT a:1 HTTP/1.1\r\nX: ";
        format!("{start}{}\r\n\r\n", "x".repeat(size - start.len() - 4))
    };
    let dial = Double::new(Plan::Echo);
    let (outcome, answer) = talk_and_end(&dial, &params, &[sized(200).as_bytes(), b"hello"]).await;
    assert_eq!(answer, format!("{ESTABLISHED}hello"));
    assert_eq!(outcome.end, "closed");
    let (outcome, answer) = talk(&dial, &params, &[sized(201).as_bytes()]).await;
    assert_eq!(answer, TOO_LARGE);
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(431), End::TooLarge.reason())
    );
}

#[tokio::test(start_paused = true)]
async fn input_end_is_malformed_only_inside_head() {
    let dial = Double::new(Plan::Echo);
    let (outcome, answer) = talk_and_end(&dial, &Params::default(), &[b"CONNECT a"]).await;
    assert_eq!(
        (answer.as_str(), outcome.end),
        (BAD_REQUEST, End::Malformed.reason())
    );
    let (outcome, answer) = talk_and_end(&dial, &Params::default(), &[]).await;
    assert_eq!(
        (answer.as_str(), outcome.end),
        ("", End::ClientGone.reason())
    );
    assert_eq!(outcome.status, None);
}
