//! Replays the committed fuzz corpus on the stable toolchain, as part of every test run, and tries
//! what no file has.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/frames.rs"]
mod frames;

use proptest::prelude::*;

/// Takes every file of the corpus, and what of it comes before the connection is lost.
#[test]
fn connections_that_were_found() {
    for (_, input) in corpus::files("http2") {
        frames::connection(&input);
        frames::connection(&input[..input.len() / 2]);
        frames::connection(&input[..input.len().saturating_sub(1)]);
    }
}

const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// POST, a scheme and a path, all from the static table.
const REQUEST: [u8; 3] = [0x83, 0x86, 0x84];

/// A frame that may be one, of a stream that may be there.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        Just(REQUEST.to_vec()),
        Just(vec![0, 0, 0, 9]),
        prop::collection::vec(any::<u8>(), 0..20),
        (0usize..6000).prop_map(|len| vec![0; len]),
    ];
    let flags = prop_oneof![Just(0u8), Just(4), Just(5), Just(1), Just(8), any::<u8>()];
    (0u8..11, flags, 0u32..12, payload).prop_map(|(kind, flags, stream, payload)| {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&len[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [head, payload].concat()
    })
}

/// Frames that begin streams and go on with them, so that more than the first is looked at.
fn likely_frame() -> impl Strategy<Value = Vec<u8>> {
    let whole = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let stream = (0u32..6).prop_map(|at| at * 2 + 1);
    (stream, 0u8..9, 0usize..5000).prop_map(move |(stream, what, len)| match what {
        0 | 1 => whole(1, 4, stream, &REQUEST),
        2 | 3 => whole(0, 0, stream, &vec![0; len]),
        4 => whole(0, 1, stream, &vec![0; len]),
        5 => whole(3, 0, stream, &[0, 0, 0, 8]),
        6 => whole(8, 0, stream, &[0, 0, 16, 0]),
        7 => whole(8, 0, 0, &[0, 0, 16, 0]),
        _ => whole(6, 0, 0, &[7; 8]),
    })
}

proptest! {
    #[test]
    fn any_frames(frames in prop::collection::vec(frame(), 0..12)) {
        frames::connection(&[BEGIN, &frames.concat()].concat());
    }

    #[test]
    fn likely_frames(frames in prop::collection::vec(likely_frame(), 0..40)) {
        frames::connection(&[BEGIN, &frames.concat()].concat());
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        frames::connection(&bytes);
        frames::connection(&[BEGIN, &bytes].concat());
    }
}
