//! Replays the committed fuzz corpus on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/packets.rs"]
mod packets;

use proptest::prelude::*;

/// Takes every file of the corpus, its first half, and it twice.
#[test]
fn streams_that_were_found() {
    for (_, input) in corpus::files("knp_stream") {
        packets::stream(&input);
        packets::stream(&input[..input.len() / 2]);
        packets::stream(&[&input[..], &input[..]].concat());
    }
}

proptest! {
    /// Bytes of no particular meaning, cut into messages.
    #[test]
    fn any_messages(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)) {
        let mut input = Vec::new();
        for message in messages {
            input.push(0);
            input.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            input.extend(message);
        }
        packets::stream(&input);
    }
}
