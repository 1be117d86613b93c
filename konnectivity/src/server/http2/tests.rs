//! Connections with clients that behave, and with some that do not.

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinSet;

use super::*;
use crate::pump::Liveness;

const PARAMS: Params = Params {
    stream_window: 10_000,
    connection_window: 100_000,
    max_frame: 20_000,
    max_streams: 30,
    max_head: 1000,
    send_buffer: 20_000,
};
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn watch() -> Watch {
    Watch::new(Liveness {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
    })
}

/// Serves until the connection ends or `cut` is ready; every stream sends back what it gets.
async fn serve(io: DuplexStream, cut: impl Future) {
    let mut server = Server::new(io, PARAMS, Scratch::default(), watch(), |stream, _| {
        echo(stream)
    });
    server.begun().await.unwrap();
    server.run(cut).await;
}

async fn echo(stream: Stream) {
    stream.respond(&[(b":status", b"200")], false);
    loop {
        match poll_fn(|cx| stream.poll_read(cx)).await {
            Ok(Read::Data(bytes)) => {
                stream.consumed(bytes.len());
                if poll_fn(|cx| stream.poll_ready(cx)).await.is_err() {
                    return;
                }
                stream.send(b"", bytes).unwrap();
            }
            Ok(Read::End) => return stream.end(&[(b"grpc-status", b"0")]),
            Err(_) => return,
        }
    }
}

/// Serves a client that sends these bytes, and returns what it reads until the server closes.
async fn answer(sent: &[u8], cut: impl Future) -> Vec<u8> {
    let (mut near, far) = duplex(10_000);
    near.write_all(sent).await.unwrap();
    serve(far, cut).await;
    let mut bytes = Vec::new();
    near.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn streams_of_connection_are_concurrent() {
    let (near, far) = duplex(3000);
    let client = async {
        let (client, connection) = h2::client::handshake(near).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut calls = JoinSet::new();
        for _ in 0..25 {
            calls.spawn(call(client.clone()));
        }
        while let Some(called) = calls.join_next().await {
            called.unwrap();
        }
        drop(client);
        connection.await.unwrap().unwrap();
    };
    tokio::join!(client, serve(far, std::future::pending::<()>()));
}

/// Sends more than any window holds, and reads it back.
async fn call(client: h2::client::SendRequest<Bytes>) {
    let mut client = client.ready().await.unwrap();
    let request = http::Request::post("http://any/").body(()).unwrap();
    let (response, mut send) = client.send_request(request, false).unwrap();
    let sent: Bytes = (0..90_000u32).map(|at| at.to_le_bytes()[1]).collect();
    send.send_data(sent.clone(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let mut got = BytesMut::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.unwrap();
        body.flow_control().release_capacity(bytes.len()).unwrap();
        got.extend_from_slice(&bytes);
    }
    assert_eq!(got, sent);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_silent_is_given_up() {
    let answer = answer(BEGIN, std::future::pending::<()>()).await;
    // It was asked.
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0];
    assert!(answer.windows(9).any(|bytes| bytes == ping));
}

#[tokio::test]
async fn a_client_is_told_what_it_did_wrong() {
    let push = [0, 0, 0, 5, 4, 0, 0, 0, 1];
    let answer = answer(&[BEGIN, &push].concat(), std::future::pending::<()>()).await;
    let goaway = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert!(answer.windows(14).any(|bytes| bytes == goaway));
}

#[tokio::test]
async fn a_connection_that_is_cut_says_goodbye() {
    let answer = answer(BEGIN, std::future::ready(())).await;
    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(answer.ends_with(&goaway));
}

#[tokio::test]
async fn non_http2_agent_is_not_served() {
    let (mut near, far) = duplex(10_000);
    near.write_all(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    let mut server = Server::new(far, PARAMS, Scratch::default(), watch(), |stream, _| {
        echo(stream)
    });
    assert!(matches!(server.begun().await, Err(End::Protocol(_))));
}
