//! Explores streams of konnectivity packets; the body is shared with the replay test.
#![no_main]

#[path = "../packets.rs"]
mod packets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| packets::stream(input));
