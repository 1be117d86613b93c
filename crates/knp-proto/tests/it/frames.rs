//! Messages on a stream, however it is cut.

use bytes::{BufMut, Bytes, BytesMut};
use knp_proto::frame::{Deframer, FrameError, HEAD, put_head};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = BytesMut::new();
    for message in messages {
        put_head(message.len(), &mut stream);
        stream.put_slice(message);
    }
    stream.to_vec()
}

fn all(deframer: &mut Deframer) -> Vec<Vec<u8>> {
    let messages = std::iter::from_fn(|| deframer.next_message().unwrap());
    messages.map(|message| message.to_vec()).collect()
}

#[test]
fn a_message_within_one_piece_is_not_copied() {
    let piece = Bytes::from(framed(&[vec![7; 100]]));
    let mut deframer = Deframer::new(1000);
    deframer.push(piece.clone());
    let message = deframer.next_message().unwrap().unwrap();
    assert_eq!(message.as_ptr(), piece.slice(HEAD..).as_ptr());
    assert!(deframer.is_empty());
}

#[test]
fn refuses_flags_and_lengths() {
    for (head, error) in [
        ([1, 0, 0, 0, 0], FrameError::Flags(1)),
        ([0, 0, 0, 0, 11], FrameError::TooLong { len: 11, max: 10 }),
    ] {
        let mut deframer = Deframer::new(10);
        deframer.push(Bytes::copy_from_slice(&head));
        assert_eq!(deframer.next_message(), Err(error));
    }
}

proptest! {
    #[test]
    fn how_the_stream_is_cut_does_not_matter(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10),
        cuts in proptest::collection::vec(1usize..20, 1..20),
    ) {
        let stream = Bytes::from(framed(&messages));
        let mut deframer = Deframer::new(40);
        let (mut rest, mut got) = (stream, Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            deframer.push(rest.split_to((*cut).min(rest.len())));
            got.extend(all(&mut deframer));
        }
        prop_assert_eq!(got, messages);
        prop_assert!(deframer.is_empty());
    }

    #[test]
    fn any_bytes_are_an_answer(bytes: Vec<u8>, max in 0usize..100) {
        let mut deframer = Deframer::new(max);
        deframer.push(Bytes::from(bytes));
        while let Ok(Some(_)) = deframer.next_message() {}
    }
}
