//! The life of connections and their streams, when neither end does anything wrong.

use super::*;

#[test]
fn settings_and_windows_come_first() {
    let mut connection = Connection::new(PARAMS);
    let sent = sent(&mut connection);
    assert_eq!(kinds(&sent), [(SETTINGS, 0), (WINDOW_UPDATE, 0)]);
    assert_eq!(
        sent[0].payload[..6],
        [0, 1, 0, 0, 0, 0],
        "no table of headers"
    );
    assert_eq!(sent[1].payload, (100_000u32 - 65_535).to_be_bytes());
}

#[test]
fn a_call_is_answered_and_ended() {
    let mut connection = begun();
    let id = StreamId(1);
    feed(&mut connection, &request(1, 0)).unwrap();
    feed(&mut connection, &frame(DATA, END_STREAM, 1, b"asked")).unwrap();
    let Some(Event::Request(found, request)) = connection.poll_event() else {
        panic!("no request")
    };
    assert_eq!(found, id);
    assert_eq!(request.path(), "/a");
    assert_eq!(
        connection.read(id),
        Ok(Some(Read::Data(Bytes::from_static(b"asked"))))
    );
    assert_eq!(connection.read(id), Ok(Some(Read::End)));
    connection.respond(id, &[(b":status", b"200"), (b"content-type", b"x")], false);
    connection
        .send(id, b"head", Bytes::from(vec![7; 3000]))
        .unwrap();
    connection.end(id, &[(b"grpc-status", b"0")]);
    connection.release(id);
    let frames = sent(&mut connection);
    assert_eq!(kinds(&frames), [(HEADERS, 1), (DATA, 1), (HEADERS, 1)]);
    assert_eq!(
        frames[0].payload,
        first_block(&[(":status", "200"), ("content-type", "x")])
    );
    assert_eq!(frames[1].payload.len(), 3004);
    assert_eq!(frames[2].flags, END_HEADERS | END_STREAM);
    assert_eq!(connection.streams(), 0);
}

#[test]
fn early_response_resets_request_body() {
    let mut connection = with_streams(1);
    connection.end(StreamId(1), &[(b"grpc-status", b"0")]);
    let frames = sent(&mut connection);
    assert_eq!(kinds(&frames), [(HEADERS, 1), (RST_STREAM, 1)]);
    assert_eq!(frames[1].payload, ErrorCode::NO_ERROR.0.to_be_bytes());
    connection.release(StreamId(1));
    assert_eq!(connection.streams(), 0);
}

#[test]
fn sent_bytes_outlive_their_stream() {
    let mut connection = with_streams(1);
    feed(&mut connection, &settings(4, 5)).unwrap();
    sent(&mut connection);
    let id = StreamId(1);
    connection.send(id, b"0123456789", Bytes::new()).unwrap();
    connection.end(id, &[(b"grpc-status", b"0")]);
    connection.release(id);
    assert_eq!(kinds(&sent(&mut connection)), [(DATA, 1)]);
    assert_eq!(connection.streams(), 1);
    feed(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5])).unwrap();
    let kinds = kinds(&sent(&mut connection));
    assert_eq!(kinds, [(DATA, 1), (HEADERS, 1), (RST_STREAM, 1)]);
    assert_eq!(connection.streams(), 0);
}

#[test]
fn a_stream_that_is_let_go_of_is_reset() {
    let mut connection = with_streams(1);
    connection.send(StreamId(1), b"lost", Bytes::new()).unwrap();
    connection.release(StreamId(1));
    let [reset] = &sent(&mut connection)[..] else {
        panic!("not one frame")
    };
    assert_eq!(reset.kind, RST_STREAM);
    assert_eq!(reset.payload, ErrorCode::CANCEL.0.to_be_bytes());
}

#[test]
fn a_reset_comes_behind_what_was_sent_before_it() {
    let mut connection = with_streams(1);
    let id = StreamId(1);
    feed(&mut connection, &frame(DATA, 0, 1, b"before")).unwrap();
    feed(&mut connection, &frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    let end = StreamEnd::Reset(ErrorCode::CANCEL);
    assert_eq!(connection.end_of(id), Some(end));
    assert_eq!(connection.send(id, b"x", Bytes::new()), Err(end));
    assert_eq!(connection.capacity(id), Err(end));
    assert!(matches!(connection.read(id), Ok(Some(Read::Data(_)))));
    assert_eq!(connection.read(id), Err(end));
    connection.release(id);
    assert!(
        sent(&mut connection).is_empty(),
        "a reset is not answered by one"
    );
}

#[test]
fn trailers_end_what_a_client_sends() {
    let mut connection = with_streams(1);
    let trailers = block(&[("x", "y")]);
    let cut = [
        frame(HEADERS, END_STREAM, 1, &trailers[..2]),
        frame(9, END_HEADERS, 1, &trailers[2..]),
    ];
    feed(&mut connection, &cut.concat()).unwrap();
    assert_eq!(connection.poll_event(), Some(Event::Changed(StreamId(1))));
    let read = connection.read(StreamId(1));
    let Ok(Some(Read::Trailers(fields))) = &read else {
        panic!("{read:?}")
    };
    assert!(fields.iter().eq([(&b"x"[..], &b"y"[..])]));
    assert_eq!(connection.read(StreamId(1)), Ok(Some(Read::End)));
}

#[test]
fn unknown_frames_are_ignored() {
    let mut connection = with_streams(1);
    for bytes in [
        frame(2, 0, 1, &[0; 5]),
        frame(2, 0, 99, &[0; 5]),
        frame(0xfa, 0xff, 0, &[0; 5000]),
        frame(0xfa, 0, 77, &[]),
        frame(GOAWAY, 0, 0, &[0; 5000]),
        settings(0xfafa, 1),
        frame(PING, ACK, 0, &[0; 8]),
        frame(WINDOW_UPDATE, 0, 1, &[0x80, 0, 0, 1]),
    ] {
        feed(&mut connection, &bytes).unwrap();
    }
    let begun = [&[0, 0, 0, 0, 0][..], &block(&POST)].concat();
    feed(
        &mut connection,
        &frame(HEADERS, END_HEADERS | 0x20, 3, &begun),
    )
    .unwrap();
    assert!(matches!(
        connection.poll_event(),
        Some(Event::Request(StreamId(3), _))
    ));
    assert_eq!(kinds(&sent(&mut connection)), [(SETTINGS, 0)]);
}

#[test]
fn pings_are_answered_and_asked() {
    let mut connection = begun();
    feed(&mut connection, &frame(PING, 0, 0, b"01234567")).unwrap();
    connection.ping();
    let frames = sent(&mut connection);
    assert_eq!(
        (frames[0].flags, &frames[0].payload[..]),
        (ACK, &b"01234567"[..])
    );
    assert_eq!(frames[1].flags, 0);
    feed(&mut connection, &frame(PING, ACK, 0, &frames[1].payload)).unwrap();
    assert_eq!(connection.poll_event(), Some(Event::Pong));
}

#[test]
fn goaway_ends_open_streams() {
    let mut connection = with_streams(1);
    connection.go_away();
    feed(&mut connection, &request(3, 0)).unwrap();
    connection.send(StreamId(1), b"x", Bytes::new()).unwrap();
    let frames = sent(&mut connection);
    assert_eq!(kinds(&frames), [(GOAWAY, 0), (RST_STREAM, 3), (DATA, 1)]);
    assert_eq!(frames[0].payload, [0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn a_lost_connection_ends_its_streams() {
    let mut connection = with_streams(2);
    feed(&mut connection, &frame(DATA, END_STREAM, 1, b"")).unwrap();
    connection.handle_end();
    assert_eq!(connection.read(StreamId(1)), Ok(Some(Read::End)));
    assert_eq!(connection.read(StreamId(3)), Err(StreamEnd::Lost));
    for id in [1, 3] {
        assert!(connection.end_of(StreamId(id)).is_some());
        connection.release(StreamId(id));
    }
    assert_eq!(connection.streams(), 0);
    assert!(sent(&mut connection).is_empty());
}

#[test]
fn an_idle_connection_holds_next_to_nothing() {
    let mut connection = begun();
    let fields = [("user-agent", "grpc-go/1.27.0"), ("te", "trailers")];
    let fields = [&POST[..], &fields].concat();
    feed(&mut connection, &frame(SETTINGS, ACK, 0, &[])).unwrap();
    let block = [&[0x20][..], &block(&fields)].concat();
    feed(&mut connection, &frame(HEADERS, END_HEADERS, 1, &block)).unwrap();
    let id = StreamId(1);
    assert!(matches!(connection.poll_event(), Some(Event::Request(..))));
    connection.respond(id, &[(b":status", b"200")], false);
    for _ in 0..5 {
        feed(&mut connection, &frame(DATA, 0, 1, &[0; 600])).unwrap();
        connection
            .send(id, &[0; 600], Bytes::from(vec![0; 9000]))
            .unwrap();
        while let Some(Read::Data(bytes)) = connection.read(id).unwrap() {
            connection.consumed(id, bytes.len());
        }
        sent(&mut connection);
        while connection.poll_event().is_some() {}
    }
    let buffers = connection.control.capacity()
        + connection.queue.capacity()
        + connection.crowd.capacity()
        + connection.events.capacity()
        + connection.decoder.size;
    assert_eq!(buffers, 0);
    let inline = size_of::<Connection>() + size_of::<Stream>();
    assert!(inline < 800, "{inline}");
}
