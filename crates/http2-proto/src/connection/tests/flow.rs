//! Windows, in both directions, and who may send next.

use super::*;

#[test]
fn no_more_is_sent_than_both_windows_allow() {
    let mut connection = with_streams(2);
    let (one, three) = (StreamId(1), StreamId(3));
    connection
        .send(one, b"", Bytes::from(vec![1; 70_000]))
        .unwrap();
    connection
        .send(three, b"", Bytes::from(vec![3; 10]))
        .unwrap();
    let frames = sent(&mut connection);
    // Alternating, in frames of 16 KiB, until the connection's window is used up.
    let lens: Vec<_> = frames
        .iter()
        .map(|frame| (frame.stream, frame.payload.len()))
        .collect();
    assert_eq!(
        lens,
        [(1, 16_384), (3, 10), (1, 16_384), (1, 16_384), (1, 16_373)]
    );
    feed(
        &mut connection,
        &frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 100]),
    )
    .unwrap();
    let frames = sent(&mut connection);
    assert_eq!(
        (frames.len(), frames[0].payload.len()),
        (1, 10),
        "the stream's window"
    );
    feed(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0])).unwrap();
    let frames = sent(&mut connection);
    assert_eq!(
        (frames.len(), frames[0].payload.len()),
        (1, 90),
        "the connection's window"
    );
}

#[test]
fn smaller_window_applies_to_open_streams() {
    let mut connection = with_streams(1);
    let id = StreamId(1);
    connection
        .send(id, b"", Bytes::from(vec![1; 1000]))
        .unwrap();
    assert_eq!(sent(&mut connection).len(), 1);
    feed(&mut connection, &settings(4, 100)).unwrap();
    assert_eq!(kinds(&sent(&mut connection)), [(SETTINGS, 0)]);
    connection.send(id, b"", Bytes::from(vec![1; 10])).unwrap();
    assert!(sent(&mut connection).is_empty());
    assert_eq!(connection.capacity(id), Ok(0));
    feed(
        &mut connection,
        &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 3, 0x84]),
    )
    .unwrap();
    assert!(sent(&mut connection).is_empty(), "just not below nothing");
    feed(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 11])).unwrap();
    assert_eq!(sent(&mut connection)[0].payload.len(), 10);
    assert_eq!(connection.poll_event(), Some(Event::Changed(id)));
    assert_eq!(connection.capacity(id), Ok(1));
}

#[test]
fn waiting_stream_learns_of_window() {
    let mut connection = with_streams(3);
    let [one, three, five] = [1, 3, 5].map(StreamId);
    let full = connection.capacity(one).unwrap();
    assert_eq!(full, PARAMS.send_buffer);
    connection
        .send(one, b"", Bytes::from(vec![1; 60_000]))
        .unwrap();
    assert_eq!(connection.capacity(one), Ok(0));
    // What one has is not on its way yet, and counts for neither.
    assert_eq!(connection.capacity(three), Ok(full));
    connection.transmit();
    assert_eq!(connection.capacity(three), Ok(0));
    assert_eq!(connection.capacity(five), Ok(0));
    assert_eq!(connection.poll_event(), None);
    connection.written(40_000);
    for id in [one, three, five] {
        assert_eq!(connection.poll_event(), Some(Event::Changed(id)));
    }
    assert_eq!(connection.poll_event(), None);
}

#[test]
fn consumed_bytes_are_granted_again() {
    let mut connection = with_streams(1);
    let id = StreamId(1);
    // 100 bytes, of which 40 are padding and its length.
    let padded = [&[39][..], &[b'x'; 60], &[0; 39]].concat();
    for round in 0..100 {
        for _ in 0..5 {
            feed(&mut connection, &frame(DATA, 8, 1, &padded)).unwrap();
        }
        let mut read = 0;
        while let Some(Read::Data(bytes)) = connection.read(id).unwrap() {
            read += bytes.len();
            assert!(bytes.iter().all(|byte| *byte == b'x'));
        }
        assert_eq!(read, 300, "round {round}");
        connection.consumed(id, read);
        let kinds = kinds(&sent(&mut connection));
        assert!(
            kinds.contains(&(WINDOW_UPDATE, 1)),
            "round {round}: {kinds:?}"
        );
    }
}

#[test]
fn data_of_ended_streams_returns_window() {
    let mut connection = with_streams(1);
    let mut updates = 0;
    for round in 0..100 {
        let id = round * 2 + 1;
        feed(&mut connection, &frame(DATA, 0, id, &[0; 900])).unwrap();
        // Some of it comes when the stream is gone.
        connection.release(StreamId(id));
        feed(&mut connection, &frame(DATA, 0, id, &[0; 900])).unwrap();
        feed(&mut connection, &request(id + 2, 0)).unwrap();
        let frames = sent(&mut connection);
        updates += frames
            .iter()
            .filter(|frame| frame.kind == WINDOW_UPDATE)
            .count();
    }
    assert_eq!(updates, 100 * 1800 / 50_000);
}

#[test]
fn single_bytes_cost_about_what_they_are() {
    let mut connection = with_streams(1);
    let bytes = frame(DATA, 0, 1, b"x").repeat(1000);
    feed(&mut connection, &bytes).unwrap();
    let Some(Read::Data(bytes)) = connection.read(StreamId(1)).unwrap() else {
        panic!("nothing to read")
    };
    assert_eq!(bytes.len(), 1000);
}

#[test]
fn unread_stream_blocks_no_other() {
    let mut connection = with_streams(2);
    feed(&mut connection, &settings(4, 10)).unwrap();
    connection
        .send(StreamId(1), b"", Bytes::from(vec![1; 1000]))
        .unwrap();
    connection
        .send(StreamId(3), b"", Bytes::from_static(b"short"))
        .unwrap();
    let frames = sent(&mut connection);
    assert_eq!(kinds(&frames), [(SETTINGS, 0), (DATA, 1), (DATA, 3)]);
    connection
        .send(StreamId(3), b"", Bytes::from_static(b"again"))
        .unwrap();
    assert_eq!(kinds(&sent(&mut connection)), [(DATA, 3)]);
}

/// Nor does one that waits for the connection's window.
#[test]
fn heads_do_not_wait_for_windows() {
    let mut connection = with_streams(1);
    let much = Bytes::from(vec![7; 70_000]);
    feed(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0])).unwrap();
    connection.send(StreamId(1), b"", much).unwrap();
    assert_eq!(sent(&mut connection).len(), 4);
    feed(&mut connection, &request(3, END_STREAM)).unwrap();
    while connection.poll_event().is_some() {}
    connection.respond(StreamId(3), &[(b":status", b"200")], false);
    assert_eq!(kinds(&sent(&mut connection)), [(HEADERS, 3)]);
    connection.end(StreamId(3), &[]);
    assert_eq!(kinds(&sent(&mut connection)), [(DATA, 3)]);
    feed(&mut connection, &frame(WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0])).unwrap();
    assert_eq!(kinds(&sent(&mut connection)), [(DATA, 1)]);
}

#[test]
fn head_longer_than_a_frame_is_cut() {
    let mut connection = begun();
    feed(&mut connection, &request(1, END_STREAM)).unwrap();
    connection.poll_event().unwrap();
    let value = vec![b'a'; 40_000];
    connection.respond(StreamId(1), &[(b":status", b"200"), (b"a", &value)], true);
    let frames = sent(&mut connection);
    let flags: Vec<_> = frames.iter().map(|own| (own.kind, own.flags)).collect();
    assert_eq!(
        flags,
        [
            (HEADERS, END_STREAM),
            (CONTINUATION, 0),
            (CONTINUATION, END_HEADERS)
        ]
    );
    let block: Vec<u8> = frames.into_iter().flat_map(|own| own.payload).collect();
    let mut lengths = Vec::new();
    let decoded = hpack::Decoder::new().decode(&block, |_, value| {
        lengths.push(value.len());
        Ok(())
    });
    assert_eq!((decoded, lengths), (Ok(()), vec![3, 40_000]));
}

#[test]
fn stream_is_sent_once_its_window_lets_it() {
    let mut connection = begun();
    feed(&mut connection, &settings(4, 3)).unwrap();
    feed(&mut connection, &request(1, END_STREAM)).unwrap();
    connection.poll_event().unwrap();
    let id = StreamId(1);
    connection.respond(id, &[(b":status", b"200")], false);
    connection
        .send(id, b"", Bytes::from_static(b"hello"))
        .unwrap();
    assert_eq!(connection.is_sent(id), Ok(false));
    connection.end(id, &[]);
    assert_eq!(connection.is_sent(id), Ok(false));
    let frames = sent(&mut connection);
    assert_eq!(frames.last().unwrap().payload, b"hel");
    feed(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9])).unwrap();
    let frames = sent(&mut connection);
    assert_eq!(
        (frames[0].payload.as_slice(), frames[0].flags),
        (&b"lo"[..], END_STREAM)
    );
    assert_eq!(connection.poll_event(), Some(Event::Changed(id)));
    assert_eq!(connection.is_sent(id), Ok(true));
    connection.release(id);
    assert_eq!(connection.streams(), 0);
}
