//! CONNECT heads: RFC 9112 §2.2, §3 to §5, and RFC 9110 §9.3.6.

use preamble::{
    ConnectEncodeError,
    HeadError::{self, Malformed, NotHttp, TooLong},
    HttpVersion, Progress, RequestHead, ResponseHead, encode_connect,
    http_connect::{MAX_FIELDS, worth_parsing},
    looks_like_connect,
};
use proptest::{collection::vec, prelude::*};

use crate::bodies::{self, LIMIT};

/// The example of RFC 9110 §9.3.6.
#[test]
fn reads_the_example_of_rfc_9110() {
    let input = b"CONNECT server.example.com:80 HTTP/1.1\r\nHost: server.example.com\r\n\r\n";
    let (head, consumed) = done(input);
    assert!(head.is_connect());
    assert_eq!(
        (head.method(), head.target()),
        ("CONNECT", "server.example.com:80")
    );
    assert_eq!(
        (head.version(), head.host()),
        (HttpVersion::Http11, Some("server.example.com"))
    );
    assert_eq!(consumed, input.len());
}

/// OpenVPN's HTTP proxy client, as Gardener uses it.
#[test]
fn http_1_0_needs_no_host() {
    let head = b"CONNECT api.example.com:8443 HTTP/1.0\r\nReversed-VPN: outbound|1194||vpn\r\n\r\n";
    let input = [&head[..], b"\0\x0e\x38 tunnel"].concat();
    let (parsed, consumed) = done(&input);
    assert_eq!(
        (parsed.version(), parsed.host(), consumed),
        (HttpVersion::Http10, None, head.len())
    );
    assert!(
        parsed
            .header_values("reversed-vpn")
            .eq(["outbound|1194||vpn"])
    );
}

#[test]
fn fields_are_found_in_any_case_and_trimmed() {
    let input = b"GET /x?y HTTP/1.1\r\nHOST:a.example:443\r\nX-D:  one \t\r\nx-d: two\r\nX-D:\r\n\
        X-Other: \xc3\xbc\r\n\r\n";
    let (head, _) = done(input);
    assert!(!head.is_connect());
    assert_eq!(head.host(), Some("a.example:443"));
    assert!(head.header_values("x-D").eq(["one", "two", ""]));
    assert_eq!(head.header_values("X").count(), 0);
    assert!(
        head.headers()
            .last()
            .is_some_and(|field| field == ("X-Other", "ü"))
    );
}

#[test]
fn garbage_is_refused_at_its_first_bytes() {
    for start in [
        &b"\x16"[..],
        b"\0",
        b" ",
        b"\r",
        b"\n",
        b"GET\r",
        b"G\xffT",
        b"SSH-2.0-x\r",
        b"(",
        b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        assert_eq!(parse(start), Err(NotHttp), "{start:?}");
    }
    assert!(matches!(
        parse(b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        Ok(Progress::Need { .. })
    ));
    for start in [&b"\x16"[..], b"SSH-", b"HTTP/2", b"http/1.1"] {
        assert_eq!(ResponseHead::parse(start, LIMIT), Err(NotHttp), "{start:?}");
    }
}

/// RFC 9112 §2.2: where a recipient may be lenient about line ends, this one is not.
#[test]
fn lines_need_crlf_and_no_control_characters() {
    let cases: [(&str, &[u8]); 8] = [
        ("LF without CR", b"GET / HTTP/1.1\nHost: a\n\n"),
        ("LF without CR", b"GET / HTTP/1.1\r\nHost: a\n"),
        ("CR without LF", b"GET / HTTP/1.1\r\nHost: a\r\r\n"),
        ("CR without LF", b"GET / HTTP/1.1\rX"),
        ("control character", b"GET / HTTP/1.1\r\nHost: a\0"),
        ("control character", b"GET / HTTP/1.1\r\nX: \x1b"),
        ("control character", b"GET /\x7f"),
        ("not UTF-8", b"GET / HTTP/1.1\r\nX: \xff\r\n"),
    ];
    for (what, input) in cases {
        assert_eq!(parse(input), Err(Malformed(what)), "{input:?}");
    }
}

#[test]
fn request_lines_are_read_strictly() {
    let shape = "request line is not method, target, version";
    let version = "HTTP version is neither 1.0 nor 1.1";
    for (what, line) in [
        (shape, "GET /"),
        (shape, "GET  / HTTP/1.1"),
        (shape, "GET / HTTP/1.1 "),
        ("request target", "GET  HTTP/1.1"),
        ("request target", "GET /\u{fc} HTTP/1.1"),
        ("request target", "GET /\t HTTP/1.1"),
        (version, "PRI * HTTP/2.0"),
        (version, "GET / HTTP/1.2"),
        (version, "GET / http/1.1"),
        (version, "GET / HTTP/1.10"),
    ] {
        let input = format!("{line}\r\nHost: a\r\n\r\n");
        assert_eq!(parse(input.as_bytes()), Err(Malformed(what)), "{line:?}");
    }
}

#[test]
fn header_lines_are_read_strictly() {
    for (what, field) in [
        ("folded header line", " x"),
        ("folded header line", "\tx: y"),
        ("header line without colon", "x"),
        ("header name", "x : y"),
        ("header name", ": y"),
        ("header name", "x\t: y"),
        ("header name", "x(y): z"),
        ("header name", "\u{fc}: z"),
    ] {
        for place in [format!("{field}\r\nHost: a"), format!("Host: a\r\n{field}")] {
            let input = format!("GET / HTTP/1.1\r\n{place}\r\n\r\n");
            assert_eq!(parse(input.as_bytes()), Err(Malformed(what)), "{input:?}");
        }
    }
}

/// RFC 9112 §3.2: exactly one in HTTP/1.1, and not two in any version.
#[test]
fn host_is_required_once() {
    let host = |version, fields: &str| {
        let input = format!("GET / HTTP/{version}\r\n{fields}\r\n");
        let answer = RequestHead::parse(input.as_bytes(), LIMIT);
        answer.map(|progress| match progress {
            Progress::Done { value, .. } => value.host().map(str::to_owned),
            Progress::Need { .. } => panic!("{input:?} is complete"),
        })
    };
    assert_eq!(host("1.1", ""), Err(Malformed("no Host field")));
    assert_eq!(host("1.0", ""), Ok(None));
    assert_eq!(host("1.1", "Host:\r\n"), Ok(None));
    assert_eq!(
        host("1.1", "Host: [::1]:443\r\n"),
        Ok(Some("[::1]:443".to_owned()))
    );
    for version in ["1.0", "1.1"] {
        let twice = host(version, "Host: a\r\nhost: a\r\n");
        assert_eq!(twice, Err(Malformed("several Host fields")));
    }
    for bad in ["a b", "a/b", "a@b", "a\\b", "<a>", "a?b", "a#b", "\u{fc}"] {
        assert_eq!(
            host("1.1", &format!("Host: {bad}\r\n")),
            Err(Malformed("Host field"))
        );
    }
}

#[test]
fn host_is_optional_when_allowed() {
    let parse = |input: &str| match RequestHead::parse_host_optional(input.as_bytes(), LIMIT) {
        Ok(Progress::Done { value, .. }) => Ok(value.target().to_owned()),
        Ok(Progress::Need { .. }) => panic!("{input:?} is complete"),
        Err(error) => Err(error),
    };
    assert_eq!(parse("CONNECT a:1 HTTP/1.1\r\n\r\n"), Ok("a:1".to_owned()));
    assert_eq!(
        parse("GET / HTTP/1.1\r\n\r\n"),
        Err(Malformed("no Host field"))
    );
    assert_eq!(
        parse("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        Err(Malformed("several Host fields"))
    );
}

/// Behind such a head the bytes could be read as body or as tunnel.
#[test]
fn connect_that_announces_a_body_is_malformed() {
    let with = |method: &str, field: &str| {
        let input = format!("{method} a:1 HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        parse(input.as_bytes()).map(|_| ())
    };
    for field in [
        "Content-Length: 1",
        "content-length: 00",
        "Transfer-Encoding: chunked",
    ] {
        assert_eq!(
            with("CONNECT", field),
            Err(Malformed("CONNECT with a body")),
            "{field}"
        );
        assert!(with("POST", field).is_ok());
    }
    assert!(with("CONNECT", "Content-Length: 0").is_ok());
}

#[test]
fn heads_are_bounded_in_bytes_and_fields() {
    let head = |fields: usize| {
        let fields = "X: y\r\n".repeat(fields - 1);
        format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
    };
    let most = head(MAX_FIELDS);
    assert_eq!(done(most.as_bytes()).0.headers().count(), MAX_FIELDS);
    let one_more = head(MAX_FIELDS + 1);
    assert_eq!(parse(one_more.as_bytes()), Err(TooLong));
    assert_eq!(
        parse(&one_more.as_bytes()[..one_more.len() - 2]),
        Err(TooLong)
    );

    assert!(RequestHead::parse(most.as_bytes(), most.len()).is_ok());
    assert_eq!(
        RequestHead::parse(most.as_bytes(), most.len() - 1),
        Err(TooLong)
    );
    assert_eq!(RequestHead::parse(&[b'x'; 9], 9), Err(TooLong));
    assert_eq!(RequestHead::parse(b"", 0), Err(TooLong));
}

#[test]
fn need_counts_what_the_end_still_lacks() {
    let input = b"GET /long/enough HTTP/1.0\r\n\r\n";
    let at_least = |len: usize| match parse(&input[..len]) {
        Ok(Progress::Need { at_least }) => at_least,
        other => panic!("{len}: {other:?}"),
    };
    assert_eq!(at_least(0), 16);
    for missing in 1..=4 {
        assert_eq!(at_least(input.len() - missing), input.len());
    }
    assert_eq!(at_least(input.len() - 5), input.len() - 1);
}

#[test]
fn connect_is_recognized_by_its_first_bytes() {
    for len in 0..8 {
        assert_eq!(looks_like_connect(&b"CONNECT "[..len]), None);
    }
    assert_eq!(looks_like_connect(b"CONNECT a"), Some(true));
    for other in ["GET ", "connect ", "CONNECTX", "CONNECT\t"] {
        assert_eq!(looks_like_connect(other.as_bytes()), Some(false));
    }
}

#[test]
fn incomplete_lines_are_not_parsed() {
    let head = [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ".as_slice(),
        &[b'x'; 1_000],
    ]
    .concat();
    assert!(worth_parsing(&head, 0, LIMIT));
    assert!(!worth_parsing(&head, 64, LIMIT));
    assert!(worth_parsing(&head, 64, head.len()));
    assert!(worth_parsing(
        &[&head[..], b"\r\n"].concat(),
        head.len(),
        LIMIT
    ));
}

#[test]
fn writes_connect_with_host_and_fields() {
    let mut out = b"kept ".to_vec();
    let fields = [
        ("X-Gardener-Destination", "outbound|443||a.b"),
        ("X-Empty", ""),
    ];
    encode_connect("api.example.com.:8443", &fields, &mut out).unwrap();
    let expected = "kept CONNECT api.example.com.:8443 HTTP/1.1\r\nHost: api.example.com.:8443\r\n\
        X-Gardener-Destination: outbound|443||a.b\r\nX-Empty: \r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn refuses_to_write_what_would_not_read_back() {
    use ConnectEncodeError::{FieldName, FieldValue, Target, TooManyFields};
    let refused = |target: &str, fields: &[(&str, &str)]| {
        let mut out = Vec::new();
        let answer = encode_connect(target, fields, &mut out);
        assert!(out.is_empty());
        answer
    };
    for target in ["", "a b:1", "a:1\r\nX: y", "a/b", "\u{fc}:1", "a\0:1"] {
        assert_eq!(refused(target, &[]), Err(Target), "{target:?}");
    }
    for name in [
        "",
        "a b",
        "a:",
        "a\r\nb",
        "Host",
        "content-length",
        "TRANSFER-ENCODING",
    ] {
        assert_eq!(refused("a:1", &[(name, "x")]), Err(FieldName), "{name:?}");
    }
    for value in ["a\r\nb: c", "a\n", "\0", " a", "a\t", "\u{7f}"] {
        assert_eq!(
            refused("a:1", &[("X", value)]),
            Err(FieldValue),
            "{value:?}"
        );
    }
    assert_eq!(
        refused("a:1", &[("X", "y"); MAX_FIELDS]),
        Err(TooManyFields)
    );
}

#[test]
fn reads_answers_to_connect() {
    let head = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n";
    let input = [&head[..], b"\x16\x03\x01"].concat();
    match ResponseHead::parse(&input, LIMIT) {
        Ok(Progress::Done { value, consumed }) => {
            assert_eq!(
                (value.status(), value.is_success(), consumed),
                (200, true, head.len())
            );
        }
        other => panic!("{other:?}"),
    }
    for (line, status) in [
        ("HTTP/1.0 503", 503),
        ("HTTP/1.1 404 ", 404),
        ("HTTP/1.1 100 a b", 100),
    ] {
        let input = format!("{line}\r\n\r\n");
        match ResponseHead::parse(input.as_bytes(), LIMIT) {
            Ok(Progress::Done { value, .. }) => assert_eq!(value.status(), status),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn interim_answers_are_skipped_within_the_limit() {
    let interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    let heads = [&interim[..], b"HTTP/1.1 200 OK\r\n\r\n"].concat();
    for end in 0..heads.len() {
        let progress = ResponseHead::parse_final(&heads[..end], LIMIT);
        assert!(matches!(progress, Ok(Progress::Need { at_least }) if at_least > end));
    }
    match ResponseHead::parse_final(&[&heads[..], b"xyz"].concat(), heads.len()) {
        Ok(Progress::Done { value, consumed }) => {
            assert_eq!((value.status(), consumed), (200, heads.len()));
        }
        other => panic!("{other:?}"),
    }
    let cut = ResponseHead::parse_final(&heads, heads.len() - 1);
    assert_eq!(cut, Err(TooLong));
    // Other bytes follow this one, and no head.
    match ResponseHead::parse_final(b"HTTP/1.1 101 Switching\r\n\r\n\0", LIMIT) {
        Ok(Progress::Done { value, .. }) => assert_eq!(value.status(), 101),
        other => panic!("{other:?}"),
    }
}

#[test]
fn status_lines_are_read_strictly() {
    let version = "HTTP version is neither 1.0 nor 1.1";
    for (what, line) in [
        ("status line", "HTTP/1.1"),
        ("status code", "HTTP/1.1  200 OK"),
        ("status code", "HTTP/1.1 20 OK"),
        ("status code", "HTTP/1.1 2000 OK"),
        ("status code", "HTTP/1.1 +20 OK"),
        ("status code", "HTTP/1.1 099 OK"),
        ("status code", "HTTP/1.1 600 OK"),
        (version, "HTTP/1.2 200 OK"),
    ] {
        let input = format!("{line}\r\n\r\n");
        assert_eq!(
            ResponseHead::parse(input.as_bytes(), LIMIT),
            Err(Malformed(what)),
            "{line}"
        );
    }
    let folded = b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n";
    assert_eq!(
        ResponseHead::parse(folded, LIMIT),
        Err(Malformed("folded header line"))
    );
}

proptest! {
    #[test]
    fn encoded_headers_parse_back(
        target in "[a-z0-9.-]{1,30}:[0-9]{1,5}",
        fields in vec(("X-[!#$%&'*+.^_`|~0-9A-Za-z-]{0,12}", "([!-~é]([ -~\t]{0,20}[!-~é])?)?"), 0..6),
        behind in vec(any::<u8>(), 0..20),
    ) {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (&**n, &**v)).collect();
        let mut written = Vec::new();
        encode_connect(&target, &fields, &mut written).unwrap();
        let (head, consumed) = done(&written);
        prop_assert_eq!((head.target(), head.host()), (&*target, Some(&*target)));
        prop_assert!(head.headers().skip(1).eq(fields.iter().copied()));
        prop_assert_eq!(consumed, written.len());
        written.extend(&behind);
        bodies::connect_head(&written);
    }

    #[test]
    fn mutated_heads_keep_the_laws(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut request = b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nX-D: outbound|443||a\r\n\r\n".to_vec();
        let mut response = b"HTTP/1.1 200 OK\r\nServer: a\r\nX: \t y\r\n\r\n".to_vec();
        let index = at.index(request.len());
        request[index] = byte;
        bodies::connect_head(&request);
        let index = at.index(response.len());
        response[index] = byte;
        bodies::response_head(&response);
    }

    #[test]
    fn arbitrary_bytes_keep_the_laws(
        mut input in vec(any::<u8>(), 0..200),
        start in prop::sample::select(vec![
            &b""[..], b"CONNECT a:1 HTTP/1.1\r\n", b"HTTP/1.0 200 OK\r\n", b"GET / HTTP/1.0\r\nA:",
        ]),
    ) {
        input.splice(..0, start.iter().copied());
        bodies::connect_head(&input);
        bodies::response_head(&input);
    }

    #[test]
    fn arbitrary_lines_keep_the_laws(
        lines in vec("([A-Za-z-]{1,8}:? ?)?[ -~\t]{0,12}", 0..8),
        end in prop::sample::select(vec!["\r\n", "\n", "\r"]),
    ) {
        let fields = lines.join(end);
        for start in ["CONNECT a:1 HTTP/1.0", "HTTP/1.1 200 "] {
            let input = format!("{start}{end}{fields}{end}{end}");
            bodies::connect_head(input.as_bytes());
            bodies::response_head(input.as_bytes());
        }
    }
}

fn parse(input: &[u8]) -> Result<Progress<RequestHead<'_>>, HeadError> {
    RequestHead::parse(input, LIMIT)
}

fn done(input: &[u8]) -> (RequestHead<'_>, usize) {
    match parse(input) {
        Ok(Progress::Done { value, consumed }) => (value, consumed),
        other => panic!("not complete: {other:?}"),
    }
}
