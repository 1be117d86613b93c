//! Whatever a client sends, in whatever pieces: the connection ends, and what was answered is HTTP.

use connect::{Params, Refusal};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::doubles::{Double, Plan, talk, talk_and_end};

/// Bytes, and words that lead further than bytes do.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "CONNECT a:1 HTTP/1.1\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\n",
        "CONNECT ",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a:1/ HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Host: a\r\n",
        "Content-Length: 1\r\n",
        "\r\n",
        "\n",
        " HTTP/1.0",
    ]);
    prop_oneof![
        words.prop_map(|word| word.as_bytes().to_vec()),
        vec(any::<u8>(), 0..48),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_input_ends_and_is_answered_in_http(pieces in vec(piece(), 0..12), ends in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let refusal = Refusal::new(502, "refused", "connection refused");
        let dial = Double::new(Plan::Refuse(refusal));
        let params = Params { head_bytes: 256, ..Params::default() };
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let (outcome, answer) = if ends {
            runtime.block_on(talk_and_end(&dial, &params, &pieces))
        } else {
            runtime.block_on(talk(&dial, &params, &pieces))
        };
        prop_assert!(dial.targets().len() <= 1);
        prop_assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer:?}");
        prop_assert_eq!(answer.contains(" 405 "), outcome.other_requests > 0);
        let answers = answer.matches("HTTP/1.").count();
        prop_assert!(outcome.status.is_some() == (answers > 0), "{outcome:?} {answer:?}");
    }
}
