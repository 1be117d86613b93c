//! How tunnels end: nothing lost, nothing left.

use std::io::{Read, Write};
use std::time::Duration;

use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Backend, Held, Kind, LIMIT, Mode, Rig, assert_ends, noise, pairings};

pairings!(either_side_may_end_a_tunnel, the_others_go_on_when_one_ends,);

fn either_side_may_end_a_tunnel(rig: &Rig) {
    let held = Held::new();
    let tunnel = rig.tunnel(held.addr());
    let mut destination = held.accept();
    drop(tunnel);
    assert_ends(&mut destination);
    drop(destination);
    let mut tunnel = rig.tunnel(held.addr());
    drop(held.accept());
    assert_eq!(tunnel.reader.rest().unwrap(), b"");
    drop(tunnel);
    rig.wait_idle();
}

fn the_others_go_on_when_one_ends(rig: &Rig) {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut stays = rig.tunnel(echo.addr());
    for round in 0..20 {
        let mut goes = rig.tunnel(echo.addr());
        let bytes = noise(round, 10_000);
        assert_eq!(goes.echo(&bytes).unwrap(), bytes);
        drop(goes);
        assert_eq!(stays.echo(&bytes).unwrap(), bytes);
    }
}

/// Upstream delivers everything in 5 of 20 runs at best.
fn bytes_before_client_close_arrive(mode: Mode) {
    let rig = Rig::start(mode, Kind::Rust);
    let held = Held::new();
    for (seed, count) in (0..).zip([1000, 64 << 10, 1 << 20, 8 << 20]) {
        let bytes = noise(seed, count);
        for _ in 0..3 {
            let mut tunnel = rig.tunnel(held.addr());
            let mut destination = held.accept();
            let reading = std::thread::spawn(move || {
                // Later than the close: what is under test is what waits meanwhile.
                wait::pause(Duration::from_millis(50));
                let mut found = Vec::new();
                let end = destination.read_to_end(&mut found);
                (found, end)
            });
            for part in bytes.chunks(100_000) {
                tunnel.writer.write_all(part).unwrap();
            }
            if mode == Mode::Grpc {
                tunnel.writer.finish().unwrap();
                // CLOSE_RSP comes once everything is delivered.
                assert_eq!(tunnel.reader.rest().unwrap(), b"");
            }
            drop(tunnel);
            let (found, end) = reading.join().unwrap();
            assert!(found == bytes, "{} of {count} bytes, {end:?}", found.len());
        }
    }
    rig.wait_idle();
}

#[test]
fn bytes_before_client_close_arrive_over_http() {
    bytes_before_client_close_arrive(Mode::Http);
}

#[test]
fn bytes_before_client_close_arrive_over_grpc() {
    bytes_before_client_close_arrive(Mode::Grpc);
}

#[test]
fn a_half_close_leaves_the_way_back_open() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let upstream = Upstream::start(Behavior::AnswersAtEof).unwrap();
    let mut tunnel = rig.tunnel(upstream.addr());
    tunnel.writer.write_all(&noise(1, 300_000)).unwrap();
    tunnel.writer.finish().unwrap();
    assert_eq!(tunnel.reader.rest().unwrap(), b"300000");
    rig.wait_idle();
}

#[test]
fn destination_half_close_keeps_other_direction() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let greeting = b"bye".to_vec();
    let upstream = Upstream::start(Behavior::EndsWriteFirst { greeting }).unwrap();
    let mut tunnel = rig.tunnel(upstream.addr());
    assert_eq!(tunnel.reader.rest().unwrap(), b"bye");
    tunnel.writer.write_all(&noise(1, 300_000)).unwrap();
    tunnel.writer.finish().unwrap();
    wait::until("all bytes", LIMIT, || upstream.received() == 300_000).unwrap();
    rig.wait_idle();
}

/// An agent of upstream's knows no half-close: what was sent arrives, the answer does not.
#[test]
fn half_close_to_upstream_agent_is_close() {
    let rig = Rig::start(Mode::Http, Kind::Go);
    let held = Held::new();
    let mut tunnel = rig.tunnel(held.addr());
    let mut destination = held.accept();
    tunnel.writer.write_all(b"request").unwrap();
    destination.read_exact(&mut [0; 7]).unwrap();
    tunnel.writer.finish().unwrap();
    assert_eq!(tunnel.reader.rest().unwrap(), b"");
    assert_eq!(destination.read(&mut [0]).unwrap(), 0);
    rig.wait_idle();
}

#[test]
fn agent_closes_connections_of_lost_server() {
    let mut rig = Rig::start(Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = rig.tunnel(echo.addr());
    tunnel.echo(b"x").unwrap();
    rig.server.guard.kill().unwrap();
    let Backend::Rust(agent) = &rig.agent else {
        panic!("ours");
    };
    agent.wait_tunnels(0);
    echo.wait_closed(LIMIT).unwrap();
}
