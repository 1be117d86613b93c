//! PROXY protocol: HAProxy's doc/proxy-protocol.txt, §2.1 (version 1) and §2.2 (version 2).

use std::net::SocketAddr;

use preamble::{
    Addresses, Progress, ProxyEncodeError, ProxyHeader,
    ProxyHeaderError::{self, ChecksumMismatch, Malformed, NotProxy, TooLong, UnsupportedVersion},
    Signature, Transport, Version, detect, encode_v1, encode_v2,
};
use proptest::{collection::vec, prelude::*};

use crate::bodies::{self, LIMIT};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// §2.1's own lines: the longest of each family, and the two forms of UNKNOWN.
#[test]
fn reads_the_lines_of_the_specification() {
    let v6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let tcp6 = format!("PROXY TCP6 {v6} {v6} 65535 65535\r\n");
    let unknown = format!("PROXY UNKNOWN {v6} {v6} 65535 65535\r\n");
    assert_eq!((tcp6.len(), unknown.len()), (104, 107));
    let cases = [
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            stream("255.255.255.255:65535", "255.255.255.255:65535"),
        ),
        (
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
            stream("192.168.0.1:56324", "192.168.0.11:443"),
        ),
        (
            &tcp6,
            stream(&format!("[{v6}]:65535"), &format!("[{v6}]:65535")),
        ),
        (
            "PROXY TCP6 ::1 2001:DB8::2 1 0\r\n",
            stream("[::1]:1", "[2001:db8::2]:0"),
        ),
        ("PROXY UNKNOWN\r\n", Addresses::Unknown),
        (&unknown, Addresses::Unknown),
    ];
    for (line, addresses) in cases {
        let header = done(line.as_bytes());
        assert_eq!(
            (header.version, header.addresses),
            (Version::V1, addresses),
            "{line:?}"
        );
        assert_eq!(header.tlvs().count(), 0);
    }
}

/// HAProxy prints addresses with inet_ntop, so a mapped one arrives like this.
#[test]
fn mapped_address_with_dotted_tail_is_read() {
    let header = done(b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n");
    assert_eq!(header.addresses, stream("[::ffff:192.0.2.1]:1", "[::1]:2"));
}

#[test]
fn unknown_ignores_what_follows() {
    assert_eq!(
        done(b"PROXY UNKNOWN \x80\0 what\never\r\n").addresses,
        Addresses::Unknown
    );
}

#[test]
fn v1_lines_off_specification_are_malformed() {
    for line in [
        "TCP4  192.0.2.1 192.0.2.2 1 2",
        "TCP4 192.0.2.1 192.0.2.2 1 2 ",
        "TCP4 192.0.2.1 192.0.2.2 1",
        "TCP4 192.0.2.1 192.0.2.2 1 2 3",
        "TCP4 192.0.2.01 192.0.2.2 1 2",
        "TCP4 192.0.2.1 192.0.2 1 2",
        "TCP4 192.0.2.256 192.0.2.2 1 2",
        "TCP4 192.0.2.1 192.0.2.2 01 2",
        "TCP4 192.0.2.1 192.0.2.2 1 +2",
        "TCP4 192.0.2.1 192.0.2.2 1 65536",
        "TCP4 192.0.2.1 192.0.2.2 1 ",
        "TCP4 192.0.2.1\t192.0.2.2 1 2",
        "TCP4 ::1 ::1 1 2",
        "TCP6 192.0.2.1 192.0.2.2 1 2",
        "TCP6 ::1%lo ::1 1 2",
        "TCP6 [::1] ::1 1 2",
        "TCP6 ::1::2 ::1 1 2",
        "TCP4 192.0.2.1 192.0.2.2 1 2\r",
        "TCP4 192.0.2.1 192.0.2.2 1 \u{661}",
        "TCP4 ",
    ] {
        let line = format!("PROXY {line}\r\n");
        assert_eq!(
            parse(line.as_bytes()),
            Err(Malformed("addresses or ports")),
            "{line:?}"
        );
    }
    for start in [
        "PROXY UDP4",
        "PROXY tcp4",
        "PROXY  TCP4",
        "PROXY TCP5",
        "PROXY UNKNOWNX",
    ] {
        assert_eq!(
            parse(start.as_bytes()),
            Err(Malformed("unknown protocol")),
            "{start:?}"
        );
    }
}

#[test]
fn text_is_bounded_at_107_bytes() {
    let mut line = b"PROXY UNKNOWN ".to_vec();
    line.resize(106, b'x');
    assert_eq!(parse(&line).map(need), Ok(Some(107)));
    line.push(b'\r');
    assert_eq!(parse(&line), Err(TooLong));
    line.truncate(105);
    line.extend(b"\r\n");
    assert_eq!(done(&line).addresses, Addresses::Unknown);
    assert_eq!(ProxyHeader::parse(&line, 106), Err(TooLong));
}

#[test]
fn signatures_are_told_apart() {
    for len in 0..6 {
        assert_eq!(detect(&b"PROXY "[..len]), Signature::Undecided);
    }
    for len in 1..12 {
        assert_eq!(detect(&SIGNATURE[..len]), Signature::Undecided);
    }
    assert_eq!(detect(b"PROXY T"), Signature::V1);
    assert_eq!(detect(SIGNATURE), Signature::V2);
    for other in [
        &b"CONNECT "[..],
        b"\x16\x03",
        b"PROXY\r",
        b"\r\n\r\r",
        b"P ",
    ] {
        assert_eq!(detect(other), Signature::Other);
        assert_eq!(parse(other), Err(NotProxy));
    }
}

#[test]
fn reads_every_family_of_version_2() {
    let v4 = [192, 0, 2, 1, 198, 51, 100, 7, 0xdc, 4, 1, 0xbb];
    let v6: Vec<u8> = (0..32).chain([0, 80, 0, 81]).collect();
    let unix = [b'/'; 216];
    let [ip4, ip6] = [
        ("192.0.2.1:56324", "198.51.100.7:443"),
        (
            "[1:203:405:607:809:a0b:c0d:e0f]:80",
            "[1011:1213:1415:1617:1819:1a1b:1c1d:1e1f]:81",
        ),
    ];
    let cases: [(u8, &[u8], Addresses); 7] = [
        (0x00, &[], Addresses::Unknown),
        (0x11, &v4, ip(ip4.0, ip4.1, Transport::Stream)),
        (0x12, &v4, ip(ip4.0, ip4.1, Transport::Datagram)),
        (0x21, &v6, ip(ip6.0, ip6.1, Transport::Stream)),
        (0x22, &v6, ip(ip6.0, ip6.1, Transport::Datagram)),
        (0x31, &unix, Addresses::Unix),
        (0x32, &unix, Addresses::Unix),
    ];
    for (family, block, addresses) in cases {
        let tlvs = [block, b"\x02\0\x03abc\x04\0\0"].concat();
        let header = v2(0x21, family, &tlvs);
        let header = done(&header);
        assert_eq!((header.version, header.addresses), (Version::V2, addresses));
        let expected: [(u8, &[u8]); 2] = [(2, b"abc"), (4, b"")];
        assert!(header.tlvs().eq(expected));

        if !block.is_empty() {
            let short = v2(0x21, family, &block[1..]);
            let what = "declared length does not hold the addresses";
            assert_eq!(parse(&short), Err(Malformed(what)));
        }
    }
}

/// §2.2: the receiver of a LOCAL header discards the block, the family included.
#[test]
fn local_ignores_its_block() {
    for (family, block) in [
        (0x00, &b""[..]),
        (0x11, b"short"),
        (0xff, b"\x03\0\x04oops"),
    ] {
        let header = v2(0x20, family, block);
        let header = done(&header);
        assert_eq!(
            (header.addresses, header.tlvs().count()),
            (Addresses::Local, 0)
        );
    }
}

#[test]
fn unknown_version_command_family_is_refused() {
    assert_eq!(parse(&v2(0x11, 0x11, &[0; 12])), Err(UnsupportedVersion(1)));
    assert_eq!(parse(&v2(0x31, 0x11, &[0; 12])), Err(UnsupportedVersion(3)));
    assert_eq!(
        parse(&v2(0x22, 0x11, &[0; 12])),
        Err(Malformed("unknown command"))
    );
    for family in [0x01, 0x10, 0x13, 0x20, 0x30, 0x33, 0x41, 0xff] {
        let what = "unknown address family or transport";
        assert_eq!(parse(&v2(0x21, family, &[0; 216])), Err(Malformed(what)));
        // Known before the length is, so a peer that sends no more is not waited for.
        assert_eq!(parse(&v2(0x21, family, &[])[..14]), Err(Malformed(what)));
    }
}

#[test]
fn declared_length_counts_against_the_limit() {
    let header = v2(0x21, 0x11, &[0; 12]);
    assert_eq!(ProxyHeader::parse(&header[..16], 27), Err(TooLong));
    assert_eq!(
        ProxyHeader::parse(&header[..16], 28).map(need),
        Ok(Some(28))
    );
    assert!(ProxyHeader::parse(&header, 28).is_ok());
    assert_eq!(ProxyHeader::parse(&header, 15), Err(TooLong));
}

/// The checksum was computed bit by bit, independently of the table in the crate.
#[test]
fn checksum_is_verified_when_present() {
    let block = b"\xc0\x00\x02\x01\xc6\x33\x64\x07\xdc\x04\x01\xbb\x03\0\x04";
    let good = v2(
        0x21,
        0x11,
        &[&block[..], &0xD45A_11B9_u32.to_be_bytes()].concat(),
    );
    let (source, destination) = ("192.0.2.1:56324", "198.51.100.7:443");
    assert_eq!(done(&good).addresses, stream(source, destination));
    let mut written = Vec::new();
    encode_v2(addr(source), addr(destination), &[], true, &mut written).unwrap();
    assert_eq!(written, good);

    for at in 16..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            // A change to the TLV's own type or length makes it another TLV.
            if (28..31).contains(&at) {
                continue;
            }
            assert_eq!(parse(&bad), Err(ChecksumMismatch), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn tlvs_must_fill_the_header() {
    let cases: [(&str, &[u8]); 6] = [
        ("TLV cut short", b"\x02"),
        ("TLV cut short", b"\x02\0"),
        ("TLV cut short", b"\x02\0\x02a"),
        ("checksum cut short", b"\x03\0\x03abc"),
        (
            "checksum of wrong length or given twice",
            b"\x03\0\x05abcde",
        ),
        (
            "checksum of wrong length or given twice",
            b"\x03\0\x04abcd\x03\0\x04abcd",
        ),
    ];
    for (what, tlvs) in cases {
        let answer = v2(0x21, 0x11, &[&[0; 12][..], tlvs].concat());
        assert_eq!(parse(&answer), Err(Malformed(what)), "{tlvs:?}");
    }
}

#[test]
fn writes_the_line_of_each_family() {
    let line = |source, destination| {
        let mut out = b"kept ".to_vec();
        encode_v1(addr(source), addr(destination), &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        line("192.0.2.1:1", "192.0.2.2:2"),
        "kept PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"
    );
    assert_eq!(
        line("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2"),
        "kept PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"
    );
    assert_eq!(
        line("[2001:db8::1]:1", "[::1]:2"),
        "kept PROXY TCP6 2001:db8::1 ::1 1 2\r\n"
    );
    assert_eq!(
        line("192.0.2.1:1", "[2001:db8::1]:2"),
        "kept PROXY TCP6 ::ffff:c000:201 2001:db8::1 1 2\r\n"
    );
}

#[test]
fn writes_version_2_within_its_limits() {
    let mut out = b"kept".to_vec();
    let (source, destination) = (addr("192.0.2.1:1"), addr("[::1]:2"));
    let huge = vec![0; 65_500];
    let refused = encode_v2(source, destination, &[(0xe0, &huge)], false, &mut out);
    assert_eq!(refused, Err(ProxyEncodeError::TooLong));
    let refused = encode_v2(source, destination, &[(3, b"abcd")], false, &mut out);
    assert_eq!(refused, Err(ProxyEncodeError::ChecksumTlv));
    assert_eq!(out, b"kept");

    out.clear();
    encode_v2(
        source,
        destination,
        &[(0xe0, &huge[..65_496])],
        false,
        &mut out,
    )
    .unwrap();
    assert_eq!(out.len(), 16 + 65_535);
    let header = done(&out);
    assert_eq!(header.addresses, stream("[::ffff:192.0.2.1]:1", "[::1]:2"));
}

proptest! {
    #[test]
    fn encoded_headers_parse_back(
        source: SocketAddr,
        destination: SocketAddr,
        tlvs in vec((any::<u8>(), vec(any::<u8>(), 0..40)), 0..5),
        checksum: bool,
        behind in vec(any::<u8>(), 0..20),
    ) {
        let tlvs: Vec<(u8, &[u8])> =
            tlvs.iter().filter(|tlv| tlv.0 != 3).map(|tlv| (tlv.0, &tlv.1[..])).collect();
        let mut v2 = Vec::new();
        encode_v2(source, destination, &tlvs, checksum, &mut v2).unwrap();
        let mut v1 = Vec::new();
        encode_v1(source, destination, &mut v1);
        prop_assert!(v1.len() <= 107);
        prop_assert_eq!(done(&v1).addresses, done(&v2).addresses);
        for mut written in [v1, v2] {
            written.extend(&behind);
            bodies::proxy_header(&written);
        }
    }

    #[test]
    fn mutated_headers_keep_the_laws(
        text: bool,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (source, destination) = (addr("[2001:db8::1]:50000"), addr("[2001:db8::2]:443"));
        let mut written = Vec::new();
        if text {
            encode_v1(source, destination, &mut written);
        } else {
            encode_v2(source, destination, &[(2, b"a.example")], true, &mut written).unwrap();
        }
        let at = at.index(written.len());
        written[at] = byte;
        bodies::proxy_header(&written);
    }

    #[test]
    fn arbitrary_bytes_keep_the_laws(
        mut input in vec(any::<u8>(), 0..200),
        start in prop::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", SIGNATURE]),
    ) {
        input.splice(..0, start.iter().copied());
        bodies::proxy_header(&input);
    }
}

fn parse(input: &[u8]) -> Result<Progress<ProxyHeader<'_>>, ProxyHeaderError> {
    ProxyHeader::parse(input, LIMIT)
}

fn need(progress: Progress<ProxyHeader<'_>>) -> Option<usize> {
    match progress {
        Progress::Need { at_least } => Some(at_least),
        Progress::Done { .. } => None,
    }
}

/// The header that fills `input` to its end.
fn done(input: &[u8]) -> ProxyHeader<'_> {
    match ProxyHeader::parse(input, usize::MAX) {
        Ok(Progress::Done { value, consumed }) if consumed == input.len() => value,
        other => panic!("{input:?}: {other:?}"),
    }
}

/// A version 2 header whose declared length is right.
fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len())
        .expect("blocks are small")
        .to_be_bytes();
    [SIGNATURE, &[command, family], &length, block].concat()
}

fn stream(source: &str, destination: &str) -> Addresses {
    ip(source, destination, Transport::Stream)
}

fn ip(source: &str, destination: &str, transport: Transport) -> Addresses {
    Addresses::Ip {
        source: addr(source),
        destination: addr(destination),
        transport,
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("a socket address")
}
