//! PROXY headers beside the crate `ppp` (decision 13): both read and write the same, except in the
//! cases that are named here.

use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};
use preamble::{
    Addresses, Progress, ProxyHeader, ProxyHeaderError, Transport, encode_v1, encode_v2,
};
use proptest::{collection::vec, prelude::*};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

proptest! {
    #[test]
    fn written_headers_agree(source: SocketAddr, destination: SocketAddr) {
        let (mut text, mut binary) = (Vec::new(), Vec::new());
        encode_v1(source, destination, &mut text);
        encode_v2(source, destination, &[(2, b"a.example")], false, &mut binary).unwrap();
        prop_assert!(agree(&text) && agree(&binary));

        // `ppp` has no header for two families, and writes a mapped address with a dotted tail.
        let plain = |end: SocketAddr| end.ip() == end.ip().to_canonical();
        if source.is_ipv4() == destination.is_ipv4() && plain(source) && plain(destination) {
            let theirs = v1::Addresses::from((source, destination)).to_string();
            prop_assert_eq!(text, theirs.into_bytes());
            let theirs = v2::Builder::with_addresses(
                v2::Version::Two | v2::Command::Proxy,
                v2::Protocol::Stream,
                (source, destination),
            );
            let theirs = theirs.write_tlv(2, b"a.example").and_then(v2::Builder::build);
            prop_assert_eq!(binary, theirs.unwrap());
        }
    }

    #[test]
    fn mutated_headers_agree(
        (source, destination) in any::<(SocketAddr, SocketAddr)>(),
        text in any::<bool>(),
        checksum in any::<bool>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut input = Vec::new();
        if text {
            encode_v1(source, destination, &mut input);
        } else {
            encode_v2(source, destination, &[(2, b"a.example")], checksum, &mut input).unwrap();
        }
        for (at, byte) in changes {
            let at = at.index(input.len());
            input[at] = byte;
        }
        agree(&input);
        agree(&input[..cut.index(input.len())]);
    }

    #[test]
    fn arbitrary_fields_agree(
        (command, family) in any::<(u8, u8)>(),
        block in vec(any::<u8>(), 0..300),
    ) {
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        agree(&[SIGNATURE, &[0x20 | command & 3, family & 0x33], &length, &block].concat());
    }
}

/// The cases of decision 13.
#[test]
fn ppp_differs_where_the_decision_says() {
    // Refuses for good what is only cut before the last port.
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    let cut = &line[..line.len() - 3];
    assert!(ppp::PartialResult::is_complete(&v1::Header::try_from(cut)));
    assert!(matches!(ours(cut), Ok(Progress::Need { .. })));
    // Reads lines that no sender may write.
    for line in [
        &b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \n"[..],
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 +2\r\n",
    ] {
        assert!(v1::Header::try_from(line).is_ok());
        assert!(!matches!(ours(line), Ok(Progress::Done { .. })));
    }
    // Reads the block of a LOCAL header, and sees no TLV, so no checksum, behind UNSPEC.
    let local = [SIGNATURE, &[0x20, 0x11, 0, 0]].concat();
    assert!(v2::Header::try_from(&local[..]).is_err());
    assert!(matches!(ours(&local), Ok(Progress::Done { .. })));
    let unspec = [SIGNATURE, b"\x21\0\0\x07\x03\0\x04oops"].concat();
    let header = v2::Header::try_from(&unspec[..]).unwrap();
    assert_eq!(header.tlvs().count(), 0);
    assert_eq!(
        ours(&unspec).unwrap_err(),
        ProxyHeaderError::ChecksumMismatch
    );
}

/// Asserts that `ppp` reads `input` as we do; returns whether there is a header.
fn agree(input: &[u8]) -> bool {
    let ours = match ours(input) {
        Ok(Progress::Done { value, consumed }) => Some((value, consumed)),
        _ => None,
    };
    if input.starts_with(SIGNATURE) {
        agree_on_binary(input, ours.as_ref());
    } else if input.starts_with(b"PROXY ") {
        agree_on_text(input, ours.as_ref());
    }
    ours.is_some()
}

fn agree_on_text(input: &[u8], ours: Option<&(ProxyHeader<'_>, usize)>) {
    let theirs = v1::Header::try_from(input).ok();
    let read = theirs.as_ref().map(|header| {
        let addresses = match header.addresses {
            v1::Addresses::Unknown => Addresses::Unknown,
            v1::Addresses::Tcp4(ip) => v4(ip, Transport::Stream),
            v1::Addresses::Tcp6(ip) => v6(ip, Transport::Stream),
        };
        (addresses, header.header.len())
    });
    match (ours, read) {
        (Some((header, consumed)), Some(read)) => assert_eq!((header.addresses, *consumed), read),
        // It wants text and at most four words behind UNKNOWN.
        (Some((header, _)), None) => assert_eq!(header.addresses, Addresses::Unknown),
        (None, Some(_)) => {
            let line = theirs.map(|header| header.header).unwrap_or_default();
            assert!(!line.ends_with("\r\n") || line.contains(" +"), "{line:?}");
        }
        (None, None) => {}
    }
}

fn agree_on_binary(input: &[u8], ours: Option<&(ProxyHeader<'_>, usize)>) {
    let theirs = v2::Header::try_from(input).ok();
    let Some((header, consumed)) = ours else {
        // It does not look at TLVs before it is asked for them, nor at which transport a family has.
        if let Some(theirs) =
            theirs.filter(|header| input[12] == 0x21 && header.tlvs().all(|tlv| tlv.is_ok()))
        {
            let checksummed = theirs.as_bytes()[16..].contains(&3);
            let listed = [0x11, 0x12, 0x21, 0x22, 0x31, 0x32].contains(&input[13]);
            assert!(checksummed || !listed, "{input:?}");
        }
        return;
    };
    let Some(theirs) = theirs else {
        assert_eq!(header.addresses, Addresses::Local);
        return;
    };
    assert_eq!(*consumed, theirs.len());
    if theirs.command == v2::Command::Local {
        assert_eq!(header.addresses, Addresses::Local);
        return;
    }
    let transport = match theirs.protocol {
        v2::Protocol::Datagram => Transport::Datagram,
        v2::Protocol::Stream | v2::Protocol::Unspecified => Transport::Stream,
    };
    let read = match theirs.addresses {
        v2::Addresses::Unspecified => Addresses::Unknown,
        v2::Addresses::IPv4(ip) => v4(ip, transport),
        v2::Addresses::IPv6(ip) => v6(ip, transport),
        v2::Addresses::Unix(_) => Addresses::Unix,
    };
    assert_eq!(header.addresses, read);
    if read != Addresses::Unknown {
        let tlvs: Vec<_> = theirs
            .tlvs()
            .map(|tlv| tlv.expect("ours are whole"))
            .collect();
        assert!(
            header
                .tlvs()
                .eq(tlvs.iter().map(|tlv| (tlv.kind, &tlv.value[..])))
        );
    }
}

fn ours(input: &[u8]) -> Result<Progress<ProxyHeader<'_>>, ProxyHeaderError> {
    ProxyHeader::parse(input, usize::MAX)
}

fn v4(ip: v1::IPv4, transport: Transport) -> Addresses {
    let source = (ip.source_address.into(), ip.source_port);
    addresses(
        source,
        (ip.destination_address.into(), ip.destination_port),
        transport,
    )
}

fn v6(ip: v1::IPv6, transport: Transport) -> Addresses {
    let source = (ip.source_address.into(), ip.source_port);
    addresses(
        source,
        (ip.destination_address.into(), ip.destination_port),
        transport,
    )
}

fn addresses(source: (IpAddr, u16), destination: (IpAddr, u16), transport: Transport) -> Addresses {
    Addresses::Ip {
        source: source.into(),
        destination: destination.into(),
        transport,
    }
}
