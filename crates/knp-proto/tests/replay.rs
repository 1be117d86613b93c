//! Replays the committed fuzz corpus on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/packets.rs"]
mod packets;

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

/// Takes every file of the corpus, its first half, and it twice.
#[test]
fn streams_that_were_found() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora/knp_stream");
    let mut files: Vec<_> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() > 10, "{} files", files.len());
    for file in files {
        let input = fs::read(&file).unwrap();
        println!("{}: {} bytes", file.display(), input.len()); // shown when the body panics
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
