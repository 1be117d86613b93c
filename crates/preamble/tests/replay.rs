//! Replays the committed fuzz corpora on the stable toolchain, as part of every test run.

#[path = "../../../fuzz/bodies.rs"]
mod bodies;
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

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
fn replay(target: &str, body: fn(&[u8])) {
    for (_, input) in corpus::files(target) {
        body(&input);
        body(&input[..input.len() / 2]);
        body(&[&input[..], b"\x17\x03\x03 behind"].concat());
    }
}
