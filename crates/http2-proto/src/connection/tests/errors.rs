//! What RFC 9113 calls errors, each with its consequence.

use super::*;

/// Feeds `bytes` to a connection with stream 1, and returns the code of the GOAWAY.
fn fatal(bytes: &[u8]) -> ErrorCode {
    let mut connection = with_streams(1);
    let error = feed(&mut connection, bytes).expect_err("taken");
    let last = sent(&mut connection).pop().unwrap();
    assert_eq!(last.kind, GOAWAY, "{error}");
    assert_eq!(
        last.payload[..8],
        [&1u32.to_be_bytes()[..], &error.code.0.to_be_bytes()].concat()
    );
    let end = StreamEnd::Broken(error.code);
    assert_eq!(connection.end_of(StreamId(1)), Some(end));
    // And nothing more is taken.
    feed(&mut connection, &frame(PING, 0, 0, &[0; 8])).unwrap();
    assert!(sent(&mut connection).is_empty());
    error.code
}

#[test]
fn frames_that_cannot_be_end_the_connection() {
    let continued = frame(HEADERS, 0, 3, &block(&POST));
    for (what, bytes, code) in [
        (
            "data of no stream",
            frame(DATA, 0, 0, b"x"),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "data of a stream to come",
            frame(DATA, 0, 3, b"x"),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "headers of no stream",
            request(0, 0),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "headers of a server's stream",
            request(2, 0),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a reset to come",
            frame(RST_STREAM, 0, 3, &[0; 4]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a reset of no stream",
            frame(RST_STREAM, 0, 0, &[0; 4]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a window to come",
            frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a window of nothing",
            frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a push",
            frame(5, END_HEADERS, 1, &[0; 8]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a continuation of nothing",
            frame(9, END_HEADERS, 1, &[]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a ping of a stream",
            frame(PING, 0, 1, &[0; 8]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "settings of a stream",
            frame(SETTINGS, 0, 1, &[]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a goaway of a stream",
            frame(GOAWAY, 0, 1, &[0; 8]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a priority of no stream",
            frame(2, 0, 0, &[0; 5]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "push as a number",
            settings(2, 2),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "small frames",
            settings(5, 16_383),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "large frames",
            settings(5, 1 << 24),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "a large window",
            settings(4, 1 << 31),
            ErrorCode::FLOW_CONTROL_ERROR,
        ),
        (
            "padding alone and more",
            frame(DATA, 8, 1, &[3, 0, 0]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "padding over headers",
            frame(HEADERS, 0xc, 3, &[9, 0x83]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "headers without their padding",
            frame(HEADERS, 0xc, 3, &[]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "headers too short for a priority",
            frame(HEADERS, 0x24, 3, &[0; 4]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "settings of five bytes",
            frame(SETTINGS, 0, 0, &[0; 5]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "settings agreed to and more",
            frame(SETTINGS, ACK, 0, &[0; 6]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a short ping",
            frame(PING, 0, 0, &[0; 7]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a short reset",
            frame(RST_STREAM, 0, 1, &[0; 3]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a long window",
            frame(WINDOW_UPDATE, 0, 1, &[0; 5]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a short priority",
            frame(2, 0, 1, &[0; 4]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a short goaway",
            frame(GOAWAY, 0, 0, &[0; 7]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a long frame",
            frame(DATA, 0, 1, &[0; 20_001]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        (
            "a frame within headers",
            [&continued[..], &frame(PING, 0, 0, &[0; 8])].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "headers within headers",
            [&continued[..], &request(5, 0)].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "another's continuation",
            [&continued[..], &frame(9, 4, 1, &[])].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "no such header",
            frame(HEADERS, 4, 3, &[0xbe]),
            ErrorCode::COMPRESSION_ERROR,
        ),
        (
            "headers that end too soon",
            frame(HEADERS, 4, 3, &[0x40]),
            ErrorCode::COMPRESSION_ERROR,
        ),
    ] {
        assert_eq!(fatal(&bytes), code, "{what}");
    }
}

#[test]
fn agreeing_twice_ends_the_connection() {
    let ack = frame(SETTINGS, ACK, 0, &[]);
    assert_eq!(fatal(&[&ack[..], &ack].concat()), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn abandoned_header_table_is_not_used() {
    let ack = frame(SETTINGS, ACK, 0, &[]);
    let indexed = frame(HEADERS, END_HEADERS, 3, &[0x83, 0x86, 0x84]);
    assert_eq!(
        fatal(&[&ack[..], &indexed].concat()),
        ErrorCode::COMPRESSION_ERROR
    );
    let confirmed = frame(HEADERS, END_HEADERS, 3, &[0x20, 0x83, 0x86, 0x84]);
    let mut connection = begun();
    feed(&mut connection, &[&ack[..], &confirmed].concat()).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Request(..))));
}

#[test]
fn non_http2_preface_is_not_answered() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rx",
    ] {
        let mut connection = Connection::new(PARAMS);
        let error = feed(&mut connection, bytes).unwrap_err();
        assert_eq!(error.code, ErrorCode::PROTOCOL_ERROR);
        assert!(!connection.is_begun());
        let kinds = kinds(&sent(&mut connection));
        assert_eq!(kinds, [(SETTINGS, 0), (WINDOW_UPDATE, 0)]);
    }
}

#[test]
fn settings_come_first() {
    for first in [
        frame(PING, 0, 0, &[0; 8]),
        frame(SETTINGS, ACK, 0, &[]),
        request(1, 0),
    ] {
        let mut connection = Connection::new(PARAMS);
        let error = feed(&mut connection, &[preface(), first].concat()).unwrap_err();
        assert_eq!(error.code, ErrorCode::PROTOCOL_ERROR);
    }
}

/// Feeds `bytes` to a connection with stream 1, and returns stream and code of the reset.
fn reset(bytes: &[u8]) -> (u32, ErrorCode) {
    let mut connection = with_streams(1);
    feed(&mut connection, bytes).unwrap();
    let resets: Vec<Sent> = sent(&mut connection)
        .into_iter()
        .filter(|frame| frame.kind == RST_STREAM)
        .collect();
    let [reset] = &resets[..] else {
        panic!("{resets:?}")
    };
    let code = u32::from_be_bytes(reset.payload[..].try_into().unwrap());
    (reset.stream, ErrorCode(code))
}

#[test]
fn stream_error_ends_that_stream_only() {
    let end = frame(DATA, END_STREAM, 1, b"x");
    let far = frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]);
    let head = |fields: &[(&str, &str)]| frame(HEADERS, END_HEADERS, 3, &block(fields));
    for (what, bytes, answer) in [
        (
            "data behind the end",
            [&end[..], &end].concat(),
            (1, ErrorCode::STREAM_CLOSED),
        ),
        (
            "headers behind the end",
            [&end[..], &request(1, 1)].concat(),
            (1, ErrorCode::STREAM_CLOSED),
        ),
        (
            "trailers that end nothing",
            request(1, 0),
            (1, ErrorCode::PROTOCOL_ERROR),
        ),
        (
            "trailers with a path",
            request(1, END_STREAM),
            (1, ErrorCode::PROTOCOL_ERROR),
        ),
        (
            "a window of nothing",
            frame(WINDOW_UPDATE, 0, 1, &[0; 4]),
            (1, ErrorCode::PROTOCOL_ERROR),
        ),
        ("a window too wide", far, (1, ErrorCode::FLOW_CONTROL_ERROR)),
        (
            "more than the window",
            frame(DATA, 0, 1, &[0; 1001]),
            (1, ErrorCode::FLOW_CONTROL_ERROR),
        ),
        ("no path", head(&POST[..2]), (3, ErrorCode::PROTOCOL_ERROR)),
    ] {
        assert_eq!(reset(&bytes), answer, "{what}");
    }
}

#[test]
fn a_head_that_is_too_large_is_answered() {
    let long = "x".repeat(980);
    let fields = [&POST[..], &[("long", &long)]].concat();
    let mut connection = begun();
    feed(
        &mut connection,
        &frame(HEADERS, END_HEADERS, 1, &block(&fields)),
    )
    .unwrap();
    let sent = sent(&mut connection);
    assert_eq!(kinds(&sent), [(HEADERS, 1), (RST_STREAM, 1)]);
    assert_eq!(sent[0].payload, first_block(&[(":status", "431")]));
    assert_eq!((connection.poll_event(), connection.streams()), (None, 0));
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut connection = with_streams(10);
    feed(&mut connection, &request(21, 0)).unwrap();
    let [refused] = &sent(&mut connection)[..] else {
        panic!("not one frame")
    };
    assert_eq!((refused.kind, refused.stream), (RST_STREAM, 21));
    assert_eq!(refused.payload, ErrorCode::REFUSED_STREAM.0.to_be_bytes());
    // One that is over makes room.
    feed(&mut connection, &frame(RST_STREAM, 0, 1, &[0; 4])).unwrap();
    feed(&mut connection, &request(23, 0)).unwrap();
    assert!(sent(&mut connection).is_empty());
}

fn calm(bytes: &[u8], times: usize) {
    let mut connection = with_streams(1);
    let error = feed(&mut connection, &bytes.repeat(times)).unwrap_err();
    assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn floods_end_the_connection() {
    calm(&frame(PING, 0, 0, &[0; 8]), 4000);
    calm(&settings(4, 1), 1001);
    let mut endless = frame(HEADERS, 0, 3, &[]);
    endless.extend(frame(9, 0, 3, &[]).repeat(64));
    calm(&endless, 1);
    let mut long = frame(HEADERS, 0, 3, &[0; 600]);
    long.extend(frame(9, 0, 3, &[0; 600]));
    calm(&long, 1);
}

#[test]
fn rapid_resets_end_connection() {
    let mut connection = begun();
    let mut bytes = Vec::new();
    for at in 0..102 {
        bytes.extend(request(at * 2 + 1, 0));
        bytes.extend(frame(RST_STREAM, 0, at * 2 + 1, &[0, 0, 0, 8]));
    }
    let error = feed(&mut connection, &bytes).unwrap_err();
    assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM);
    // The caller need not look at any of them.
    assert_eq!((connection.poll_event(), connection.streams()), (None, 0));
}

#[test]
fn resets_after_answer_are_free() {
    let mut connection = begun();
    for at in 0..1000 {
        let id = StreamId(at * 2 + 1);
        feed(&mut connection, &request(id.0, 0)).unwrap();
        assert!(matches!(connection.poll_event(), Some(Event::Request(..))));
        connection.respond(id, &[(b":status", b"200")], false);
        feed(&mut connection, &frame(RST_STREAM, 0, id.0, &[0, 0, 0, 8])).unwrap();
        let end = StreamEnd::Reset(ErrorCode::CANCEL);
        assert_eq!(connection.read(id), Err(end));
        connection.release(id);
        sent(&mut connection);
    }
    assert_eq!(connection.streams(), 0);
}

/// Begins the next stream, and returns it once its owner has it.
fn next_stream(connection: &mut Connection, at: u32, flags: u8) -> StreamId {
    let id = StreamId(at * 2 + 1);
    feed(connection, &request(id.0, flags)).unwrap();
    let event = connection.poll_event();
    assert!(matches!(event, Some(Event::Request(found, _)) if found == id));
    id
}

/// A client that reads nothing: what it begins and resets is nowhere remembered.
#[test]
fn reset_streams_are_forgotten_while_nothing_is_written() {
    let mut connection = with_streams(1);
    let much = Bytes::from(vec![7; PARAMS.send_buffer + 1]);
    connection.send(StreamId(1), b"", much).unwrap();
    connection.transmit();
    for at in 1..1000 {
        let id = next_stream(&mut connection, at, END_STREAM);
        connection.respond(id, &[(b":status", b"400")], false);
        connection.send(id, b"", Bytes::from_static(b"a")).unwrap();
        assert_eq!(connection.capacity(id), Ok(0));
        feed(&mut connection, &frame(RST_STREAM, 0, id.0, &[0, 0, 0, 8])).unwrap();
        assert_eq!(connection.poll_event(), Some(Event::Changed(id)));
        connection.release(id);
        let lists = [&connection.queue, &connection.blocked].map(VecDeque::len);
        assert!(lists.iter().sum::<usize>() + connection.crowd.len() <= 1);
        connection.control.clear();
    }
}

#[test]
fn frames_without_payload_end_the_connection() {
    let empty = frame(DATA, 0, 1, b"");
    assert_eq!(fatal(&empty.repeat(1001)), ErrorCode::ENHANCE_YOUR_CALM);
    // As many bodies that are empty do not.
    let mut connection = begun();
    for at in 0..3000 {
        let id = next_stream(&mut connection, at, 0);
        feed(&mut connection, &frame(DATA, END_STREAM, id.0, b"")).unwrap();
        assert_eq!(connection.read(id), Ok(Some(Read::End)));
        connection.respond(id, &[(b":status", b"200")], true);
        connection.release(id);
        sent(&mut connection);
    }
    assert_eq!(connection.streams(), 0);
}

#[test]
fn goaway_never_names_a_later_stream() {
    let mut connection = with_streams(1);
    connection.go_away();
    feed(&mut connection, &request(3, 0)).unwrap();
    feed(&mut connection, &frame(PING, 0, 1, &[0; 8])).unwrap_err();
    let sent = sent(&mut connection);
    let goaways: Vec<_> = sent.iter().filter(|own| own.kind == GOAWAY).collect();
    let last = goaways.iter().map(|own| own.payload[..4].to_vec());
    assert_eq!(last.collect::<Vec<_>>(), [[0, 0, 0, 1]; 2]);
}

/// A few thousand bytes that stand for some millions.
#[test]
fn block_that_unpacks_to_far_too_much_ends_the_connection() {
    let mut bomb = block(&POST);
    // A name of 4,000 bytes that is indexed, and then used with another value each time.
    bomb.push(0x40);
    let name = "a".repeat(3_900);
    bomb.extend(&block(&[(&name, "")])[1..]);
    for _ in 0..5000 {
        bomb.extend([0x7e, 0]);
    }
    let params = Params {
        max_head: 16_000,
        ..PARAMS
    };
    let mut connection = Connection::new(params);
    let whole = frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb);
    let begin = [preface(), frame(SETTINGS, 0, 0, &[]), whole].concat();
    let error = feed(&mut connection, &begin).unwrap_err();
    assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn body_is_as_long_as_it_was_said() {
    let head = [&POST[..], &[("content-length", "5")]].concat();
    let head = |flags| frame(HEADERS, END_HEADERS | flags, 1, &block(&head));
    let data = |flags, bytes: &[u8]| frame(DATA, flags, 1, bytes);
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("a", "b")]));
    for (sent_frames, whole) in [
        (vec![head(END_STREAM)], false),
        (vec![head(0), data(END_STREAM, b"1234")], false),
        (vec![head(0), data(0, b"123456")], false),
        (vec![head(0), data(0, b"1234"), trailers.clone()], false),
        (vec![head(0), data(0, b"12345"), trailers], true),
        (
            vec![head(0), data(0, b"12"), data(END_STREAM, b"345")],
            true,
        ),
        (
            vec![head(0), data(0, b"12345"), data(END_STREAM, b"")],
            true,
        ),
    ] {
        let mut connection = begun();
        feed(&mut connection, &sent_frames.concat()).unwrap();
        let resets = sent(&mut connection).into_iter();
        let resets: Vec<_> = resets.filter(|own| own.kind == RST_STREAM).collect();
        match whole {
            true => assert_eq!(resets, []),
            false => assert_eq!(resets[0].payload, ErrorCode::PROTOCOL_ERROR.0.to_be_bytes()),
        }
    }
}
