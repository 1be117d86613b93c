//! Known answers from RFC 7541, what Go's gRPC sends, and every way to cut it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A frame of `kind` on stream 1.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, u8::from(kind != 4)]);
    frame.extend(payload);
    frame
}

/// What a client says until it has asked for `/ProxyService/Proxy`.
fn request(authority: &[u8]) -> Vec<u8> {
    let path = b"/ProxyService/Proxy";
    // POST, http, then two literals whose names are in the static table.
    let mut block = vec![0x83, 0x86, 0x44, u8::try_from(path.len()).unwrap()];
    block.extend(path);
    block.extend([0x41, u8::try_from(authority.len()).unwrap()]);
    block.extend(authority);
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    all.extend(frame(4, 0, &[]));
    all.extend(frame(HEADERS, 0x4, &block));
    all.extend(frame(0, 0, b"/%/ in a DATA frame"));
    all
}

async fn through(octets: &[u8], piece: usize) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(piece);
    let mut mended = Vec::new();
    let mut reader = Authority::new(server);
    let write = async {
        client.write_all(octets).await.unwrap();
        drop(client);
    };
    let (_, read) = tokio::join!(write, reader.read_to_end(&mut mended));
    read.unwrap();
    mended
}

#[tokio::test]
async fn a_path_becomes_an_authority_wherever_it_is_cut() {
    let (given, expected) = (request(b"/run/kn%2Fa.sock"), request(b"-run-kn-2Fa.sock"));
    for piece in 1..=given.len() {
        assert_eq!(through(&given, piece).await, expected, "{piece}");
    }
}

#[tokio::test]
async fn what_ends_in_the_middle_ends_there() {
    let given = request(b"localhost");
    for length in 0..given.len() {
        assert_eq!(through(&given[..length], 64).await, given[..length]);
    }
}

/// Whether HTTP/2 hands over a request; the clock is stopped, so that waiting in vain is short.
async fn is_taken(io: impl AsyncRead + AsyncWrite + Unpin) -> bool {
    let mut connection = h2::server::handshake(io).await.unwrap();
    let accepted = tokio::time::timeout(Duration::from_secs(1), connection.accept()).await;
    matches!(accepted, Ok(Some(Ok(_))))
}

#[tokio::test(start_paused = true)]
async fn http2_takes_what_it_refuses_otherwise() {
    let octets = request(b"/run/kn.sock");
    let (mut client, server) = tokio::io::duplex(4096);
    client.write_all(&octets).await.unwrap();
    assert!(!is_taken(server).await);
    let (mut client, server) = tokio::io::duplex(4096);
    client.write_all(&octets).await.unwrap();
    assert!(is_taken(Authority::new(server)).await);
}

#[test]
fn huffman_code_is_walked_to_its_end() {
    // RFC 7541 appendix C.4.1: www.example.com.
    let known = [
        0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
    ];
    let mut value = known;
    mend_huffman(&mut value);
    assert_eq!(value, known);
    // C.6.1, which has codes of many lengths: https://www.example.com.
    let mut value = [
        0x9d, 0x29, 0xad, 0x17, 0x18, 0x63, 0xc7, 0x8f, 0x0b, 0x97, 0xc8, 0xe9, 0xae, 0x82, 0xae,
        0x43, 0xd3,
    ];
    mend_huffman(&mut value);
    // The two slashes behind `https:` (0x9d29ad17 and 6 bits more) are hyphens now.
    let expected = [
        0x9d, 0x29, 0xad, 0x17, 0x16, 0x5b, 0xc7, 0x8f, 0x0b, 0x97, 0xc8, 0xe9, 0xae, 0x82, 0xae,
        0x43, 0xd3,
    ];
    assert_eq!(value, expected);
    // `/%` and padding.
    let mut value = [0b0110_0001, 0b0101_1111];
    mend_huffman(&mut value);
    assert_eq!(value, [0b0101_1001, 0b0110_1111]);
}

#[test]
fn padding_and_priority_are_passed_over() {
    let block = [0x41, 2, b'/', b'%'];
    let mut padded = vec![3, 0, 0, 0, 0, 16];
    padded.extend(block);
    padded.extend([0x41, 1, b'/']);
    let mut octets = frame(HEADERS, PADDED | PRIORITY, &padded);
    let length = octets.len();
    assert_eq!(Frames { pass: 0 }.mend(&mut octets), length);
    assert_eq!(octets[length - 5..length - 3], *b"--");
    assert_eq!(octets[length - 1], b'/');
}

#[test]
fn lengths_that_lie_are_left_alone() {
    for block in [
        &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0x0f][..],
        &[0x41, 9, b'/'],
        &[0x7f],
        &[0x00, 3, b'a'],
    ] {
        let mut octets = frame(HEADERS, 0x4, block);
        let before = octets.clone();
        assert_eq!(Frames { pass: 0 }.mend(&mut octets), before.len());
        assert_eq!(octets, before);
    }
}
