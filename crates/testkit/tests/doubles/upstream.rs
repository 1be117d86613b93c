//! Each behavior, seen from a plain client.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

const LIMIT: Duration = Duration::from_secs(20);

fn connect(behavior: Behavior) -> (Upstream, TcpStream) {
    let upstream = Upstream::start(behavior).unwrap();
    let stream = TcpStream::connect(upstream.addr()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    (upstream, stream)
}

#[test]
fn echo_sends_back_and_records() {
    let (upstream, mut stream) = connect(Behavior::Echo);
    stream.write_all(b"PROXY").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"PROXY");
    assert_eq!(upstream.beginnings(), [b"PROXY"]);
    assert_eq!((upstream.accepted(), upstream.received()), (1, 5));
    upstream.wait_closed(LIMIT).unwrap();
}

#[test]
fn an_answer_at_the_end_counts() {
    let (_upstream, mut stream) = connect(Behavior::AnswersAtEof);
    stream.write_all(&[7; 100_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "100000");
}

#[test]
fn ending_its_writes_leaves_its_reads() {
    let (upstream, mut stream) = connect(Behavior::EndsWriteFirst {
        greeting: b"bye".to_vec(),
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"bye");
    stream.write_all(&[7; 1000]).unwrap();
    drop(stream);
    upstream.wait_closed(LIMIT).unwrap();
    assert_eq!(upstream.received(), 1000);
}

#[test]
fn a_reset_is_a_reset() {
    let (_upstream, mut stream) = connect(Behavior::Resets { after: 4 });
    stream.write_all(b"four").unwrap();
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn resets_are_counted_and_ends_are_not() {
    let (upstream, ended) = connect(Behavior::Sink);
    drop(ended);
    upstream.wait_accepted(1, LIMIT).unwrap();
    upstream.wait_closed(LIMIT).unwrap();
    let stream = TcpStream::connect(upstream.addr()).unwrap();
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    upstream.wait_resets(1, LIMIT).unwrap();
    assert_eq!(upstream.resets(), 1);
}

#[test]
fn sources_end_and_closers_close() {
    for (behavior, expected) in [
        (Behavior::Source { bytes: 200_000 }, 200_000),
        (Behavior::EndsReadFirst { bytes: 10 }, 10),
        (Behavior::Closes, 0),
    ] {
        let (_upstream, mut stream) = connect(behavior.clone());
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert_eq!(back.len(), expected, "{behavior:?}");
    }
}

#[test]
fn one_that_never_reads_stops_the_writer() {
    let (upstream, mut stream) = connect(Behavior::NeverReads);
    upstream.wait_accepted(1, LIMIT).unwrap();
    stream.set_nonblocking(true).unwrap();
    let chunk = [7; 64 * 1024];
    let stopped = wait::until(
        "the writer to stop",
        LIMIT,
        || matches!(stream.write(&chunk), Err(error) if error.kind() == ErrorKind::WouldBlock),
    );
    stopped.unwrap();
    assert_eq!((upstream.received(), upstream.open()), (0, 1));
}
