//! Replays the committed fuzz corpora on the stable toolchain, as part of every test run.

use std::{fs, path::PathBuf};

#[path = "../../../fuzz/bodies.rs"]
mod bodies;

#[test]
fn client_hello() {
    replay("client_hello", bodies::client_hello);
}

#[test]
fn proxy_header() {
    replay("proxy_header", bodies::proxy_header);
}

#[test]
fn connect_head() {
    replay("connect_head", bodies::connect_head);
}

#[test]
fn response_head() {
    replay("response_head", bodies::response_head);
}

/// Runs `body` on every file of the target's corpus, on its prefixes of half length, and with
/// bytes behind it.
#[expect(
    clippy::print_stdout,
    reason = "names the file that fails; captured otherwise"
)]
fn replay(target: &str, body: fn(&[u8])) {
    let corpora = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora");
    let mut files: Vec<_> = fs::read_dir(corpora.join(target))
        .unwrap_or_else(|error| panic!("corpus of {target}: {error}"))
        .map(|entry| {
            entry
                .unwrap_or_else(|error| panic!("corpus of {target}: {error}"))
                .path()
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus of {target} is empty");
    for file in files {
        let input = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("{}: {} bytes", file.display(), input.len()); // shown when the body panics
        body(&input);
        body(&input[..input.len() / 2]);
        body(&[&input[..], b"\x17\x03\x03 behind"].concat());
    }
}
