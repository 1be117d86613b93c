//! Our server before an agent that says what no good agent says.

use testkit::konnectivity::{AgentMetadata, FakeAgent, Packet, Wire, connect, connect_deaf};
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Backend, Kind, LIMIT, Mode, Server, dial, refusal, tunnel};

/// A server and an agent's stream in the test's hands.
fn start(mode: Mode) -> (Server, Wire) {
    let server = Server::start(mode);
    let mut wire = connect(&server.target(), &AgentMetadata::new("odd")).unwrap();
    wire.head(LIMIT).unwrap();
    server.wait_agents(1);
    (server, wire)
}

/// Takes the next DIAL_REQ.
fn dialed(wire: &mut Wire) -> (String, i64) {
    let dial = |packet: &Packet| matches!(packet, Packet::DialReq { .. });
    match wire.find("DIAL_REQ", LIMIT, dial).unwrap() {
        Packet::DialReq { address, random } => (address, random),
        other => panic!("{other:?}"),
    }
}

fn success(connect_id: i64, random: i64) -> Packet {
    let error = String::new();
    Packet::DialRsp {
        error,
        connect_id,
        random,
    }
}

#[test]
fn unknown_connection_is_answered_by_close() {
    let (_server, mut wire) = start(Mode::Http);
    wire.send(&Packet::data(9, *b"x")).unwrap();
    assert_eq!(
        wire.recv(LIMIT).unwrap(),
        Packet::CloseReq { connect_id: 9 }
    );
}

#[test]
fn late_answer_is_closed_and_counted() {
    let (server, mut wire) = start(Mode::Http);
    wire.send(&success(4, 123)).unwrap();
    assert_eq!(
        wire.recv(LIMIT).unwrap(),
        Packet::CloseReq { connect_id: 4 }
    );
    assert_eq!(server.failures("unrecognized_response"), 1.0);
    assert_eq!(server.established(), 0.0);
}

/// An agent may ask for its stream before it acknowledges anything, and ours does.
#[test]
fn authenticated_agent_gets_large_windows() {
    let server = Server::start(Mode::Http);
    let wire = connect_deaf(&server.target(), &AgentMetadata::new("fast")).unwrap();
    server.wait_agents(1);
    wire.hear();
    wire.wait_room(256 << 10).unwrap();
}

/// grpc-go ends a connection at the third ping that comes sooner than it likes.
#[test]
fn pings_are_never_counted_against_agents() {
    let server = Server::start(Mode::Http);
    let mut agent = FakeAgent::start(&server.target(), &AgentMetadata::new("eager")).unwrap();
    server.wait_agents(1);
    agent.ping(50).unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = tunnel(&server.frontend(), echo.addr());
    agent.ping(50).unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
    assert!(agent.ended().is_none());
}

#[test]
fn a_dial_that_is_answered_twice_is_one_tunnel() {
    let (server, mut wire) = start(Mode::Http);
    let frontend = server.frontend();
    let asking = std::thread::spawn(move || dial(&frontend, "10.0.0.1:80").unwrap());
    let (address, random) = dialed(&mut wire);
    assert_eq!(address, "10.0.0.1:80");
    wire.send_together(&[success(1, random), success(2, random), success(1, random)])
        .unwrap();
    let mut tunnel = asking.join().unwrap();
    let close = wire.recv(LIMIT).unwrap();
    assert_eq!(close, Packet::CloseReq { connect_id: 2 });
    wire.send_together(&[Packet::data(2, *b"no"), Packet::data(1, *b"yes")])
        .unwrap();
    let mut found = [0; 3];
    std::io::Read::read_exact(&mut tunnel.reader, &mut found).unwrap();
    assert_eq!(&found, b"yes");
    assert_eq!(server.established(), 1.0);
}

#[test]
fn duplicate_connection_id_mixes_no_tunnels() {
    let (server, mut wire) = start(Mode::Http);
    let ask = |target: &'static str| {
        let frontend = server.frontend();
        std::thread::spawn(move || dial(&frontend, target))
    };
    let first = ask("10.0.0.1:1");
    let (_, random) = dialed(&mut wire);
    wire.send(&success(1, random)).unwrap();
    let mut first = first.join().unwrap().unwrap();
    let second = ask("10.0.0.2:2");
    let (_, random) = dialed(&mut wire);
    // The two cannot be told apart: neither may have what comes next.
    wire.send_together(&[success(1, random), Packet::data(1, *b"whose?")])
        .unwrap();
    assert_eq!(second.join().unwrap().unwrap_err().status, 502);
    assert_eq!(first.reader.rest().unwrap(), b"");
    assert_eq!(
        wire.recv(LIMIT).unwrap(),
        Packet::CloseReq { connect_id: 1 }
    );
    server.wait_established(0);
}

#[test]
fn odd_agent_packets_hurt_no_tunnel() {
    let server = Server::start(Mode::Http);
    let _good = Backend::start(Kind::Go, &server, "good");
    server.wait_agents(1);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    // Its id is 1, as the odd ones have it.
    let mut open = tunnel(&server.frontend(), echo.addr());
    assert_eq!(open.echo(b"before").unwrap(), b"before");
    let mut wire = connect(&server.target(), &AgentMetadata::new("odd")).unwrap();
    server.wait_agents(2);
    for packet_type in [0, 1, 2, 3, 4, 5, 9, 64, 65, 1000] {
        wire.send(&Packet::Empty { packet_type }).unwrap();
    }
    for packet in [
        Packet::DialReq {
            address: "10.0.0.1:1".to_owned(),
            random: 1,
        },
        Packet::data(1, *b"of no tunnel"),
        Packet::CloseReq { connect_id: 1 },
        Packet::CloseRsp {
            connect_id: 1,
            error: "x".to_owned(),
        },
        Packet::DialCls { random: 5 },
        Packet::data(0, *b"unknown"),
        success(0, 0),
        success(-5, i64::MIN),
        // Its answer shows that all were handled.
        Packet::data(9, *b"last"),
    ] {
        wire.send(&packet).unwrap();
    }
    for connect_id in [1, -5, 9] {
        assert_eq!(wire.recv(LIMIT).unwrap(), Packet::CloseReq { connect_id });
    }
    assert_eq!(open.echo(b"after").unwrap(), b"after");
    drop(wire);
    server.wait_agents(1);
    assert_eq!(open.echo(b"alone").unwrap(), b"alone");
    let mut new = tunnel(&server.frontend(), echo.addr());
    assert_eq!(new.echo(b"new").unwrap(), b"new");
}

#[test]
fn an_agent_that_speaks_no_packets_is_left() {
    let (server, wire) = start(Mode::Http);
    wire.send_bytes(&[vec![0, 0, 0, 0, 2, 0xff, 0xff]]).unwrap();
    server.wait_agents(0);
    let (server, wire) = start(Mode::Http);
    wire.send_bytes(&[vec![0, 0xff, 0xff, 0xff, 0xff]]).unwrap();
    server.wait_agents(0);
    assert_eq!(server.readiness(), 500);
}

#[test]
fn an_agent_that_sends_garbage_is_left() {
    let (server, wire) = start(Mode::Http);
    let garbage = vec![Packet::Empty { packet_type: 1000 }; 1000];
    // Until it is cut, which the last ones may find.
    while wire.send_together(&garbage).is_ok() {}
    server.wait_agents(0);
}

#[test]
fn dial_errors_keep_their_status() {
    let (server, mut wire) = start(Mode::Http);
    for (error, status) in [
        ("dial tcp 10.0.0.1:80: connect: no route to host", 502),
        ("dial tcp 10.0.0.1:80: i/o timeout", 504),
        ("context deadline exceeded", 504),
        ("dial tcp 10.0.0.1:80: socket: too many open files", 503),
    ] {
        let frontend = server.frontend();
        let asking = std::thread::spawn(move || refusal(&frontend, "10.0.0.1:80"));
        let (_, random) = dialed(&mut wire);
        let error = error.to_owned();
        wire.send(&Packet::DialRsp {
            error: error.clone(),
            connect_id: 0,
            random,
        })
        .unwrap();
        let refused = asking.join().unwrap();
        assert_eq!((refused.status, refused.body), (status, error));
        let head = refused.head.to_lowercase();
        assert!(head.contains("\r\nconnection: close"), "{head}");
        assert!(
            head.contains("\r\ncontent-type: text/plain; charset=utf-8"),
            "{head}"
        );
    }
}

#[test]
fn frontends_cannot_choose_dial_ids() {
    let (server, mut wire) = start(Mode::Grpc);
    let grpc = server.grpc();
    let mut frontends: Vec<_> = (0..2)
        .map(|_| {
            let frontend = grpc.open().unwrap();
            let address = "10.0.0.1:80".to_owned();
            // The same number twice.
            frontend
                .send(&Packet::DialReq { address, random: 5 })
                .unwrap();
            frontend
        })
        .collect();
    let (_, one) = dialed(&mut wire);
    let (_, two) = dialed(&mut wire);
    assert_ne!(one, two);
    wire.send_together(&[success(1, one), success(2, two)])
        .unwrap();
    let mut ids: Vec<_> = frontends
        .iter_mut()
        .map(|frontend| match frontend.recv(LIMIT).unwrap() {
            Packet::DialRsp {
                error,
                connect_id,
                random: 5,
            } if error.is_empty() => connect_id,
            other => panic!("{other:?}"),
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn close_text_reaches_grpc_frontend() {
    let (server, mut wire) = start(Mode::Grpc);
    let frontend = server.frontend();
    let asking = std::thread::spawn(move || dial(&frontend, "10.0.0.1:80").unwrap());
    let (_, random) = dialed(&mut wire);
    wire.send(&success(1, random)).unwrap();
    let mut tunnel = asking.join().unwrap();
    let error = "read tcp: connection reset by peer".to_owned();
    wire.send_together(&[
        Packet::data(1, *b"last"),
        Packet::CloseRsp {
            connect_id: 1,
            error: error.clone(),
        },
    ])
    .unwrap();
    assert_eq!(tunnel.reader.rest().unwrap(), b"last");
    assert_eq!(tunnel.reader.end(), Some(&*error));
    server.wait_established(0);
}
