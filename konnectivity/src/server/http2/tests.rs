//! Connections whose clients say nothing more, or never spoke HTTP/2.

use std::future::pending;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::pump::Liveness;

const PARAMS: Params = Params {
    stream_window: 10_000,
    connection_window: 100_000,
    max_frame: 20_000,
    max_streams: 30,
    max_head: 1000,
    max_copied: 4095,
    header_table: 0,
    send_buffer: 20_000,
};
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const LIMIT: Duration = Duration::from_secs(1);

/// Serves a client that sends these bytes until the connection ends or `cut` is ready, and returns
/// what it reads until the server closes.
async fn answer(sent: &[u8], cut: impl Future) -> (Result<(), Option<End>>, Vec<u8>) {
    let (mut near, far) = duplex(10_000);
    near.write_all(sent).await.unwrap();
    let watch = Watch::new(Liveness {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
    });
    let host = (Scratch::default(), watch);
    let ends = (pending::<()>(), cut);
    let served = serve(far, PARAMS, host, |_, _| async {}, LIMIT, ends);
    let mut bytes = Vec::new();
    let (served, read) = tokio::join!(served, near.read_to_end(&mut bytes));
    read.unwrap();
    (served, bytes)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_silent_is_given_up() {
    let (served, answer) = answer(BEGIN, pending::<()>()).await;
    served.unwrap();
    // It was asked.
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0];
    assert!(answer.windows(9).any(|bytes| bytes == ping));
}

#[tokio::test]
async fn a_connection_that_is_cut_says_goodbye() {
    let (served, answer) = answer(BEGIN, std::future::ready(())).await;
    served.unwrap();
    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(answer.ends_with(&goaway));
}

#[tokio::test(start_paused = true)]
async fn client_without_preface_is_not_served() {
    let (served, _) = answer(b"CONNECT a:1 HTTP/1.1\r\n\r\n", pending::<()>()).await;
    assert!(matches!(served, Err(Some(End::Protocol(_)))), "{served:?}");
    let (served, _) = answer(&BEGIN[..20], pending::<()>()).await;
    assert!(matches!(served, Err(None)), "{served:?}");
}
