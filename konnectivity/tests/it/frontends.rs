//! What a frontend may say, and what it is told.

use std::io::{Read, Write};

use testkit::konnectivity::{HttpFrontend, Packet};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Held, Kind, LIMIT, Mode, Refusing, Rig, Server, noise, pairings, refusal};

pairings!(
    a_banner_comes_after_the_answer,
    bytes_before_destination_close_arrive,
);

fn a_banner_comes_after_the_answer(rig: &Rig) {
    let greeting = b"220 mail.example.com\r\n".to_vec();
    let upstream = Upstream::start(Behavior::EndsWriteFirst {
        greeting: greeting.clone(),
    });
    let upstream = upstream.unwrap();
    for _ in 0..50 {
        // The frontend refuses whatever does not begin with the answer.
        let mut tunnel = rig.tunnel(upstream.addr());
        assert_eq!(tunnel.reader.rest().unwrap(), greeting);
    }
}

fn bytes_before_destination_close_arrive(rig: &Rig) {
    for bytes in [0, 1, 1000, 64 << 10, 1 << 20, 8 << 20] {
        let source = Upstream::start(Behavior::Source { bytes }).unwrap();
        for _ in 0..if bytes > 1 << 20 { 1 } else { 10 } {
            let mut tunnel = rig.tunnel(source.addr());
            assert_eq!(tunnel.reader.rest().unwrap().len() as u64, bytes);
        }
    }
    rig.wait_idle();
}

#[test]
fn nothing_but_connect_is_served() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let http = rig.server.http();
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET https://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let refused = http.ask(request.as_bytes()).unwrap().unwrap_err();
        assert_eq!(refused.status, 405, "{request}: {refused:?}");
        assert_eq!(
            refused.body.trim_end(),
            "this proxy only supports CONNECT passthrough"
        );
    }
    for request in [
        "\r\n\x16\x03\x01 nonsense\r\n\r\n",
        "CONNECT\r\n\r\n",
        "a b c d\r\n\r\n",
    ] {
        let refused = http.ask(request.as_bytes()).unwrap().unwrap_err();
        assert_eq!(refused.status, 400, "{request:?}: {refused:?}");
        assert_eq!(refused.body, "400 Bad Request");
    }
    assert!(rig.server.readiness() == 200);
}

#[test]
fn requests_that_go_accepts_are_accepted() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let addr = echo.addr();
    for head in [
        format!("CONNECT {addr} HTTP/1.0\r\n\r\n"),
        format!("CONNECT {addr} HTTP/1.1\r\n\r\n"),
        format!("CONNECT {addr} HTTP/1.1\r\nHost: other.example.com:1\r\nX-Y: z\r\n\r\n"),
    ] {
        let mut tunnel = rig.server.http().ask(head.as_bytes()).unwrap().unwrap();
        assert_eq!(tunnel.echo(b"hello").unwrap(), b"hello", "{head}");
    }
}

#[test]
fn bytes_with_the_request_come_first() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let held = Held::new();
    let bytes = noise(5, 20_000);
    let mut request = format!("CONNECT {} HTTP/1.1\r\nHost: x\r\n\r\n", held.addr()).into_bytes();
    request.extend(&bytes);
    let mut tunnel = rig.server.http().ask(&request).unwrap().unwrap();
    tunnel.writer.write_all(b"and more").unwrap();
    let mut destination = held.accept();
    let mut found = vec![0; bytes.len() + 8];
    destination.read_exact(&mut found).unwrap();
    assert!(found[..bytes.len()] == bytes && found.ends_with(b"and more"));
}

#[test]
fn page_is_fetched_and_nothing_else_sent() {
    for kind in [Kind::Go, Kind::Rust] {
        let rig = Rig::start(Mode::Http, kind);
        // It sends back what it is sent, and goes on reading: the worst of targets.
        let target = Upstream::start(Behavior::Echo).unwrap();
        let addr = target.addr();
        let mut client = rig.server.http().open().unwrap();
        let request = format!("GET http://{addr}/metrics HTTP/1.1\r\nHost: x\r\nTE: a\r\n\r\n");
        client.write_all(request.repeat(2).as_bytes()).unwrap();
        let expected =
            format!("GET /metrics HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
        let mut page = vec![0; expected.len()];
        client.read_exact(&mut page).unwrap();
        assert_eq!(String::from_utf8(page).unwrap(), expected);
        client.write_all(request.as_bytes()).unwrap();
        drop(client);
        rig.wait_idle();
        target.wait_closed(LIMIT).unwrap();
        assert_eq!(target.beginnings(), [expected.as_bytes()]);
        let closed = Refusing::new();
        let request = format!("GET http://{}/ HTTP/1.1\r\nHost: x\r\n\r\n", closed.addr);
        let refused = rig.server.http().ask(request.as_bytes()).unwrap();
        assert_eq!(refused.unwrap_err().status, 502);
    }
}

#[test]
fn a_head_in_pieces_is_a_head() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut stream = rig.server.http().open().unwrap();
    for byte in format!("CONNECT {} HTTP/1.1\r\nHost: x\r\n\r\n", echo.addr()).bytes() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut tunnel = HttpFrontend::answer(stream).unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

#[test]
fn without_an_agent_a_dial_fails_at_once() {
    let http = Server::start(Mode::Http);
    let refused = refusal(&http.frontend(), "127.0.0.1:1");
    assert_eq!(refused.status, 500);
    assert_eq!(
        refused.body,
        "currently no tunnels available: No agent available"
    );
    assert!(
        refused.head.ends_with("\r\nContent-Type: text/plain"),
        "{refused:?}"
    );
    assert_eq!(http.failures("no_agent"), 1.0);
    assert_eq!(http.readiness(), 500);
    assert_eq!(
        http.get("/readyz").text().trim_end(),
        "no connection to any proxy agent"
    );
    assert_eq!(http.get("/healthz").text(), "ok");

    let grpc = Server::start(Mode::Grpc);
    assert_eq!(
        refusal(&grpc.frontend(), "127.0.0.1:1").body,
        "No agent available"
    );
    assert_eq!(grpc.failures("no_agent"), 1.0);
}

#[test]
fn a_frontend_that_vanishes_leaves_nothing() {
    for kind in [Kind::Go, Kind::Rust] {
        let rig = Rig::start(Mode::Grpc, kind);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut tunnels: Vec<_> = (0..25).map(|_| rig.tunnel(echo.addr())).collect();
        for tunnel in &mut tunnels {
            tunnel.echo(b"x").unwrap();
        }
        rig.server.wait_established(25);
        drop(tunnels);
        rig.wait_idle();
        echo.wait_closed(LIMIT).unwrap();
    }
}

#[test]
fn grpc_frontends_are_answered_as_by_upstream() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let grpc = rig.server.grpc();
    let mut wire = grpc.open().unwrap();
    wire.send(&Packet::data(5, *b"x")).unwrap();
    let answer = wire.recv(LIMIT).unwrap();
    assert_eq!(answer, close(5, "backend not initialized"));
    let mut wire = grpc.open().unwrap();
    wire.send(&Packet::CloseReq { connect_id: 5 }).unwrap();
    assert_eq!(wire.recv(LIMIT).unwrap(), close(5, "backend uninitialized"));
}

#[test]
fn mismatched_id_ends_grpc_stream() {
    let rig = Rig::start(Mode::Grpc, Kind::Go);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (mut wire, id) = established(&rig, &echo);
    // Of no connection.
    wire.send(&Packet::data(0, *b"lost")).unwrap();
    wire.send(&Packet::data(id, *b"x")).unwrap();
    assert_eq!(wire.recv(LIMIT).unwrap(), Packet::data(id, *b"x"));
    wire.send(&Packet::data(id + 1, *b"y")).unwrap();
    for id in [id + 1, id] {
        let expected = close(id, "mismatched connection IDs");
        assert_eq!(wire.recv(LIMIT).unwrap(), expected);
    }
    echo.wait_closed(LIMIT).unwrap();
    rig.wait_idle();
}

#[test]
fn second_dial_on_grpc_stream_is_refused() {
    let rig = Rig::start(Mode::Grpc, Kind::Go);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (mut wire, id) = established(&rig, &echo);
    let (address, random) = (echo.addr().to_string(), 78);
    wire.send(&Packet::DialReq { address, random }).unwrap();
    let refused = Packet::DialRsp {
        error: "only one dial per stream".to_owned(),
        connect_id: 0,
        random,
    };
    assert_eq!(wire.recv(LIMIT).unwrap(), refused);
    wire.send(&Packet::data(id, *b"first")).unwrap();
    assert_eq!(wire.recv(LIMIT).unwrap(), Packet::data(id, *b"first"));
    assert_eq!(echo.accepted(), 1);
}

#[test]
fn odd_frontend_packets_hurt_no_tunnel() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (mut other, id) = established(&rig, &echo);
    let grpc = rig.server.grpc();
    for packet_type in [0, 1, 4, 6, 9, 64, 65] {
        let wire = grpc.open().unwrap();
        // What upstream's server panics of.
        wire.send(&Packet::Empty { packet_type }).unwrap();
        wire.finish().unwrap();
    }
    for packet in [
        Packet::Drain,
        close(1, ""),
        Packet::DialCls { random: 5 },
        Packet::Credit {
            connect_id: 1,
            bytes: u64::MAX,
        },
        Packet::Fin { connect_id: 1 },
    ] {
        let wire = grpc.open().unwrap();
        wire.send(&packet).unwrap();
        wire.finish().unwrap();
    }
    let wire = grpc.open().unwrap();
    wire.send_bytes(&[vec![0, 0, 0, 0, 3, 0xff, 0xff, 0xff]])
        .unwrap();
    let wire_huge = grpc.open().unwrap();
    wire_huge
        .send_bytes(&[vec![0, 0xff, 0xff, 0xff, 0xff]])
        .unwrap();
    other.send(&Packet::data(id, *b"alive")).unwrap();
    assert_eq!(other.recv(LIMIT).unwrap(), Packet::data(id, *b"alive"));
    rig.server.wait_established(1);
}

#[test]
fn framing_of_any_kind_is_understood() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (mut wire, id) = established(&rig, &echo);
    wire.send_together(&[Packet::data(id, *b"one"), Packet::data(id, *b"two")])
        .unwrap();
    wire.send_split(&Packet::data(id, *b"three"), 1).unwrap();
    let mut back = Vec::new();
    while back.len() < 11 {
        match wire.recv(LIMIT).unwrap() {
            Packet::Data { data, .. } => back.extend(data),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(back, b"onetwothree");
}

#[test]
fn a_dial_taken_back_is_no_tunnel() {
    for kind in [Kind::Go, Kind::Rust] {
        let mut rig = Rig::start(Mode::Grpc, kind);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        rig.agent.freeze(true);
        let grpc = rig.server.grpc();
        let wire = grpc.open().unwrap();
        let (address, random) = (echo.addr().to_string(), 77);
        wire.send(&Packet::DialReq { address, random }).unwrap();
        let pending = format!("{}pending_backend_dials", crate::support::SERVER);
        rig.server.wait_value(&pending, &[], 1.0);
        wire.send(&Packet::DialCls { random }).unwrap();
        rig.server.wait_value(&pending, &[], 0.0);
        rig.agent.freeze(false);
        // A dial after it shows that everything before was handled.
        rig.tunnel(echo.addr()).echo(b"x").unwrap();
        rig.wait_idle();
        wait::until("no connection", LIMIT, || echo.open() == 0).unwrap();
    }
}

fn close(connect_id: i64, error: &str) -> Packet {
    let error = error.to_owned();
    Packet::CloseRsp { connect_id, error }
}

/// Dials on a stream of the test's own; returns it and the connection's id.
fn established(rig: &Rig, echo: &Upstream) -> (testkit::konnectivity::Wire, i64) {
    let mut wire = rig.server.grpc().open().unwrap();
    let (address, random) = (echo.addr().to_string(), 77);
    wire.send(&Packet::DialReq { address, random }).unwrap();
    match wire.recv(LIMIT).unwrap() {
        Packet::DialRsp {
            error,
            connect_id,
            random: 77,
        } if error.is_empty() => (wire, connect_id),
        other => panic!("{other:?}"),
    }
}
