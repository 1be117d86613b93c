//! Explores connections of HTTP/2 clients; the body is shared with the replay test.
#![no_main]

#[path = "../frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|input: &[u8]| frames::connection(input));
