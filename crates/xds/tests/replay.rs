//! Replays the committed fuzz corpus on the stable toolchain, as part of every test run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/resources.rs"]
mod resources;

/// Decodes every file of the corpus, its first half, and it with trailing bytes.
#[test]
fn resources_that_were_found() {
    for (_, input) in corpus::files("xds") {
        resources::resource(&input);
        resources::resource(&input[..input.len() / 2]);
        resources::resource(&[&input[..], b"\x1a\x02 behind"].concat());
    }
}
