//! Replays the committed fuzz corpora of terminating routes on the stable toolchain, and each with every byte changed.

use std::path::PathBuf;

#[path = "../../../fuzz/requests.rs"]
mod requests;

#[test]
fn requests_that_were_found() {
    replay("request", requests::request);
}

#[test]
fn subjects_that_were_found() {
    replay("subject", requests::subject);
}

#[expect(
    clippy::print_stdout,
    reason = "names the file that fails; captured otherwise"
)]
fn replay(target: &str, body: fn(&[u8])) {
    let corpora = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpora");
    let files = std::fs::read_dir(corpora.join(target)).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "{} files", files.len());
    for file in files {
        let input = std::fs::read(&file).unwrap();
        println!("{}", file.display());
        body(&input);
        for at in 0..input.len() {
            let mut changed = input.clone();
            for byte in [0, b'\n', b'_', input[at] ^ 1] {
                changed[at] = byte;
                body(&changed);
            }
            body(&input[..at]);
        }
    }
}
