//! Explores what another process may say in a handover; the body is shared with the replay test.
#![no_main]

#[path = "../handovers.rs"]
mod handovers;

libfuzzer_sys::fuzz_target!(|input: &[u8]| handovers::message(input));
