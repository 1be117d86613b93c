//! Replays the committed fuzz corpus of handovers on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/handovers.rs"]
mod handovers;

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

/// Returns the files of the corpus, sorted.
fn corpus() -> Vec<PathBuf> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora/handover");
    let files = fs::read_dir(corpus).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Takes every file of the corpus, cut anywhere too; all but those that say so are read.
#[test]
fn messages_that_were_found() {
    let files = corpus();
    assert!(files.len() > 5, "{} files", files.len());
    for file in files {
        let input = fs::read(&file).unwrap();
        println!("{}: {} bytes", file.display(), input.len()); // shown when the body panics
        let name = file.file_name().unwrap().to_str().unwrap();
        let is_read = serve::parse_message(&input).is_some();
        assert_eq!(is_read, !name.starts_with("refused"), "{name}");
        for end in 0..=input.len() {
            handovers::message(&input[..end]);
        }
    }
}

proptest! {
    /// Changes some bytes of a file, and mostly has its lengths fit again, so that more than a head is looked at.
    #[test]
    fn messages_that_are_damaged(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 0..6),
        fits in prop::bool::weighted(0.9),
        tail in 0_usize..8,
    ) {
        let mut input = fs::read(file.get(&corpus())).unwrap();
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
