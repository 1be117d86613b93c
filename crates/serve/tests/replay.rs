//! Replays the committed fuzz corpus of handovers on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/handovers.rs"]
mod handovers;

use std::sync::LazyLock;

use proptest::prelude::*;

/// Takes every file of the corpus, cut anywhere too; all but those that say so are read.
#[test]
fn messages_that_were_found() {
    for (name, input) in corpus::files("handover") {
        let is_read = serve::parse_message(&input).is_some();
        assert_eq!(is_read, !name.starts_with("refused"), "{name}");
        for end in 0..=input.len() {
            handovers::message(&input[..end]);
        }
    }
}

static FILES: LazyLock<Vec<(String, Vec<u8>)>> =
    LazyLock::new(|| corpus::files("handover").collect());

proptest! {
    /// Changes some bytes of a file, and mostly has its lengths fit again, so that more than a head is looked at.
    #[test]
    fn messages_that_are_damaged(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 0..6),
        fits in prop::bool::weighted(0.9),
        tail in 0_usize..8,
    ) {
        let (name, mut input) = file.get(&FILES).clone();
        println!("{name}"); // shown when it fails
        for (at, byte, what) in changes {
            let at = at.index(input.len());
            match what {
                0 => input[at] = byte,
                1 => input.insert(at, byte),
                _ => drop(input.remove(at)),
            }
        }
        let json = input.len().saturating_sub(12 + tail);
        if fits && input.len() >= 12 + tail {
            input[..4].copy_from_slice(&u32::try_from(json).unwrap().to_be_bytes());
            input[4..8].copy_from_slice(&u32::try_from(tail).unwrap().to_be_bytes());
        }
        handovers::message(&input);
    }
}
