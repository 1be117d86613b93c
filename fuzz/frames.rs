//! What the HTTP/2 server's core must hold to, as plain functions that panic when it does not.
//!
//! ```text
//! fuzz_targets/http2.rs ─────(exploring)────────┬──▶ connection
//! crates/http2-proto/tests/replay.rs ───────────┘
//! ```
//!
//! An input is what a client sends on one connection, its preface included.

use std::io::IoSlice;

use bytes::Bytes;
use http2_proto::{Connection, Event, Params, Read, StreamId};

const PARAMS: Params = Params {
    stream_window: 1 << 12,
    connection_window: 1 << 17,
    max_frame: 1 << 14,
    max_streams: 4,
    max_head: 1 << 12,
    max_copied: 1023,
    header_table: 4096,
    send_buffer: 1 << 13,
};

/// How the input is cut does not matter; what is answered are frames; what is held is bounded; and
/// nothing is left once all have let go.
pub(crate) fn connection(input: &[u8]) {
    let whole = passive(input, input.len().max(1));
    for piece in [1, 2, 7, 100] {
        assert_eq!(passive(input, piece), whole, "in pieces of {piece}");
    }
    for piece in [1, 13, 1 << 14] {
        active(input, piece);
    }
}

/// What a client brings about with an owner that looks at it in the end.
fn passive(input: &[u8], piece: usize) -> String {
    let mut connection = Connection::new(PARAMS);
    let mut error = None;
    for piece in input.chunks(piece) {
        error = error.or_else(|| connection.handle_input(Bytes::copy_from_slice(piece)).err());
    }
    let mut seen = format!("{error:?}\n");
    let mut streams = Vec::new();
    while let Some(event) = connection.poll_event() {
        seen += &format!("{event:?}\n");
        if let Event::Request(id, _) = event {
            streams.push(id);
        }
    }
    for id in &streams {
        let mut bytes = Vec::new();
        let end = loop {
            match connection.read(*id) {
                Ok(Some(Read::Data(data))) => bytes.extend_from_slice(&data),
                end => break end,
            }
        };
        seen += &format!("{id:?} {bytes:?} {end:?} {:?}\n", connection.end_of(*id));
    }
    seen += &format!("{:?}\n", take_output(&mut connection, usize::MAX));
    close(connection, streams);
    seen
}

/// An owner that sends back what comes, with more of it, and ends what is ended. The client reads
/// little.
fn active(input: &[u8], piece: usize) {
    let mut connection = Connection::new(PARAMS);
    let mut streams = Vec::new();
    let mut written = Vec::new();
    for piece in input.chunks(piece) {
        let broken = connection
            .handle_input(Bytes::copy_from_slice(piece))
            .is_err();
        while let Some(event) = connection.poll_event() {
            match event {
                Event::Request(id, _) => {
                    connection.respond(id, &[(b":status", b"200")], id.0 % 3 == 0);
                    streams.push(id);
                }
                Event::Changed(id) => echo(&mut connection, id),
                Event::Pong => {}
            }
        }
        assert!(streams.len() <= input.len(), "more streams than bytes");
        written.extend(take_output(&mut connection, 1000));
        if broken {
            break;
        }
        connection.ping();
    }
    written.extend(take_output(&mut connection, usize::MAX));
    check_frames(&written);
    close(connection, streams);
}

fn echo(connection: &mut Connection, id: StreamId) {
    while connection.capacity(id).is_ok_and(|room| room > 0) {
        match connection.read(id) {
            Ok(Some(Read::Data(bytes))) => {
                connection.consumed(id, bytes.len());
                let _ = connection.send(id, b"more", bytes);
            }
            Ok(Some(Read::Trailers(_))) => {}
            Ok(Some(Read::End)) => return connection.end(id, &[(b"x", b"y")]),
            Ok(None) | Err(_) => return,
        }
    }
}

fn take_output(connection: &mut Connection, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let output = connection.transmit();
        // One packet for each of four streams, what waits for them, and answers.
        assert!(output.len() < 1 << 18, "{} bytes wait", output.len());
        let mut slices = [IoSlice::new(&[]); 3];
        let count = output.slices(&mut slices);
        let written: Vec<u8> = slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        if written.is_empty() {
            break;
        }
        let len = written.len().min(most - bytes.len());
        bytes.extend_from_slice(&written[..len]);
        connection.written(len);
    }
    bytes
}

/// Whatever was said before, the bytes are whole frames of known kinds.
fn check_frames(mut bytes: &[u8]) {
    while let Some((&[a, b, c, kind, ..], rest)) = bytes.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        assert!(len <= 1 << 14 && len <= rest.len());
        assert!([0, 1, 3, 4, 6, 7, 8].contains(&kind), "frame {kind}");
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty());
}

fn close(mut connection: Connection, streams: Vec<StreamId>) {
    connection.handle_end();
    for id in streams {
        connection.release(id);
    }
    while connection.poll_event().is_some() {}
    assert_eq!(connection.streams(), 0);
}
