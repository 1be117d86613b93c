//! Frames and control messages on a stream cut anywhere.

use bytes::BytesMut;
use proptest::prelude::*;
use tunnel_proto::frame::{
    Control, Decoder, Frame, FrameError, Identity, MAX_CONTROL_LEN, MAX_LEN, header, put_control,
};

/// A frame that owns what is in it.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Datagram(Vec<u8>),
    Control(String),
}

impl From<Frame<'_>> for Owned {
    fn from(frame: Frame<'_>) -> Self {
        match frame {
            Frame::Datagram(datagram) => Self::Datagram(datagram.to_vec()),
            Frame::Control(control) => Self::Control(format!("{control:?}")),
        }
    }
}

/// What a decoder answers to a stream in chunks, until its first error.
fn decode(chunks: &[&[u8]], max: u16) -> (Vec<Owned>, Option<FrameError>) {
    let mut decoder = Decoder::new(max);
    let mut frames = Vec::new();
    for chunk in chunks {
        let mut input = *chunk;
        loop {
            match decoder.next(&mut input) {
                Ok(Some(frame)) => frames.push(frame.into()),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next(&mut input), Err(error), "errors stay");
                    return (frames, Some(error));
                }
            }
        }
        assert!(input.is_empty(), "`None` means that all was taken");
        assert!(decoder.pending() < 2 + usize::from(max.max(MAX_CONTROL_LEN)));
    }
    (frames, None)
}

fn controls() -> Vec<Control<'static>> {
    vec![
        Control::Hello {
            version: 1,
            instance: 0x0102_0304_0506_0708,
            identity: Identity::new("vpn-shoot-0").unwrap(),
        },
        Control::Hello {
            version: 255,
            instance: 0,
            identity: Identity::new("").unwrap(),
        },
    ]
}

fn encode(control: &Control<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    put_control(control, &mut out).unwrap();
    out
}

#[test]
fn headers_are_big_endian_with_the_kind_on_top() {
    assert_eq!(header(1), Ok([0, 1]));
    assert_eq!(header(0x1234), Ok([0x12, 0x34]));
    assert_eq!(header(16_383), Ok([0x3f, 0xff]));
    assert_eq!(header(0), Err(FrameError::Empty));
    let error = header(16_384).unwrap_err();
    assert_eq!(
        error,
        FrameError::TooLong {
            len: 16_384,
            max: 16_383
        }
    );
    let hello = encode(&controls()[0]);
    assert_eq!(
        hello[..],
        *b"\x40\x16\x01\x01\x01\x02\x03\x04\x05\x06\x07\x08\x0bvpn-shoot-0"
    );
}

#[test]
fn control_messages_come_back_as_they_went() {
    for control in controls() {
        let bytes = encode(&control);
        let mut decoder = Decoder::new(1500);
        let mut input = &bytes[..];
        assert_eq!(decoder.next(&mut input), Ok(Some(Frame::Control(control))));
    }
}

/// Ping, pong, drain, MTU hint, padding and its request.
#[test]
fn control_of_earlier_versions_is_skipped() {
    let padding = [&[0x42, 0, 6], &[0; 511][..]].concat();
    for (bytes, kind) in [
        (&b"\x40\x0d\x02\0\0\0\x07\0\0\0\0\0\0\0\x09"[..], 2),
        (b"\x40\x11\x03\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0\xfa", 3),
        (b"\x40\x05\x04\0\0\x05\0", 4),
        (b"\x40\x03\x05\x05\0", 5),
        (&padding, 6),
        (b"\x40\x05\x07\0\x10\0\0", 7),
        (b"\x40\x01\x07", 7),
    ] {
        let (frames, error) = decode(&[bytes, &[0, 1, 9]], 1500);
        let skipped = Frame::Control(Control::Unknown { kind }).into();
        assert_eq!(frames, [skipped, Owned::Datagram(vec![9])]);
        assert_eq!(error, None);
    }
}

#[test]
fn control_of_later_versions_is_understood() {
    for control in controls() {
        let mut bytes = encode(&control);
        bytes.extend_from_slice(b"more");
        bytes[1] += 4;
        let (frames, error) = decode(&[&bytes], 1500);
        assert_eq!(
            (frames, error),
            (vec![Frame::Control(control).into()], None)
        );
    }
    let (frames, error) = decode(&[&[0x40, 2, 200, 1, 0, 1, 9]], 1500);
    let unknown = Frame::Control(Control::Unknown { kind: 200 });
    assert_eq!(frames, [unknown.into(), Owned::Datagram(vec![9])]);
    assert_eq!(error, None);
    let unsent = put_control(&Control::Unknown { kind: 200 }, &mut BytesMut::new());
    assert_eq!(unsent, Err(FrameError::Control(200)));
}

#[test]
fn invalid_frame_ends_stream() {
    for (bytes, error) in [
        (&[0x00, 0x00][..], FrameError::Empty),
        (&[0x40, 0x00], FrameError::Empty),
        (&[0x80, 0x01], FrameError::Kind(2)),
        (&[0xff, 0xff], FrameError::Kind(3)),
        (
            &[0x05, 0xdd],
            FrameError::TooLong {
                len: 1501,
                max: 1500,
            },
        ),
        (&[0x42, 0x01], FrameError::TooLong { len: 513, max: 512 }),
        (&[0x40, 2, 1, 0], FrameError::Control(1)),
        (
            b"\x40\x0d\x01\x01........\x02a\n", // a line break in an identity
            FrameError::Control(1),
        ),
    ] {
        assert_eq!(decode(&[bytes], 1500).1, Some(error));
    }
    assert_eq!(Identity::new(&"x".repeat(129)), None);
    assert_eq!(Identity::new("a b"), None);
}

#[test]
fn truncated_control_message_is_an_error() {
    for control in controls() {
        let whole = encode(&control);
        for len in 1..whole.len() - 2 {
            let frame = [&[0x40, len as u8], &whole[2..2 + len]].concat();
            let (_, error) = decode(&[&frame], 1500);
            assert_eq!(
                error,
                Some(FrameError::Control(whole[2])),
                "{control:?} {len}"
            );
        }
    }
}

#[test]
fn frame_within_a_chunk_is_not_copied() {
    let stream = [0, 3, 1, 2, 3, 0, 1];
    let mut decoder = Decoder::new(1500);
    let mut input = &stream[..];
    let Ok(Some(Frame::Datagram(datagram))) = decoder.next(&mut input) else {
        panic!("no datagram");
    };
    assert!(std::ptr::eq(datagram, &stream[2..5]));
    assert_eq!(decoder.next(&mut input), Ok(None));
    assert_eq!(decoder.pending(), 2);
}

fn any_frame() -> impl Strategy<Value = (Owned, Vec<u8>)> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..2000).prop_map(|datagram| {
            let bytes = [&header(datagram.len()).unwrap()[..], &datagram].concat();
            (Owned::Datagram(datagram), bytes)
        }),
        prop::sample::select(controls()).prop_map(|control| {
            let bytes = encode(&control).to_vec();
            (Frame::Control(control).into(), bytes)
        }),
    ]
}

/// Cuts `bytes` at the places that `cuts` pick.
fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn stream_cut_anywhere_has_the_same_frames(
        frames in prop::collection::vec(any_frame(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (sent, bytes): (Vec<Owned>, Vec<Vec<u8>>) = frames.into_iter().unzip();
        let bytes = bytes.concat();
        let (received, error) = decode(&cut(&bytes, &cuts), MAX_LEN);
        prop_assert_eq!(error, None);
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn garbage_cut_anywhere_reads_the_same(
        bytes in prop::collection::vec(prop_oneof![0_u8..8, any::<u8>()], 0..300),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        prop_assert_eq!(decode(&cut(&bytes, &cuts), 600), decode(&[&bytes], 600));
    }
}
