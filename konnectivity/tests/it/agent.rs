//! Our agent behind a server that speaks as upstream's does.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use testkit::konnectivity::{AgentLink, FakeServer, Packet, ServerOptions};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{
    AGENT, Agent, AgentFlags, Held, LIMIT, Pki, Refusing, Unanswering, assert_ends, noise,
};

struct Pair {
    pki: Arc<Pki>,
    agent: Agent,
    server: FakeServer,
    link: AgentLink,
}

impl Pair {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(more: &[&str]) -> Self {
        let pki = Arc::new(Pki::new());
        let mut options = ServerOptions::new("one", &pki.server);
        options.clients_pem = Some(pki.authority.pem().to_owned());
        let server = FakeServer::start(&options).unwrap();
        let flags = AgentFlags::new(&pki, "ours", server.addr());
        let flags = more.iter().fold(flags, |flags, more| flags.flag(*more));
        let agent = flags.start();
        let link = server.accept(LIMIT).unwrap();
        Self {
            pki,
            agent,
            server,
            link,
        }
    }
}

#[test]
fn agent_introduces_itself_as_upstream() {
    let token = "--service-account-token-path";
    let dir = testkit::tempdir::TempDir::new("token").unwrap();
    let path = dir.write("token", "secret-1").unwrap();
    let token = format!("{token}={}", path.display());
    let identifiers = "--agent-identifiers=ipv4=10.0.0.1&host=node-1&default-route=true";
    let mut pair = Pair::with(&[&token, identifiers]);
    assert_eq!(pair.link.said("agentid"), ["ours"]);
    assert_eq!(pair.link.said("authorization"), ["Bearer secret-1"]);
    assert_eq!(
        pair.link.said("agentidentifiers"),
        ["default-route=true&host=node-1&ipv4=10.0.0.1"]
    );
    assert_eq!(pair.link.said("content-type"), ["application/grpc"]);
    assert_eq!(pair.link.said("te"), ["trailers"]);
    pair.agent.wait_ready(200);
    // A new token is read for the next stream.
    dir.replace("token", "secret-2").unwrap();
    pair.link.wire.cut();
    pair.link = pair.server.accept(LIMIT).unwrap();
    assert_eq!(pair.link.said("authorization"), ["Bearer secret-2"]);
}

#[test]
fn identifiers_are_sent_even_if_there_are_none() {
    let pair = Pair::start();
    assert_eq!(pair.link.said("agentidentifiers"), [""]);
    assert!(pair.link.said("authorization").is_empty());
    // Ours says what it can do, which upstream's server ignores.
    assert_eq!(pair.link.said("knp-ext"), ["window=1,fin=1"]);
}

#[test]
fn connections_count_from_one_and_carry_bytes() {
    let mut pair = Pair::start();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    for expected in 1..=3 {
        let id = pair.link.dial(&echo.addr().to_string()).unwrap();
        assert_eq!(id, expected);
    }
    let bytes = noise(1, 500_000);
    for part in bytes.chunks(32 << 10) {
        pair.link.write(2, part).unwrap();
    }
    assert!(pair.link.read(2, bytes.len()).unwrap() == bytes);
    pair.link.close(2).unwrap();
    assert_eq!(pair.link.read_to_end(2).unwrap(), (vec![], String::new()));
    pair.agent.wait_tunnels(2);
    pair.link.write(1, b"x").unwrap();
    assert_eq!(pair.link.read(1, 1).unwrap(), b"x");
}

#[test]
fn destination_reset_is_named_in_close_response() {
    let mut pair = Pair::start();
    let upstream = Upstream::start(Behavior::Resets { after: 1 }).unwrap();
    let id = pair.link.dial(&upstream.addr().to_string()).unwrap();
    pair.link.write(id, b"x").unwrap();
    let text = "connection reset by peer".to_owned();
    assert_eq!(pair.link.read_to_end(id).unwrap(), (vec![], text));
    // One that ends has no such text.
    let upstream = Upstream::start(Behavior::Closes).unwrap();
    let id = pair.link.dial(&upstream.addr().to_string()).unwrap();
    assert_eq!(pair.link.read_to_end(id).unwrap(), (vec![], String::new()));
    pair.agent.wait_tunnels(0);
}

#[test]
fn failed_dials_have_upstreams_texts() {
    let mut pair = Pair::start();
    let refusing = Refusing::new();
    let mut fails = |target: &str| {
        let random = pair.link.ask(target).unwrap();
        pair.link.answer(random, LIMIT).unwrap().unwrap_err()
    };
    let addr = refusing.addr;
    let refused = format!("dial tcp {addr}: connect: connection refused");
    assert_eq!(fails(&addr.to_string()), refused);
    let unknown = fails("no-such-host.invalid:80");
    assert!(
        unknown.starts_with("dial tcp: lookup no-such-host.invalid"),
        "{unknown}"
    );
    assert!(unknown.ends_with("no such host"), "{unknown}");
    let portless = fails("127.0.0.1");
    assert!(portless.contains("missing port in address"), "{portless}");
    let unanswering = Unanswering::new();
    let silent = fails(&unanswering.addr.to_string());
    assert_eq!(
        silent,
        format!("dial tcp {}: i/o timeout", unanswering.addr)
    );
}

#[test]
fn unknown_connections_have_upstreams_texts() {
    let mut pair = Pair::start();
    pair.link.write(99, b"x").unwrap();
    assert_eq!(
        pair.link.read_to_end(99).unwrap().1,
        "unrecognized connectID"
    );
    pair.link.close(99).unwrap();
    assert_eq!(pair.link.read_to_end(99).unwrap().1, "Unknown connectID");
}

#[test]
fn only_upstream_packets_are_sent() {
    let mut pair = Pair::start();
    // To the end, both ways, and slowly read: wherever CREDIT or FIN would be due.
    let greeting = noise(1, 600_000);
    let answers = Upstream::start(Behavior::EndsWriteFirst { greeting }).unwrap();
    let id = pair.link.dial(&answers.addr().to_string()).unwrap();
    for part in noise(2, 600_000).chunks(32 << 10) {
        pair.link.write(id, part).unwrap();
    }
    // Fails at the first CREDIT or FIN.
    let (bytes, _) = pair.link.read_to_end(id).unwrap();
    assert!(bytes == noise(1, 600_000));
}

#[test]
fn odd_packets_hurt_no_tunnel() {
    let mut pair = Pair::start();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let id = pair.link.dial(&echo.addr().to_string()).unwrap();
    for packet_type in [0, 1, 3, 4, 6, 9, 64, 65, 1000] {
        pair.link.wire.send(&Packet::Empty { packet_type }).unwrap();
    }
    for packet in [
        Packet::CloseRsp {
            connect_id: id,
            error: String::new(),
        },
        Packet::Drain,
        Packet::DialRsp {
            error: String::new(),
            connect_id: 7,
            random: 7,
        },
        Packet::DialCls { random: 1 },
    ] {
        pair.link.wire.send(&packet).unwrap();
    }
    let (one, two) = (Packet::data(id, *b"one"), Packet::data(id, *b"two"));
    pair.link.wire.send_together(&[one, two]).unwrap();
    pair.link
        .wire
        .send_split(&Packet::data(id, *b"three"), 1)
        .unwrap();
    assert_eq!(pair.link.read(id, 11).unwrap(), b"onetwothree");
}

#[test]
fn agent_stops_dialing_after_dial_cls() {
    let mut pair = Pair::with(&["--dial-timeout=1s"]);
    let unanswering = Unanswering::new();
    let target = unanswering.addr.to_string();
    let canceled = pair.link.ask(&target).unwrap();
    let random = canceled;
    pair.link.wire.send(&Packet::DialCls { random }).unwrap();
    // Later, so the first would have failed by then, too.
    pair.link.dial(&target).unwrap_err();
    let answer = pair.link.answer(canceled, Duration::from_millis(200));
    assert!(answer.is_err(), "{answer:?}");
    let failures = format!("{AGENT}endpoint_dial_failure_total");
    assert_eq!(pair.agent.value(&failures, &[]), 1.0);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let id = pair.link.dial(&echo.addr().to_string()).unwrap();
    pair.link.write(id, b"x").unwrap();
    assert_eq!(pair.link.read(id, 1).unwrap(), b"x");
    pair.agent.wait_tunnels(1);
}

/// Upstream's agent waits for the slowest of its connections.
#[test]
fn stalled_destination_stalls_no_other() {
    let mut pair = Pair::with(&["--slow-consumer-timeout=1s"]);
    let stuck = Upstream::start(Behavior::NeverReads).unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let bad = pair.link.dial(&stuck.addr().to_string()).unwrap();
    let good = pair.link.dial(&echo.addr().to_string()).unwrap();
    let part = vec![1; 32 << 10];
    // 32 MiB: more than sockets and agent hold, so that the connection is cut on the way.
    for _ in 0..1024 {
        pair.link.write(bad, &part).unwrap();
    }
    let clock = Stopwatch::start();
    pair.link.write(good, b"x").unwrap();
    assert_eq!(pair.link.read(good, 1).unwrap(), b"x");
    assert!(
        clock.elapsed() < Duration::from_secs(5),
        "{:?}",
        clock.elapsed()
    );
    pair.link.read_to_end(bad).unwrap();
    pair.agent.wait_tunnels(1);
}

/// A server of upstream's that does not read, because one of its frontends does not.
#[test]
fn a_server_that_stops_reading_is_waited_for() {
    // Far more than the buffers of all sockets on the way and one tunnel's of the agent.
    const LIMIT_BYTES: usize = 64 << 20;
    let mut pair = Pair::start();
    let held = Held::new();
    let id = pair.link.dial(&held.addr().to_string()).unwrap();
    let mut source = held.accept();
    pair.link.wire.freeze(true);
    // Nothing is taken for so long: it waits.
    let stalled = Some(Duration::from_secs(1));
    source.set_write_timeout(stalled).unwrap();
    let (part, mut sent) = (vec![1; 64 << 10], 0);
    let end = loop {
        match source.write(&part) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        assert!(sent < LIMIT_BYTES, "the agent buffers without a limit");
    };
    assert_eq!(end.kind(), ErrorKind::WouldBlock);
    let usage = pair.agent.guard.usage().unwrap().anonymous_kib;
    assert!(usage < 32 << 10, "{usage} KiB");
    pair.link.wire.freeze(false);
    drop(source);
    assert_eq!(pair.link.read_to_end(id).unwrap().0.len(), sent);
}

#[test]
fn bytes_before_close_are_delivered() {
    let mut pair = Pair::start();
    let held = Held::new();
    for count in [1000, 64 << 10, 2 << 20] {
        let bytes = noise(9, count);
        let id = pair.link.dial(&held.addr().to_string()).unwrap();
        let mut destination = held.accept();
        for part in bytes.chunks(32 << 10) {
            pair.link.write(id, part).unwrap();
        }
        pair.link.close(id).unwrap();
        wait::pause(Duration::from_millis(50));
        let mut found = vec![0; count];
        destination.read_exact(&mut found).unwrap();
        assert!(found == bytes, "{count}");
        assert_eq!(pair.link.read_to_end(id).unwrap().1, "");
    }
}

#[test]
fn agent_finds_its_server_again() {
    let mut pair = Pair::start();
    let held = Held::new();
    let id = pair.link.dial(&held.addr().to_string()).unwrap();
    let mut destination = held.accept();
    destination.write_all(b"x").unwrap();
    pair.link.read(id, 1).unwrap();
    pair.link.wire.cut();
    // Tunnels of a lost stream are closed.
    assert_ends(&mut destination);
    pair.link = pair.server.accept(LIMIT).unwrap();
    assert_eq!(pair.link.dial(&held.addr().to_string()).unwrap(), 1);
    // Ended by the server, this time.
    pair.link.wire.finish_with(14, "going away").unwrap();
    pair.link = pair.server.accept(LIMIT).unwrap();
    pair.agent.wait_ready(200);
}

#[test]
fn a_frozen_server_is_found_out() {
    let mut pair = Pair::with(&["--keepalive-time=10s"]);
    pair.agent.wait_ready(200);
    pair.link.wire.freeze(true);
    // After 10 s a ping is due, and after 20 s more it counts as lost at upstream's.
    pair.link = pair.server.accept(3 * LIMIT).unwrap();
    pair.agent.wait_ready(200);
}

#[test]
fn forbidden_destinations_are_not_dialed() {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let other = Upstream::start(Behavior::Echo).unwrap();
    let allowed = format!("--allow-destinations=127.0.0.1/32:{}", echo.addr().port());
    let mut pair = Pair::with(&[&allowed]);
    pair.link.dial(&echo.addr().to_string()).unwrap();
    let forbidden = other.addr().to_string();
    let error = format!("{:#}", pair.link.dial(&forbidden).unwrap_err());
    let expected = format!("destination {forbidden} is not allowed");
    assert!(error.ends_with(&expected), "{error}");
    assert_eq!(other.accepted(), 0);
    let counted = "rhizome_konnectivity_refused_destinations_total";
    pair.agent.wait_value(counted, &[], 1.0);
}

#[test]
fn its_certificate_is_read_again() {
    let mut pair = Pair::start();
    // Neither good nor bad yet: the stream lives on.
    pair.pki
        .client
        .write(pair.pki.dir.path(), "client")
        .unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    pair.link.dial(&echo.addr().to_string()).unwrap();
    pair.link.wire.cut();
    pair.server.accept(LIMIT).unwrap();
}
