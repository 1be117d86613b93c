//! What a connection does, frame by frame.

mod errors;
mod flow;
mod life;

use bytes::Bytes;

use super::*;
use crate::hpack;
use crate::reader::*;

pub(super) const PARAMS: Params = Params {
    stream_window: 1000,
    connection_window: 100_000,
    max_frame: 20_000,
    max_streams: 10,
    max_head: 1000,
    max_copied: 4095,
    header_table: 0,
    send_buffer: 50_000,
};

/// A frame as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    [&head(len, kind, flags, stream)[..], payload].concat()
}

pub(super) fn settings(id: u16, value: u32) -> Vec<u8> {
    let payload = [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &payload)
}

pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        hpack::encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

/// The first of a connection: there is to be no table.
pub(super) fn first_block(fields: &[(&str, &str)]) -> Vec<u8> {
    [&[0x20][..], &block(fields)].concat()
}

pub(super) const POST: [(&str, &str); 3] =
    [(":method", "POST"), (":scheme", "http"), (":path", "/a")];

pub(super) fn request(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, &block(&POST))
}

pub(super) fn preface() -> Vec<u8> {
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
}

/// A connection whose client has begun, and has been told what there is to tell.
pub(super) fn begun() -> Connection {
    let mut connection = Connection::new(PARAMS);
    let begin = [preface(), frame(SETTINGS, 0, 0, &[])].concat();
    connection.handle_input(begin.into()).unwrap();
    sent(&mut connection);
    connection
}

/// The same with streams 1, 3 …
pub(super) fn with_streams(count: u32) -> Connection {
    let mut connection = begun();
    for at in 0..count {
        feed(&mut connection, &request(at * 2 + 1, 0)).unwrap();
        let id = StreamId(at * 2 + 1);
        assert!(matches!(connection.poll_event(), Some(Event::Request(found, _)) if found == id));
        connection.respond(id, &[(b":status", b"200")], false);
    }
    sent(&mut connection);
    connection
}

pub(super) fn feed(connection: &mut Connection, bytes: &[u8]) -> Result<(), ConnectionError> {
    connection.handle_input(Bytes::copy_from_slice(bytes))
}

/// Writes everything, and returns it.
pub(super) fn sent(connection: &mut Connection) -> Vec<Sent> {
    let mut bytes = Vec::new();
    loop {
        let output = connection.transmit();
        if output.is_empty() {
            break;
        }
        let mut slices = [std::io::IoSlice::new(&[]); 16];
        let count = output.slices(&mut slices);
        let written: Vec<u8> = slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        bytes.extend_from_slice(&written);
        connection.written(written.len());
    }
    frames(&bytes)
}

pub(super) fn frames(mut bytes: &[u8]) -> Vec<Sent> {
    let mut frames = Vec::new();
    while let Some((&[a, b, c, kind, flags, ref stream @ ..], rest)) =
        bytes.split_first_chunk::<9>()
    {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let (payload, rest) = rest.split_at(len);
        bytes = rest;
        frames.push(Sent {
            kind,
            flags,
            stream: u32::from_be_bytes(*stream),
            payload: payload.to_vec(),
        });
    }
    assert!(bytes.is_empty());
    frames
}

pub(super) fn kinds(frames: &[Sent]) -> Vec<(u8, u32)> {
    frames
        .iter()
        .map(|frame| (frame.kind, frame.stream))
        .collect()
}
