//! What a message of a handover must hold to: no panic, what it holds is all that came, and it reads back.
//!
//! ```text
//! fuzz_targets/handover.rs ───(exploring)──┬──▶ message
//! crates/serve/tests/replay.rs ────────────┘
//! ```
//!
//! An input is one frame.

pub(crate) fn message(input: &[u8]) {
    let Some(written) = serve::parse_message(input) else {
        return;
    };
    assert_eq!(serve::parse_message(&written), Some(written.clone()));
}
