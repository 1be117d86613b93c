//! Explores the decoding of a control plane's resources; the body is shared with the replay test.
#![no_main]

#[path = "../resources.rs"]
mod resources;

libfuzzer_sys::fuzz_target!(|input: &[u8]| resources::resource(input));
