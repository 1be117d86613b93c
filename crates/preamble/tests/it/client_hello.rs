//! ClientHello: RFC 8446 §4.1.2 and §5.1, RFC 6066 §3, RFC 7301 §3.1.

use preamble::{
    ClientHello,
    ClientHelloError::{self, Malformed, NotTls, TooLong},
    Progress,
    client_hello::MAX_RECORDS,
};
use proptest::{collection::vec, prelude::*};

use crate::{
    bodies::{self, LIMIT, into_records},
    hello::{Hello, host_name, message, vector16},
};

/// RFC 8448 §3, the record the client sends first.
#[test]
fn reads_the_trace_of_rfc_8448() {
    let hex = "16030100c4010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024d\
        ece7000006130113031302010000910000000b0009000006736572766572ff01000100000a00140012001d0017\
        001800190100010101020103010400230000003300260024001d002099381de560e4bd43d23d8e435a7dbafeb3\
        c06e51c13cae4d5413691e529aaf2c002b0003020304000d0020001e0403050306030203080408050806040105\
        01060102010402050206020202002d00020101001c00024001";
    let record = bytes_of(hex);
    assert_eq!(
        done(&record),
        (Some("server".to_owned()), vec![], record.len())
    );
}

#[test]
fn name_and_protocols_are_returned_as_sent() {
    let hello = Hello::new()
        .alpn(&[b"h2", b"http/1.1"])
        .named("Api.Foo_1.example.COM.");
    let (name, protocols, _) = done(&hello.record());
    assert_eq!(name.as_deref(), Some("Api.Foo_1.example.COM."));
    assert_eq!(protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
}

#[test]
fn absent_server_name_is_not_an_error() {
    let mut without_extensions = Hello::new();
    without_extensions.extensions = None;
    for hello in [Hello::new(), without_extensions] {
        let record = hello.record();
        assert_eq!(done(&record), (None, vec![], record.len()));
    }
}

#[test]
fn record_layer_minor_version_is_ignored() {
    for minor in [0, 1, 3, 4, 255] {
        let mut record = Hello::new().named("a.example").record();
        record[2] = minor;
        assert_eq!(done(&record).0.as_deref(), Some("a.example"));
    }
}

#[test]
fn bytes_after_hello_are_not_consumed() {
    let record = Hello::new().named("a.example").record();
    let early_data = [&record[..], &[23, 3, 3, 0, 1, 0]].concat();
    assert_eq!(done(&early_data), done(&record));
}

#[test]
fn post_quantum_key_shares_fit_one_record() {
    for share in [32, 1_216, 15_000] {
        let record = Hello::new().key_share(share).named("pq.example").record();
        assert_eq!(done(&record).0.as_deref(), Some("pq.example"));
    }
}

#[test]
fn hello_beyond_16_kib_spans_records() {
    let message = Hello::new()
        .key_share(40_000)
        .named("big.example")
        .message();
    let records = into_records(&message, 1 << 14);
    assert_eq!(records.len(), message.len() + 3 * 5);
    assert_eq!(done(&records).0.as_deref(), Some("big.example"));
    assert_eq!(done(&records).2, records.len());
}

/// RFC 8446 §5.1: a message may be cut anywhere, inside its own header as well.
#[test]
fn records_may_cut_the_message_anywhere() {
    let message = Hello::new().named("cut.example").message();
    for at in 1..message.len() {
        let (left, right) = message.split_at(at);
        let records = [
            into_records(left, left.len()),
            into_records(right, right.len()),
        ]
        .concat();
        assert_eq!(
            done(&records).0.as_deref(),
            Some("cut.example"),
            "cut at {at}"
        );
    }
}

#[test]
fn records_are_bounded_in_number() {
    let mut hello = Hello::new();
    hello.session_id.clear();
    hello.cipher_suites.truncate(2);
    let message = hello.message();
    assert!(message.len() < MAX_RECORDS, "{}", message.len());
    assert!(matches!(
        parse(&into_records(&message, 1)),
        Ok(Progress::Done { .. })
    ));

    let message = Hello::new()
        .named("a-name-that-makes-it-longer.example")
        .message();
    let many = into_records(&message, 1);
    assert_eq!(
        parse(&many),
        Err(Malformed("ClientHello spread over too many records"))
    );
    let last_good = (MAX_RECORDS - 1) * 6;
    assert!(matches!(
        parse(&many[..last_good]),
        Ok(Progress::Need { .. })
    ));
}

#[test]
fn other_protocols_are_not_tls_from_first_bytes() {
    let ssl2 = [0x80, 0x2e, 0x01, 0x03, 0x01];
    for start in [
        b"G".as_slice(),
        b"\0",
        b"\x17\x03\x03",
        b"\x16\x02",
        b"\x16\xfe\xfd",
        &ssl2,
    ] {
        assert_eq!(parse(start), Err(NotTls), "{start:?}");
    }
}

#[test]
fn need_names_the_end_of_the_record() {
    let record = Hello::new().named("a.example").record();
    assert_eq!(parse(&[]), Ok(Progress::Need { at_least: 6 }));
    assert_eq!(
        parse(&record[..5]),
        Ok(Progress::Need {
            at_least: record.len()
        })
    );
    assert_eq!(
        parse(&record[..record.len() - 1]),
        Ok(Progress::Need {
            at_least: record.len()
        })
    );
}

#[test]
fn announced_lengths_count_against_the_limit() {
    let announced = [22, 3, 1, 0, 200, 1, 1, 0, 0]; // a hello of 65,536 bytes
    assert_eq!(parse(&announced), Err(TooLong));
    assert!(matches!(parse(&announced[..8]), Ok(Progress::Need { .. })));
    assert_eq!(
        ClientHello::parse(&announced[..5], 204).err(),
        Some(TooLong)
    );

    let record = Hello::new().named("a.example").record();
    assert!(ClientHello::parse(&record, record.len()).is_ok());
    assert_eq!(
        ClientHello::parse(&record, record.len() - 1).err(),
        Some(TooLong)
    );
}

#[test]
fn records_that_tls_forbids_are_malformed() {
    let fragment = Hello::new().message();
    let (left, right) = fragment.split_at(10);
    let first = into_records(left, left.len());
    let cases: [(&str, Vec<u8>); 6] = [
        ("empty handshake record", vec![22, 3, 1, 0, 0]),
        ("record longer than TLS allows", vec![22, 3, 1, 0x41, 0x01]),
        (
            "first handshake message is not a ClientHello",
            vec![22, 3, 3, 0, 4, 2],
        ),
        (
            "a record of another type inside the ClientHello",
            [&first[..], &[21]].concat(),
        ),
        (
            "record version changes inside the ClientHello",
            [&first[..], &[22, 2]].concat(),
        ),
        (
            "bytes behind the ClientHello in its record",
            into_records(&[left, right, &[1]].concat(), 1 << 14),
        ),
    ];
    for (what, input) in cases {
        assert_eq!(parse(&input), Err(Malformed(what)));
    }
    assert!(matches!(
        parse(&[22, 3, 1, 0x41, 0x00]),
        Ok(Progress::Need { .. })
    ));
}

#[test]
fn bodies_that_break_their_framing_are_malformed() {
    let hello = Hello::new;
    let cases: [(&str, Hello); 12] = [
        (
            "legacy_version is not 3.x",
            Hello {
                version: 0x0203,
                ..hello()
            },
        ),
        (
            "session id longer than 32 bytes",
            Hello {
                session_id: vec![0; 33],
                ..hello()
            },
        ),
        (
            "cipher suites of no or odd length",
            Hello {
                cipher_suites: vec![],
                ..hello()
            },
        ),
        (
            "cipher suites of no or odd length",
            Hello {
                cipher_suites: vec![0; 3],
                ..hello()
            },
        ),
        (
            "no compression methods",
            Hello {
                compression: vec![],
                ..hello()
            },
        ),
        (
            "two server_name extensions",
            hello().named("a.example").named("a.example"),
        ),
        ("two ALPN extensions", hello().alpn(&[b"h2"]).alpn(&[b"h2"])),
        ("empty ALPN list", hello().alpn(&[])),
        ("empty ALPN protocol name", hello().alpn(&[b"h2", b""])),
        ("ALPN cut short", hello().with(16, vec![0, 2, 9, b'h'])),
        (
            "bytes behind the ALPN list",
            hello().with(16, vec![0, 2, 1, b'h', 0]),
        ),
        ("ALPN cut short", hello().with(16, vec![])),
    ];
    for (what, hello) in cases {
        assert_eq!(parse(&hello.record()), Err(Malformed(what)));
    }
    let mut message = Hello::new().message();
    message.push(0);
    let longer = crate::hello::message(1, &message[4..]);
    let behind = parse(&into_records(&longer, 1 << 14));
    assert_eq!(behind, Err(Malformed("bytes behind the extensions")));
}

#[test]
fn every_truncated_body_is_malformed() {
    let whole = Hello::new().named("a.example").alpn(&[b"h2"]).message();
    let mut without_extensions = Hello::new();
    without_extensions.extensions = None;
    let body_without = without_extensions.message().len() - 4;
    for len in 0..whole.len() - 4 {
        let cut = into_records(&message(1, &whole[4..4 + len]), 1 << 14);
        let answer = parse(&cut);
        let complete = len == body_without;
        assert_eq!(
            matches!(answer, Err(Malformed(_))),
            !complete,
            "{len}: {answer:?}"
        );
    }
}

/// RFC 6066 §3: at most one name of a type, `host_name` is the only type, and is not empty.
#[test]
fn server_name_lists_are_read_strictly() {
    let name = host_name(b"a.example");
    let cases: [(&str, Vec<u8>); 7] = [
        ("empty server name list", vector16(&[])),
        (
            "more than one server name",
            vector16(&[&name[..], &host_name(b"b.example")].concat()),
        ),
        (
            "server name of unknown type",
            vector16(&[&[1][..], &vector16(b"x")].concat()),
        ),
        ("server name is not a host name", vector16(&host_name(b""))),
        ("server_name cut short", vec![]),
        ("server_name cut short", vector16(&[0, 0, 5, b'a'])),
        (
            "bytes behind the server name list",
            [vector16(&name), vec![0]].concat(),
        ),
    ];
    for (what, payload) in cases {
        assert_eq!(
            parse(&Hello::new().with(0, payload).record()),
            Err(Malformed(what))
        );
    }
}

#[test]
fn host_names_follow_dns_syntax() {
    let label = "l".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "m".repeat(62)); // 254, and 255 with a dot
    for good in [
        "a",
        "a.",
        "10.0.0.1",
        "_acme.x-y.example",
        &longest,
        &format!("{longest}."),
    ] {
        assert_eq!(
            done(&Hello::new().named(good).record()).0.as_deref(),
            Some(good)
        );
    }
    let label_too_long = "l".repeat(64);
    let long = format!("{longest}x.");
    for bad in [
        "",
        ".",
        "..",
        ".a",
        "a..b",
        "a b",
        "a\0b",
        "*.example",
        "::1",
        "[::1]",
        "a:443",
        "b/c",
        "münchen.example",
        "a.example\n",
        &label_too_long,
        &long,
    ] {
        let answer = parse(&Hello::new().named(bad).record());
        assert_eq!(
            answer,
            Err(Malformed("server name is not a host name")),
            "{bad:?}"
        );
    }
}

proptest! {
    #[test]
    fn any_split_gives_same_result(
        name in "[a-z0-9-]{1,20}(\\.[a-zA-Z0-9_]{1,20}){0,3}",
        protocols in vec(vec(any::<u8>(), 1..20), 0..4),
        share in 0usize..2_000,
        mut sizes in vec(1usize..600, 1..MAX_RECORDS - 1),
    ) {
        let mut hello = Hello::new().key_share(share).named(&name);
        if !protocols.is_empty() {
            let borrowed: Vec<&[u8]> = protocols.iter().map(|name| &name[..]).collect();
            hello = hello.alpn(&borrowed);
        }
        let message = hello.message();
        let mut rest = &message[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (fragment, next) = rest.split_at(sizes.pop().unwrap_or(1 << 14).min(rest.len()));
            records.extend(into_records(fragment, fragment.len()));
            rest = next;
        }
        prop_assert_eq!(done(&records), (Some(name), protocols, records.len()));
        bodies::client_hello(&records);
    }

    #[test]
    fn mutated_hellos_keep_the_laws(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut record = Hello::new().named("a.example").alpn(&[b"h2"]).record();
        let at = at.index(record.len());
        record[at] = byte;
        bodies::client_hello(&record);
    }

    #[test]
    fn arbitrary_bytes_keep_the_laws(
        mut input in vec(any::<u8>(), 0..200),
        start in prop::sample::select(vec![&b""[..], b"\x16", b"\x16\x03\x01\0", b"\x16\x03\x03\0\x50\x01\0\0"]),
    ) {
        input.splice(..0, start.iter().copied());
        bodies::client_hello(&input);
    }
}

type Names = (Option<String>, Vec<Vec<u8>>);

fn parse(input: &[u8]) -> Result<Progress<Names>, ClientHelloError> {
    ClientHello::parse(input, LIMIT).map(|progress| {
        progress.map(|hello| {
            let protocols = hello.alpn().map(<[u8]>::to_vec).collect();
            (hello.server_name().map(str::to_owned), protocols)
        })
    })
}

/// Server name, protocols and bytes consumed of a complete hello.
fn done(input: &[u8]) -> (Option<String>, Vec<Vec<u8>>, usize) {
    match parse(input) {
        Ok(Progress::Done {
            value: (name, protocols),
            consumed,
        }) => (name, protocols, consumed),
        other => panic!("not complete: {other:?}"),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let byte = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits");
    digits.chunks(2).map(byte).collect()
}
