//! Requests of HTTP/1.1 that two parsers may read in two ways, and headers that may mean more than they say.
//!
//! ```text
//!     bytes, then a plain request ─▶ gateway ─▶ recorder: these requests, to the byte, and no other
//! ```

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use testkit::certs::{self, Identity};

use super::recorder::{Recorder, Seen};
use super::{NAME, World};
use crate::support::LIMIT;

impl World {
    /// Opens a connection without a client of HTTP.
    pub(super) async fn raw(
        &self,
        identity: Option<&Identity>,
        protocol: &str,
    ) -> TlsStream<TcpStream> {
        let config = certs::mutual_client_config(self.secrets.serving.pem(), identity, &[protocol]);
        let stream = TcpStream::connect(self.gateway.addr("tls")).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let connecting = TlsConnector::from(config.unwrap()).connect(name, stream);
        timeout(LIMIT, connecting).await.unwrap().unwrap()
    }
}

/// Sends bytes, reads until the gateway closes, and returns what it answered.
pub(super) async fn exchange(world: &World, identity: Option<&Identity>, bytes: &[u8]) -> String {
    let mut stream = world.raw(identity, "http/1.1").await;
    let mut answer = Vec::new();
    let exchanged = async {
        // It may have closed already.
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        let _ = stream.read_to_end(&mut answer).await;
    };
    let ended = timeout(LIMIT, exchanged).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(ended.is_ok(), "{}: {answer}", bytes.escape_ascii());
    answer
}

pub(super) const LAST: &str = "GET /last HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n";

/// What must arrive of it, as `METHOD PATH [header; header] [trailer] {body}`.
#[derive(Clone, Copy)]
enum Arrives {
    /// This, and then the last request.
    First(&'static str),
    /// This, and nothing after it: the connection is closed.
    Alone(&'static str),
    /// Nothing: it is refused, and nothing after it is read.
    Nothing,
    /// Only what comes after it, if that: it is refused as a whole.
    Rest,
}
use Arrives::{Alone, First, Nothing, Rest};

pub(super) fn shown(seen: &Seen) -> String {
    let line = seen.line.replace("https://api.test", "");
    let mut text = line;
    for part in [&seen.headers, &seen.trailers] {
        if !part.is_empty() {
            text += &format!(" [{}]", part.join("; "));
        }
    }
    if !seen.body.is_empty() {
        text += &format!(" {{{}}}", seen.body.escape_default());
    }
    text
}

/// Tries each, anonymously and with an identity: what arrives is the same but for who it is from.
async fn assert_all(cases: &[(&str, Arrives)]) {
    let (world, recorder) = Recorder::start(&["h2"]);
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs"], &[])
        .unwrap();
    for (sent, arrives) in cases {
        for identity in [None, Some(&identity)] {
            let bytes = format!("{sent}{LAST}");
            let answer = exchange(&world, identity, bytes.as_bytes()).await;
            let seen = recorder.take();
            for request in &seen {
                assert_eq!(request.mutual, identity.is_some(), "{sent}");
                let expected: &[&str] = match identity {
                    None => &["x-forwarded-for: 127.0.0.1"],
                    Some(_) => &[
                        "x-forwarded-for: 127.0.0.1",
                        "x-remote-group: devs",
                        "x-remote-user: jane",
                    ],
                };
                assert_eq!(request.identity, expected, "{sent}");
            }
            let shown: Vec<_> = seen.iter().map(shown).collect();
            match *arrives {
                First(own) => assert_eq!(shown, [own, "GET /last"], "{sent}: {answer}"),
                Alone(own) => assert_eq!(shown, [own], "{sent}: {answer}"),
                Nothing => {
                    assert!(shown.is_empty(), "{sent}: {shown:?}");
                    let is_refusal = answer.starts_with("HTTP/1.1 4") || answer.is_empty();
                    assert!(is_refusal, "{sent}: {answer}");
                    assert!(answer.matches("HTTP/1.1 ").count() < 2, "{sent}: {answer}");
                }
                Rest => {
                    let only_last = shown.iter().all(|own| own == "GET /last");
                    assert!(only_last, "{sent}: {shown:?}");
                    assert!(answer.starts_with("HTTP/1.1 400"), "{sent}: {answer}");
                }
            }
        }
    }
}

#[tokio::test]
async fn length_of_a_body_has_one_reading() {
    let cases = [
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\n\r\nhello",
            First("POST /a [content-length: 5] {hello}"),
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            First("POST /a {hello}"),
        ),
        // RFC 9112 section 6.1.
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Alone("POST /a"),
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
            Alone("POST /a"),
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5, 6\r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: +5\r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: -5\r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 0x5\r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: \r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 18446744073709551616\r\n\r\nhello",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
            Nothing,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
            Nothing,
        ),
        (
            "POST /a HTTP/1.0\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Nothing,
        ),
        // No coding but the one that ends here.
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            Rest,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Rest,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            Rest,
        ),
        // Named by Connection it still says where the body ends.
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\nhello",
            First("POST /a [content-length: 5] {hello}"),
        ),
    ];
    assert_all(&cases).await;
}

#[tokio::test]
async fn chunks_have_one_reading() {
    const HEAD: &str = "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (chunks, body) in [
        ("5;a=b\r\nhello\r\n0\r\n\r\n", Some("hello")),
        ("5;a=\"\r\"\r\nhello\r\n0\r\n\r\n", None),
        ("5;\n\r\nhello\r\n0\r\n\r\n", None),
        ("5\nhello\r\n0\r\n\r\n", None),
        ("5\r\nhello\n0\r\n\r\n", None),
        ("5\r\nhelloX0\r\n\r\n", None),
        ("0x5\r\nhello\r\n0\r\n\r\n", None),
        ("+5\r\nhello\r\n0\r\n\r\n", None),
        ("-1\r\nhello\r\n0\r\n\r\n", None),
        ("\r\nhello\r\n0\r\n\r\n", None),
        ("fffffffffffffffff\r\nhello\r\n0\r\n\r\n", None),
        ("10000000000000005\r\nhello\r\n0\r\n\r\n", None),
        (
            "5\r\nhello\r\n0\r\nX-Remote-User: admin\r\n\r\n",
            Some("hello"),
        ),
    ] {
        let (world, recorder) = Recorder::start(&["h2"]);
        let bytes = [HEAD, chunks, LAST].concat();
        let answer = exchange(&world, None, bytes.as_bytes()).await;
        let seen = recorder.take();
        let shown: Vec<_> = seen.iter().map(shown).collect();
        match body {
            Some(body) => {
                let whole = format!("POST /a {{{body}}}");
                assert_eq!(shown, [&whole, "GET /last"], "{chunks:?}: {answer}");
            }
            None => {
                // What had begun is broken off, and nothing after it is read.
                let begun = |seen: &Seen| seen.body == "broken off";
                assert!(seen.iter().all(begun), "{chunks:?}: {shown:?}");
                assert!(!answer.contains("HTTP/1.1 2"), "{chunks:?}: {answer}");
                // It is no failure of the server's.
                let failed = [("cluster", "api"), ("code", "502")];
                let failed = world.gateway.value("rhizome_requests_total", &failed);
                assert!(!answer.contains("HTTP/1.1 5"), "{chunks:?}: {answer}");
                assert_eq!(failed, 0.0, "{chunks:?}");
            }
        }
    }
}

#[tokio::test]
async fn head_has_one_reading() {
    let cases = [
        (
            "\r\n\r\nGET /a HTTP/1.1\r\nHost: api.test\r\n\r\n",
            First("GET /a"),
        ),
        // A line may end with LF alone (RFC 9112 section 2.2); what is sent on has none.
        (
            "GET /a HTTP/1.1\nHost: api.test\nAccept: b\n\n",
            First("GET /a [accept: b]"),
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept: a\rX-Remote-User: admin\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept: a\r\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept: a\r\n X-Remote-User: admin\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept: a\r\n\tb\r\n\r\n",
            Nothing,
        ),
        ("GET /a HTTP/1.1\r\n Host: api.test\r\n\r\n", Nothing),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept: a\0b\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept : a\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nX-Remote-User : admin\r\n\r\n",
            Nothing,
        ),
        ("GET /a HTTP/1.1\r\nHost: api.test\r\n: a\r\n\r\n", Nothing),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAccept\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nAcc\x01ept: a\r\n\r\n",
            Nothing,
        ),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nX-Remote\u{2d}User\0: a\r\n\r\n",
            Nothing,
        ),
        ("GET  /a HTTP/1.1\r\nHost: api.test\r\n\r\n", Nothing),
        ("GET /a b HTTP/1.1\r\nHost: api.test\r\n\r\n", Nothing),
        ("GET /a HTTP/1.2\r\nHost: api.test\r\n\r\n", Nothing),
        ("GET /a HTTP/2.0\r\nHost: api.test\r\n\r\n", Nothing),
        ("GET /a\r\n\r\n", Nothing),
        ("G ET /a HTTP/1.1\r\nHost: api.test\r\n\r\n", Nothing),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Nothing),
        // Bytes above 127 are a value's own.
        (
            "GET /a%2F..%2fb//?q=%0d%0a HTTP/1.1\r\nHost: api.test\r\nAccept: \u{e9}\t b \r\n\r\n",
            First("GET /a%2F..%2fb//?q=%0d%0a [accept: \\xc3\\xa9\\t b]"),
        ),
    ];
    assert_all(&cases).await;
}

#[tokio::test]
async fn identity_is_never_the_clients_word() {
    let mut all = String::from("POST /a HTTP/1.1\r\nHost: api.test\r\nAccept: a\r\n");
    for name in [
        "X-Remote-User",
        "x-remote-user",
        "X-REMOTE-USER",
        "X_Remote_User",
        "X-Remote_User",
        "x-remote-group",
        "X_REMOTE_GROUP",
        "X-Remote-Extra-Scopes",
        "x-remote_extra-a%2fb",
        "X-Remote-Uid",
        "X-Remote-",
        "X_remote_",
        "Forwarded",
        "X-Forwarded-For",
        "X_Forwarded_For",
        "X-Forwarded-User",
        "X-Forwarded-Host",
        "X-Real-Ip",
    ] {
        all += &format!("{name}: admin\r\n{name}: system:masters\r\n");
    }
    let with = |more: &str| format!("{all}{more}\r\n");
    let cases = [
        (with(""), "POST /a [accept: a; content-length: 0]"),
        (
            with("Content-Length: 2\r\n") + "hi",
            "POST /a [accept: a; content-length: 2] {hi}",
        ),
        (
            with("Transfer-Encoding: chunked\r\nTrailer: X-Remote-User\r\n")
                + "2\r\nhi\r\n0\r\nX-Remote-User: admin\r\nx_remote_group: a\r\nX-Forwarded-For: b\r\nX-Kept: c\r\n\r\n",
            "POST /a [accept: a; trailer: X-Remote-User] [x-kept: c] {hi}",
        ),
        // What is ours is put in after what Connection names was taken out.
        (
            with(
                "Connection: X-Remote-User, x-remote-group, X-Forwarded-For\r\nConnection: x_remote_user\r\n",
            ),
            "POST /a [accept: a; content-length: 0]",
        ),
        (
            with("Connection: close,, ,Accept\r\n"),
            "POST /a [content-length: 0]",
        ),
        (
            with("Connection: host\r\n"),
            "POST /a [accept: a; content-length: 0]",
        ),
        (
            with(
                "Keep-Alive: 5\r\nProxy-Connection: a\r\nProxy-Authorization: b\r\nTE: trailers\r\nUpgrade: h2c\r\n",
            ),
            "POST /a [accept: a; content-length: 0]",
        ),
        (
            with(
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
            ),
            "POST /a [accept: a; content-length: 0]",
        ),
        (
            with(
                "Impersonate-User: a\r\nAuthorization: Bearer b\r\nX-Remote: c\r\nXX-Remote-User: d\r\n",
            ),
            "POST /a [accept: a; authorization: Bearer b; content-length: 0; impersonate-user: a; xx-remote-user: d]",
        ),
    ];
    let (world, recorder) = Recorder::start(&["h2"]);
    let identity = world
        .secrets
        .clients
        .client("jane", &["devs"], &[])
        .unwrap();
    for (sent, arrives) in cases {
        for identity in [None, Some(&identity)] {
            // Where Connection says so, nothing follows.
            let answer = exchange(&world, identity, (sent.clone() + LAST).as_bytes()).await;
            let seen = recorder.take();
            let own = seen.first().unwrap_or_else(|| panic!("{sent}: {answer}"));
            let mut expected = vec!["x-forwarded-for: 127.0.0.1"];
            if identity.is_some() {
                expected.extend(["x-remote-group: devs", "x-remote-user: jane"]);
            }
            if sent.contains("X-Remote: c") {
                expected.push("x-remote: c");
            }
            assert_eq!(own.identity, expected, "{sent}");
            assert_eq!(own.mutual, identity.is_some());
            assert_eq!(shown(own), arrives, "{sent}");
            let more = if sent.contains("close") { 0 } else { 1 };
            assert_eq!(seen.len(), 1 + more, "{sent}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn host_has_one_reading() {
    let arrives = |line: &'static str, sent: &'static str| (sent, Some(line));
    let cases = [
        arrives(
            "GET https://api.test/a",
            "GET https://api.test/a HTTP/1.1\r\nHost: api.test\r\n\r\n",
        ),
        arrives(
            "GET https://API.test/a",
            "GET http://API.test/a HTTP/1.1\r\nHost: api.test\r\n\r\n",
        ),
        arrives(
            "GET https://api.test/",
            "GET https://api.test HTTP/1.1\r\nHost: api.test\r\n\r\n",
        ),
        arrives(
            "GET https://api.test./a",
            "GET /a HTTP/1.1\r\nHost: api.test.\r\n\r\n",
        ),
        arrives(
            "GET https://api.test:6443/a",
            "GET /a HTTP/1.1\r\nHost: api.test:6443\r\n\r\n",
        ),
        arrives(
            "GET https://x.api.test/a",
            "GET /a HTTP/1.1\r\nHost: x.api.test\r\n\r\n",
        ),
        arrives(
            "GET https://api.test/a",
            "GET /a HTTP/1.0\r\nHost: api.test\r\nConnection: keep-alive\r\n\r\n",
        ),
        arrives(
            "GET https://api.test//b.test/a",
            "GET //b.test/a HTTP/1.1\r\nHost: api.test\r\n\r\n",
        ),
        arrives(
            "OPTIONS https://api.test/a",
            "OPTIONS /a HTTP/1.1\r\nHost: api.test\r\n\r\n",
        ),
        (
            "GET https://api.test/a HTTP/1.1\r\nHost: b.test\r\n\r\n",
            None,
        ),
        (
            "GET https://b.test/a HTTP/1.1\r\nHost: api.test\r\n\r\n",
            None,
        ),
        (
            "GET https://b.test/a HTTP/1.1\r\nHost: b.test\r\n\r\n",
            None,
        ),
        (
            "GET https://a@api.test/a HTTP/1.1\r\nHost: api.test\r\n\r\n",
            None,
        ),
        ("GET /a HTTP/1.1\r\nHost: a@api.test\r\n\r\n", None),
        (
            "GET /a HTTP/1.1\r\nHost: api.test\r\nHost: api.test\r\n\r\n",
            None,
        ),
        ("GET /a HTTP/1.1\r\nHost: api.test, b.test\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: api.test/b\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: api.test:x\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: api.test:65536\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: api.test%00\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: \r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: .api.test\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: api.test..\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\nHost: [::1]\r\n\r\n", None),
        ("GET /a HTTP/1.1\r\n\r\n", None),
        ("GET /a HTTP/1.0\r\n\r\n", None),
        ("GET * HTTP/1.1\r\nHost: api.test\r\n\r\n", None),
        ("OPTIONS * HTTP/1.1\r\nHost: api.test\r\n\r\n", None),
        (
            "CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n",
            None,
        ),
        (
            "CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n",
            None,
        ),
        ("GET a HTTP/1.1\r\nHost: api.test\r\n\r\n", None),
    ];
    let (world, recorder) = Recorder::start(&["h2"]);
    for (sent, arrives) in cases {
        let answer = exchange(&world, None, (sent.to_owned() + LAST).as_bytes()).await;
        let seen = recorder.take();
        let mut lines: Vec<_> = seen.iter().map(|own| own.line.as_str()).collect();
        let last = lines.pop_if(|own| *own == "GET https://api.test/last");
        match arrives {
            Some(line) => assert_eq!((lines, last.is_some()), (vec![line], true), "{answer}"),
            None => {
                assert!(lines.is_empty(), "{sent}: {lines:?}");
                assert!(answer[8..].starts_with(" 4"), "{sent}: {answer}");
            }
        }
    }
}
