//! Replays the committed fuzz corpus of handovers on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/handovers.rs"]
mod handovers;

use std::fs;
use std::path::PathBuf;

/// Takes every file of the corpus, cut anywhere too; all but those that say so are read.
#[test]
fn messages_that_were_found() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora/handover");
    let mut files: Vec<_> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
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
