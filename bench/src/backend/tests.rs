//! The backend, talked to as the loads do.

use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use testkit::client_hello::ClientHello;
use testkit::wait;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn start() -> Backend {
    Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

fn say(to: (Ipv4Addr, u16), words: &[&[u8]]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&words.concat()).unwrap();
    stream
}

fn dial(backend: &Backend, command: Command, payload: &[u8]) -> TcpStream {
    let hello = ClientHello::for_name("a.example").encode();
    let to = (Ipv4Addr::LOCALHOST, backend.address().port());
    say(to, &[&hello, &[command.byte()], payload])
}

/// As a client without TLS.
fn bare(backend: &Backend, command: Command, payload: &[u8]) -> TcpStream {
    let to = (Ipv4Addr::LOCALHOST, backend.address().port());
    say(to, &[&command.bare(), payload])
}

#[test]
fn source_and_sink_move_bytes_asked_for() {
    let backend = start();
    let length = 300_000_u64.to_be_bytes();
    let mut source = bare(&backend, Command::Source, &length);
    let mut got = vec![0; 300_000];
    source.read_exact(&mut got).unwrap();
    let mut sink = bare(&backend, Command::Take, &length);
    sink.write_all(&got).unwrap();
    let mut byte = [0; 1];
    sink.read_exact(&mut byte).unwrap();
    assert_eq!((byte, backend.open()), ([1], 2));
    drop((source, sink));
    wait::until("both to be closed", LIMIT, || backend.open() == 0).unwrap();
}

#[test]
fn held_connection_ends_on_release() {
    let backend = start();
    let mut held = bare(&backend, Command::Hold, b"");
    wait::until("it to be open", LIMIT, || backend.open() == 1).unwrap();
    // Accepted and counted is not yet waiting: release until it is seen.
    wait::until("it to be closed", LIMIT, || {
        backend.release();
        backend.open() == 0
    })
    .unwrap();
    assert_eq!(held.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn bytes_are_echoed_either_way() {
    let backend = start();
    for command in [Command::Echo, Command::Block] {
        let mut stream = dial(&backend, command, b"one");
        let mut got = [0; 3];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one");
        stream.write_all(b"two").unwrap();
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"two");
    }
    wait::until("both to be closed", LIMIT, || backend.open() == 0).unwrap();
    assert_eq!(backend.accepted(), 2);
}

#[test]
fn backend_reports_its_address() {
    let backend = Backend::start((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    // All of 127/8 is this machine.
    for last in [1, 2] {
        let reached = Ipv4Addr::new(127, 0, 0, last);
        let words = Command::Where.bare();
        let mut stream = say((reached, backend.address().port()), &[&words]);
        let mut got = [0; 4];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, reached.octets());
    }
}

#[test]
fn every_byte_thrown_away_is_counted() {
    let backend = start();
    let mut stream = dial(&backend, Command::Sink, b"front");
    stream.write_all(&[0; 1_000_000]).unwrap();
    drop(stream);
    wait::until("all of it", LIMIT, || backend.discarded() == 1_000_005).unwrap();
}

#[test]
fn generator_sends_until_peer_closes() {
    let backend = start();
    let mut stream = dial(&backend, Command::Generate, b"");
    let mut got = vec![0; 3_000_000];
    stream.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 0x5a));
    drop(stream);
    wait::until("it to be closed", LIMIT, || backend.open() == 0).unwrap();
}

#[test]
fn malformed_connection_is_closed_alone() {
    let backend = start();
    let to = (Ipv4Addr::LOCALHOST, backend.address().port());
    let mut stranger = say(to, &[b"GET / HTTP/1.1\r\n\r\n"]);
    // The end, or a reset because of what was not read.
    assert!(!stranger.read(&mut [0; 1]).is_ok_and(|count| count > 0));
    let mut stream = dial(&backend, Command::Echo, b"x");
    stream.read_exact(&mut [0; 1]).unwrap();
}

#[test]
fn command_is_found_wherever_hello_is_cut() {
    let hello = ClientHello::for_name("a.example").encode();
    let bytes = [&hello[..], b"Gxyz"].concat();
    for cut in 0..=bytes.len() {
        let found = command(&bytes[..cut]).unwrap();
        let rest = cut.checked_sub(hello.len() + 1);
        let expected = rest.map(|rest| (Command::Generate, &b"xyz"[..rest]));
        assert_eq!(found, expected, "cut at {cut}");
    }
    assert!(command(b"GET / HTTP/1.1").is_err());
    assert!(command(&[&hello[..], b"?"].concat()).is_err());
}
