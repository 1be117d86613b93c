//! What every parser of hostile bytes must hold to, as plain functions that panic when one does
//! not.
//!
//! ```text
//! fuzz_targets/*.rs ─────(exploring)────────┐
//! crates/preamble/tests/replay.rs ──────────┼──▶ client_hello, proxy_header, connect_head, response_head
//! crates/preamble/tests/it ──(proptest)─────┘
//! ```
//!
//! An input is the bytes of a stream as a peer would send them; nothing is encoded into them.

use std::fmt::Debug;

use preamble::{
    Addresses, ClientHello, Progress, ProxyEncodeError, ProxyHeader, RequestHead, ResponseHead,
    Signature, Transport, client_hello::MAX_RECORDS, detect, encode_connect, encode_v1, encode_v2,
    http_connect::worth_parsing, looks_like_connect,
};

/// The default limit of a preamble, in bytes.
pub(crate) const LIMIT: usize = 65_536;

/// ClientHello: the laws of all parsers, and the same answer however records cut the message.
pub(crate) fn client_hello(input: &[u8]) {
    let hello = laws(input, |input, limit| {
        ClientHello::parse(input, limit).map(|progress| progress.map(|hello| names(&hello)))
    });
    let Some((hello, consumed)) = hello else {
        return;
    };
    assert!(hello.0.iter().all(|name| (1..=255).contains(&name.len())));

    let message = join_records(&input[..consumed]);
    for size in [
        message.len(),
        message.len() / 2 + 1,
        message.len() / (MAX_RECORDS - 1) + 1,
    ] {
        let cut = into_records(&message, size.min(1 << 14));
        match ClientHello::parse(&cut, usize::MAX) {
            Ok(Progress::Done { value, consumed }) => {
                assert_eq!((names(&value), consumed), (hello.clone(), cut.len()));
            }
            other => panic!("cut into records of {size}: {other:?}"),
        }
    }
}

/// PROXY header: the laws of all parsers, and the same addresses when written and read again.
pub(crate) fn proxy_header(input: &[u8]) {
    let header = laws(input, |input, limit| {
        ProxyHeader::parse(input, limit).map(|progress| progress.map(|header| Header::new(&header)))
    });
    let signature = detect(input);
    assert!(header.is_none() || matches!(signature, Signature::V1 | Signature::V2));
    let Some((header, _)) = header else { return };
    let Addresses::Ip {
        source,
        destination,
        ..
    } = header.addresses
    else {
        return;
    };

    let expected = one_family(source, destination);
    let mut v1 = Vec::new();
    encode_v1(source, destination, &mut v1);
    let back = done(ProxyHeader::parse(&v1, 107), v1.len());
    assert_eq!(back.addresses, expected);

    let tlvs: Vec<_> = header.tlvs.iter().filter(|(kind, _)| *kind != 3).collect();
    let tlvs: Vec<(u8, &[u8])> = tlvs
        .iter()
        .map(|(kind, value)| (*kind, &value[..]))
        .collect();
    for checksum in [false, true] {
        let mut v2 = Vec::new();
        match encode_v2(source, destination, &tlvs, checksum, &mut v2) {
            Err(error) => {
                assert_eq!((error, v2.is_empty()), (ProxyEncodeError::TooLong, true));
                assert!(input.len() > 65_000);
            }
            Ok(()) => {
                let back = done(ProxyHeader::parse(&v2, usize::MAX), v2.len());
                assert_eq!(back.addresses, expected);
                assert!(
                    back.tlvs()
                        .filter(|(kind, _)| *kind != 3)
                        .eq(tlvs.iter().copied())
                );
                assert_eq!(back.tlvs().any(|(kind, _)| kind == 3), checksum);
            }
        }
    }
}

/// Head of a request: the laws of all parsers, and the same CONNECT when written and read again.
pub(crate) fn connect_head(input: &[u8]) {
    let head = laws(input, |input, limit| {
        RequestHead::parse(input, limit).map(|progress| progress.map(|head| Head::new(&head)))
    });
    waiting_for_a_line_end_is_enough(input, |input| {
        matches!(RequestHead::parse(input, LIMIT), Ok(Progress::Done { .. }))
    });
    let Some((head, _)) = head else { return };
    assert_eq!(looks_like_connect(input), Some(head.method == "CONNECT"));

    let framing = ["host", "content-length", "transfer-encoding"];
    let fields: Vec<(&str, &str)> = head
        .fields
        .iter()
        .filter(|(name, _)| !framing.contains(&&*name.to_ascii_lowercase()))
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let mut written = Vec::new();
    if encode_connect(&head.target, &fields, &mut written).is_err() {
        assert!(written.is_empty());
        return;
    }
    let back = done(RequestHead::parse(&written, usize::MAX), written.len());
    assert!(back.is_connect());
    assert_eq!(
        (back.target(), back.host()),
        (&*head.target, Some(&*head.target))
    );
    assert!(back.headers().skip(1).eq(fields));
}

/// Head of a response: the laws of all parsers.
pub(crate) fn response_head(input: &[u8]) {
    let head = laws(input, ResponseHead::parse);
    laws(input, ResponseHead::parse_final);
    waiting_for_a_line_end_is_enough(input, |input| {
        matches!(ResponseHead::parse(input, LIMIT), Ok(Progress::Done { .. }))
    });
    if let Some((head, _)) = head {
        assert!((100..600).contains(&head.status()));
        assert_eq!(head.is_success(), head.status() / 100 == 2);
    }
}

/// Holds a parser to the three laws of the crate; returns its value at the default limit.
fn laws<T: Clone + Debug + PartialEq, E: Clone + Debug + PartialEq>(
    input: &[u8],
    parse: impl Fn(&[u8], usize) -> Result<Progress<T>, E>,
) -> Option<(T, usize)> {
    for limit in [
        0,
        1,
        input.len() / 2,
        input.len().saturating_sub(1),
        input.len(),
        LIMIT,
    ] {
        let whole = parse(input, limit);
        check_bounds(&whole, input, limit);
        for cut in cuts(input.len()) {
            let part = parse(&input[..cut], limit);
            check_bounds(&part, &input[..cut], limit);
            match (&part, &whole) {
                (Ok(Progress::Need { at_least }), Ok(Progress::Done { consumed, .. })) => {
                    assert!(
                        cut < *consumed && at_least <= consumed,
                        "{cut}: {part:?} {whole:?}"
                    );
                }
                (Ok(Progress::Need { .. }), _) => {}
                _ => assert_eq!(
                    part,
                    whole,
                    "{cut} bytes of {} at limit {limit}",
                    input.len()
                ),
            }
        }
    }
    match parse(input, LIMIT) {
        Ok(Progress::Done { value, consumed }) => {
            let exact = parse(&input[..consumed], consumed);
            assert_eq!(
                exact,
                Ok(Progress::Done {
                    value: value.clone(),
                    consumed
                })
            );
            let short = parse(&input[..consumed - 1], consumed);
            assert!(matches!(short, Ok(Progress::Need { .. })), "{short:?}");
            Some((value, consumed))
        }
        _ => None,
    }
}

fn check_bounds<T: Debug, E: Debug>(answer: &Result<Progress<T>, E>, input: &[u8], limit: usize) {
    match answer {
        Ok(Progress::Done { consumed, .. }) => {
            assert!(
                *consumed > 0 && *consumed <= input.len() && *consumed <= limit,
                "{answer:?}"
            );
        }
        Ok(Progress::Need { at_least }) => {
            assert!(
                *at_least > input.len() && *at_least <= limit,
                "{answer:?} limit {limit}"
            );
        }
        Err(_) => {}
    }
}

/// Every length below 300 bytes and of the last 20; about a hundred in between.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    let tail = len.saturating_sub(20);
    (0..len).filter(move |&cut| cut < 300 || cut >= tail || cut % (len / 100 + 1) == 0)
}

/// What [`worth_parsing`] promises: no segment it skips completes a head.
fn waiting_for_a_line_end_is_enough(input: &[u8], is_done: impl Fn(&[u8]) -> bool) {
    let mut seen = 0;
    for cut in cuts(input.len() + 1) {
        let part = &input[..cut];
        if is_done(part) {
            assert!(
                worth_parsing(part, seen, LIMIT),
                "{cut} bytes, {seen} of them seen before"
            );
            return;
        }
        seen = cut;
    }
}

/// Server name and protocols.
fn names(hello: &ClientHello<'_>) -> (Option<String>, Vec<Vec<u8>>) {
    (
        hello.server_name().map(str::to_owned),
        hello.alpn().map(<[u8]>::to_vec).collect(),
    )
}

/// The handshake message in complete records.
fn join_records(mut records: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = records {
        let (fragment, next) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        message.extend_from_slice(fragment);
        records = next;
    }
    message
}

/// A handshake message in records of `size` bytes.
pub(crate) fn into_records(message: &[u8], size: usize) -> Vec<u8> {
    let mut records = Vec::new();
    for fragment in message.chunks(size) {
        records.extend_from_slice(&[22, 3, 1]);
        records.extend_from_slice(&(fragment.len() as u16).to_be_bytes());
        records.extend_from_slice(fragment);
    }
    records
}

#[derive(Clone, Debug, PartialEq)]
struct Header {
    addresses: Addresses,
    tlvs: Vec<(u8, Vec<u8>)>,
}

impl Header {
    fn new(header: &ProxyHeader<'_>) -> Self {
        let tlvs = header
            .tlvs()
            .map(|(kind, value)| (kind, value.to_vec()))
            .collect();
        Self {
            addresses: header.addresses,
            tlvs,
        }
    }
}

/// What a header for these two must read back as: both IPv4, or both IPv6.
fn one_family(source: std::net::SocketAddr, destination: std::net::SocketAddr) -> Addresses {
    use std::net::{IpAddr, SocketAddr};
    let ends = [source, destination];
    let canonical = ends.map(|end| end.ip().to_canonical());
    let [source, destination] = if canonical.iter().all(IpAddr::is_ipv4) {
        [
            SocketAddr::new(canonical[0], ends[0].port()),
            SocketAddr::new(canonical[1], ends[1].port()),
        ]
    } else {
        ends.map(|end| match end.ip() {
            IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), end.port()),
            IpAddr::V6(ip) => SocketAddr::new(ip.into(), end.port()),
        })
    };
    Addresses::Ip {
        source,
        destination,
        transport: Transport::Stream,
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Head {
    method: String,
    target: String,
    host: Option<String>,
    fields: Vec<(String, String)>,
}

impl Head {
    fn new(head: &RequestHead<'_>) -> Self {
        for (name, value) in head.headers() {
            assert!(head.header_values(name).any(|other| other == value));
        }
        Self {
            method: head.method().to_owned(),
            target: head.target().to_owned(),
            host: head.host().map(str::to_owned),
            fields: head
                .headers()
                .map(|(n, v)| (n.to_owned(), v.to_owned()))
                .collect(),
        }
    }
}

/// The value of a parse that must be complete with all its input.
fn done<T: Debug, E: Debug>(answer: Result<Progress<T>, E>, len: usize) -> T {
    match answer {
        Ok(Progress::Done { value, consumed }) if consumed == len => value,
        other => panic!("what was written does not read back: {other:?}"),
    }
}
