//! Explores the cleaning of a request's head; the body is shared with the replay test.
#![no_main]

#[path = "../requests.rs"]
#[expect(dead_code, reason = "one file serves both targets")]
mod requests;

libfuzzer_sys::fuzz_target!(|input: &[u8]| requests::request(input));
