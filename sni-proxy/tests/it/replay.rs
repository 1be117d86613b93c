//! Replays the committed fuzz corpora of terminating routes on the stable toolchain, and each with every byte changed.

#[path = "../../../fuzz/corpus.rs"]
mod corpus;
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

fn replay(target: &str, body: fn(&[u8])) {
    for (_, input) in corpus::files(target) {
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
