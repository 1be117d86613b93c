//! Bytes through tunnels, and dials that come to nothing, for every pairing.

use std::io::{Read, Write};
use std::net::SocketAddr;

use testkit::upstream::{Behavior, Upstream};
use testkit::wait::Stopwatch;

use crate::support::{
    AGENT, Backend, Held, Kind, LIMIT, Mode, Refusing, Rig, SERVICE, Unanswering, noise, pairings,
    refusal,
};

pairings!(
    a_megabyte_comes_back_unchanged,
    a_request_is_answered,
    dials_leave_nothing_behind,
    single_bytes_come_back_at_once,
    tunnels_do_not_mix,
    an_unknown_name_is_an_error,
    an_unanswering_destination_is_given_up,
    a_refusing_destination_is_an_error,
);

fn a_request_is_answered(rig: &Rig) {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let greeting = answer.to_vec();
    let upstream = Upstream::start(Behavior::EndsWriteFirst { greeting }).unwrap();
    let mut tunnel = rig.tunnel(upstream.addr());
    // Half of the pairings end with the answer, before the request is sent.
    let _ = tunnel.writer.write_all(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(tunnel.reader.rest().unwrap(), answer);
}

fn a_megabyte_comes_back_unchanged(rig: &Rig) {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let tunnel = rig.tunnel(echo.addr());
    assert!(tunnel.early().is_empty());
    let (mut reader, mut writer) = (tunnel.reader, tunnel.writer);
    let bytes = noise(1, 1 << 20);
    let sent = bytes.clone();
    let sending = std::thread::spawn(move || {
        for part in sent.chunks(30_000) {
            writer.write_all(part).unwrap();
        }
        writer
    });
    let mut back = vec![0; bytes.len()];
    reader.read_exact(&mut back).unwrap();
    assert!(back == bytes, "other bytes came back");
    drop(sending.join().unwrap());
    drop(reader);
    echo.wait_closed(LIMIT).unwrap();
    rig.wait_idle();
}

fn single_bytes_come_back_at_once(rig: &Rig) {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = rig.tunnel(echo.addr());
    for round in 0..1000_u32 {
        let byte = [round.to_le_bytes()[0]];
        assert_eq!(tunnel.echo(&byte).unwrap(), byte);
    }
}

fn tunnels_do_not_mix(rig: &Rig) {
    const TUNNELS: u64 = 40;
    let echo = Upstream::start(Behavior::Echo).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..TUNNELS {
            let addr = echo.addr();
            scope.spawn(move || {
                let mut tunnel = rig.tunnel(addr);
                for part in noise(seed, 64 << 10).chunks(8 << 10) {
                    assert!(tunnel.echo(part).unwrap() == part, "tunnel {seed}");
                }
            });
        }
    });
    assert_eq!(echo.accepted() as u64, TUNNELS);
    rig.wait_idle();
}

fn dials_leave_nothing_behind(rig: &Rig) {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let once = |rig: &Rig| assert_eq!(rig.tunnel(echo.addr()).echo(b"ping").unwrap(), b"ping");
    let descriptors = |rig: &Rig| {
        let agent = match &rig.agent {
            Backend::Go(_) => 0,
            Backend::Rust(agent) => agent.guard.usage().unwrap().descriptors,
        };
        (rig.server.guard.usage().unwrap().descriptors, agent)
    };
    once(rig);
    rig.wait_idle();
    let before = descriptors(rig);
    for _ in 0..200 {
        once(rig);
    }
    rig.wait_idle();
    let back = testkit::wait::until("descriptors of the start", LIMIT, || {
        let now = descriptors(rig);
        now.0 <= before.0 && now.1 <= before.1
    });
    assert!(
        back.is_ok(),
        "{before:?} before, {:?} now",
        descriptors(rig)
    );
}

fn a_refusing_destination_is_an_error(rig: &Rig) {
    let refusing = Refusing::new();
    let refusal = refusal(&rig.frontend, &refusing.addr.to_string());
    let text = format!("dial tcp {}: connect: connection refused", refusing.addr);
    assert_eq!(refusal.body, text);
    assert_status(rig, refusal.status, 502);
    assert_eq!(rig.server.failures("error_response"), 1.0);
    if let Backend::Rust(agent) = &rig.agent {
        let name = format!("{AGENT}endpoint_dial_failure_total");
        assert_eq!(agent.value(&name, &[("reason", "unknown")]), 1.0);
    }
    rig.wait_idle();
}

fn an_unknown_name_is_an_error(rig: &Rig) {
    let refusal = refusal(&rig.frontend, "no-such-host.invalid:80");
    assert!(refusal.body.contains("no such host"), "{refusal:?}");
    assert_status(rig, refusal.status, 502);
}

fn an_unanswering_destination_is_given_up(rig: &Rig) {
    let unanswering = Unanswering::new();
    let clock = Stopwatch::start();
    let refusal = refusal(&rig.frontend, &unanswering.addr.to_string());
    let taken = clock.elapsed();
    assert!(refusal.body.contains("i/o timeout"), "{refusal:?}");
    assert_status(rig, refusal.status, 504);
    // The agent's bound is 5 s, the server's 10 s.
    assert!((4..9).contains(&taken.as_secs()), "after {taken:?}");
    if let Backend::Rust(agent) = &rig.agent {
        let name = format!("{AGENT}endpoint_dial_failure_total");
        assert_eq!(agent.value(&name, &[("reason", "timeout")]), 1.0);
    }
}

fn assert_status(rig: &Rig, found: u16, http: u16) {
    let expected = match rig.mode {
        Mode::Grpc => 0,
        Mode::Http => http,
    };
    assert_eq!(found, expected);
}

#[test]
fn names_are_resolved_by_the_agent() {
    let held = Held::new();
    for kind in [Kind::Go, Kind::Rust] {
        let rig = Rig::start(Mode::Http, kind);
        let target = format!("localhost:{}", held.addr().port());
        let mut tunnel = crate::support::dial(&rig.frontend, &target).unwrap();
        let mut destination = held.accept();
        tunnel.writer.write_all(b"x").unwrap();
        destination.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn one_grpc_connection_carries_many_dials() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let frontend = testkit::konnectivity::GrpcFrontend::sharing(&rig.server.flags.uds()).unwrap();
    let connect = |addr: SocketAddr| frontend.connect(&addr.to_string()).unwrap().unwrap();
    let mut tunnels: Vec<_> = (0..20).map(|_| connect(echo.addr())).collect();
    for (seed, tunnel) in (0..).zip(&mut tunnels) {
        let bytes = noise(seed, 1000);
        assert_eq!(tunnel.echo(&bytes).unwrap(), bytes);
    }
    drop(tunnels.split_off(10));
    rig.server.wait_established(10);
    for tunnel in &mut tunnels {
        assert_eq!(tunnel.echo(b"still").unwrap(), b"still");
    }
}

#[test]
fn a_write_of_more_than_four_megabytes_passes() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let sink = Upstream::start(Behavior::Sink).unwrap();
    let mut tunnel = rig.tunnel(sink.addr());
    let bytes = vec![7; 8 << 20];
    tunnel.writer.write_all(&bytes).unwrap();
    testkit::wait::until("8 MiB at the destination", LIMIT, || {
        sink.received() == bytes.len() as u64
    })
    .unwrap();
}

#[test]
fn frontends_come_by_mutual_tls_as_well() {
    use testkit::konnectivity::HttpFrontend;

    let server = crate::support::ServerFlags::new(Mode::Http).tcp().start();
    let _agent = Backend::start(Kind::Rust, &server, "agent");
    server.wait_agents(1);
    let pki = server.pki();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let pem = pki.authority.pem();
    let frontend = HttpFrontend::tls(server.frontends(), SERVICE, pem, Some(&pki.client)).unwrap();
    let mut tunnel = frontend.connect(&echo.addr().to_string()).unwrap().unwrap();
    let bytes = noise(3, 100_000);
    assert_eq!(tunnel.echo(&bytes).unwrap(), bytes);
}
