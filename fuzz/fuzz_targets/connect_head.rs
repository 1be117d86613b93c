//! Explores the parser of a HTTP CONNECT request head; the body is shared with the replay test.
#![no_main]

#[path = "../bodies.rs"]
#[expect(dead_code, reason = "one file serves all targets")]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::connect_head(input));
