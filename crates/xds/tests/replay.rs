//! Replays the committed fuzz corpus on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/resources.rs"]
mod resources;

use std::fs;
use std::path::PathBuf;

/// Decodes every file of the corpus, its first half, and it with trailing bytes.
#[test]
fn resources_that_were_found() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora/xds");
    let mut files: Vec<_> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() > 10, "{} files", files.len());
    for file in files {
        let input = fs::read(&file).unwrap();
        println!("{}: {} bytes", file.display(), input.len()); // shown when the body panics
        resources::resource(&input);
        resources::resource(&input[..input.len() / 2]);
        resources::resource(&[&input[..], b"\x1a\x02 behind"].concat());
    }
}
