//! The server's core with the client of another implementation, which sends back what it gets.
//!
//! ```text
//!   h2::client ──▶ io::duplex, as narrow as may be ──▶ Connection ──▶ echo
//! ```
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::io::IoSlice;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use http2_proto::{Connection, Event, Params, Read, StreamId};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinSet;

/// What differs from case to case.
#[derive(Clone, Debug)]
struct Case {
    pipe: usize,
    params: Params,
    client_window: u32,
    client_connection_window: u32,
    client_frame: u32,
    client_table: u32,
    /// The pieces that each stream sends.
    streams: Vec<Vec<usize>>,
}

fn case() -> impl Strategy<Value = Case> {
    let pieces = prop::collection::vec(prop_oneof![1usize..50, 1usize..30_000], 0..12);
    let params = (
        1000u32..200_000,
        65_535u32..300_000,
        16_384u32..70_000,
        1000usize..200_000,
        0u32..4096,
    );
    let client = (
        100u32..200_000,
        65_535u32..300_000,
        16_384u32..70_000,
        0u32..5000,
    );
    (
        1usize..100_000,
        params,
        client,
        prop::collection::vec(pieces, 1..6),
    )
        .prop_map(|(pipe, params, client, streams)| Case {
            pipe,
            params: Params {
                stream_window: params.0,
                connection_window: params.1,
                max_frame: params.2,
                max_streams: 3,
                max_head: 10_000,
                max_copied: 4095,
                header_table: params.4,
                send_buffer: params.3,
            },
            client_window: client.0,
            client_connection_window: client.1,
            client_frame: client.2,
            client_table: client.3,
            streams,
        })
}

/// Serves a connection until its end, and lets nothing be left behind.
async fn serve(mut io: DuplexStream, params: Params) {
    let mut connection = Connection::new(params);
    let mut streams: Vec<StreamId> = Vec::new();
    let mut buf = vec![0; 50_000];
    loop {
        write(&mut io, &mut connection).await;
        let len = io.read(&mut buf).await.unwrap_or(0);
        if len == 0 {
            break;
        }
        let bytes = Bytes::copy_from_slice(&buf[..len]);
        connection.handle_input(bytes).unwrap();
        loop {
            while let Some(event) = connection.poll_event() {
                if let Event::Request(id, request) = event {
                    assert_eq!(request.path(), "/echo");
                    assert_eq!(request.header("x-more"), Some(&b"a value"[..]));
                    connection.respond(id, &[(b":status", b"200"), (b"a", b"b")], false);
                    streams.push(id);
                }
            }
            streams.retain(|id| echo(&mut connection, *id));
            if !connection.wants_write() && connection.transmit().is_empty() {
                break;
            }
            write(&mut io, &mut connection).await;
        }
    }
    connection.handle_end();
    for id in streams {
        connection.release(id);
    }
    assert_eq!(connection.streams(), 0);
}

/// Sends back what there is; returns whether the stream goes on.
fn echo(connection: &mut Connection, id: StreamId) -> bool {
    while connection.capacity(id).is_ok_and(|room| room > 0) {
        match connection.read(id) {
            Ok(Some(Read::Data(bytes))) => {
                connection.consumed(id, bytes.len());
                connection.send(id, b"", bytes).unwrap();
            }
            Ok(Some(Read::Trailers(trailers))) => {
                let expected = [(&b"x-last"[..], &b"word"[..])];
                assert!(trailers.iter().eq(expected));
            }
            Ok(Some(Read::End)) => {
                connection.end(id, &[(b"grpc-status", b"0")]);
                connection.release(id);
                return false;
            }
            Ok(None) => return true,
            Err(_) => {
                connection.release(id);
                return false;
            }
        }
    }
    true
}

async fn write(io: &mut DuplexStream, connection: &mut Connection) {
    loop {
        let output = connection.transmit();
        if output.is_empty() {
            return;
        }
        let mut slices = [IoSlice::new(&[]); 8];
        let count = output.slices(&mut slices);
        let len = io.write_vectored(&slices[..count]).await.unwrap_or(0);
        if len == 0 {
            return;
        }
        connection.written(len);
    }
}

/// Sends the pieces while it reads what comes back.
async fn call(client: SendRequest<Bytes>, pieces: Vec<usize>, seed: u8) {
    let request = Request::post("http://any/echo")
        .header("x-more", "a value")
        .body(())
        .unwrap();
    let mut client = client.ready().await.unwrap();
    let (response, mut send) = client.send_request(request, false).unwrap();
    drop(client);
    let byte = |at: usize| (at as u8).wrapping_mul(31).wrapping_add(seed);
    let total: usize = pieces.iter().sum();
    let sending = async {
        let mut at = 0;
        for len in pieces {
            let piece: Bytes = (at..at + len).map(byte).collect();
            at += len;
            send.send_data(piece, false).unwrap();
        }
        if seed.is_multiple_of(2) {
            return send.send_data(Bytes::new(), true).unwrap();
        }
        let trailers = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("x-last"),
            http::HeaderValue::from_static("word"),
        )]);
        send.send_trailers(trailers).unwrap();
    };
    let reading = async {
        let response = response.await.unwrap();
        assert_eq!(response.headers()["a"], "b");
        let mut body = response.into_body();
        let mut at = 0;
        while let Some(bytes) = body.data().await {
            let bytes = bytes.unwrap();
            body.flow_control().release_capacity(bytes.len()).unwrap();
            for found in bytes {
                assert_eq!(found, byte(at), "byte {at}");
                at += 1;
            }
        }
        assert_eq!(at, total);
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
    };
    tokio::join!(sending, reading);
}

async fn run(case: Case) {
    let (near, far) = duplex(case.pipe);
    let server = tokio::spawn(serve(far, case.params));
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(case.client_window)
        .initial_connection_window_size(case.client_connection_window)
        .max_frame_size(case.client_frame)
        .header_table_size(case.client_table)
        .handshake(near)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut calls = JoinSet::new();
    for (seed, pieces) in (0..).zip(case.streams) {
        calls.spawn(call(client.clone(), pieces, seed));
    }
    drop(client);
    while let Some(called) = calls.join_next().await {
        called.unwrap();
    }
    connection.await.unwrap().unwrap();
    server.await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn other_client_gets_its_bytes_back(case in case()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(case));
    }
}
