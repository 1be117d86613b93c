//! A tunnel that stands still leaves the others alone.

use std::io::{Read, Write};
use std::time::Duration;

use testkit::konnectivity::{GrpcFrontend, Packet, Tunnel};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Kind, LIMIT, Mode, Rig, ServerFlags, pairings};

pairings!(stalled_reader_stalls_no_other);

fn stalled_reader_stalls_no_other(rig: &Rig) {
    let source = Upstream::start(Behavior::Source { bytes: u64::MAX }).unwrap();
    let mut stalled = rig.tunnel(source.addr());
    stalled.reader.read_exact(&mut [0; 1000]).unwrap();
    others_live(rig, Duration::from_secs(3));
    drop(stalled);
    rig.wait_idle();
}

/// An agent of upstream's waits for the slowest of its destinations, whatever its server does.
#[test]
fn stalled_destination_stalls_no_other() {
    for mode in [Mode::Http, Mode::Grpc] {
        destination_stops(&Rig::start(mode, Kind::Rust));
    }
}

fn destination_stops(rig: &Rig) {
    let stuck = Upstream::start(Behavior::NeverReads).unwrap();
    let stalled = rig.tunnel(stuck.addr());
    let filling = fill(stalled);
    others_live(rig, Duration::from_secs(3));
    drop(stuck);
    filling.join().unwrap();
    rig.wait_idle();
}

/// Writes until the tunnel takes no more for ever, in the background.
fn fill(stalled: Tunnel) -> std::thread::JoinHandle<()> {
    let Tunnel { reader, mut writer } = stalled;
    std::thread::spawn(move || {
        let part = vec![3; 64 << 10];
        while writer.write_all(&part).is_ok() {}
        drop(reader);
    })
}

/// Exchanges bytes on a tunnel from before and on new ones for some time. Each exchange, of three
/// round trips, is far below the 30 s for which a stalled stream would hold it up; on a busy machine
/// one has taken 2 s.
fn others_live(rig: &Rig, time: Duration) {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut old = rig.tunnel(echo.addr());
    let clock = Stopwatch::start();
    while clock.elapsed() < time {
        let exchange = Stopwatch::start();
        assert_eq!(old.echo(b"old").unwrap(), b"old");
        assert_eq!(rig.tunnel(echo.addr()).echo(b"new").unwrap(), b"new");
        let taken = exchange.elapsed();
        assert!(
            taken < Duration::from_secs(10),
            "an exchange took {taken:?}"
        );
    }
}

#[test]
fn hundred_stalled_tunnels_stay_within_budget() {
    for mode in [Mode::Http, Mode::Grpc] {
        let flags = ServerFlags::new(mode).flag("--max-buffered-bytes=32MiB");
        let rig = Rig::of(flags, mode, Kind::Rust);
        let source = Upstream::start(Behavior::Source { bytes: u64::MAX }).unwrap();
        let stalled: Vec<_> = (0..100).map(|_| rig.tunnel(source.addr())).collect();
        others_live(&rig, Duration::from_secs(2));
        let held = rig.server.guard.usage().unwrap().anonymous_kib / 1024;
        // 32 MiB held, and the sockets' and HTTP/2's own.
        assert!(held < 96, "{held} MiB");
        drop(stalled);
        rig.wait_idle();
    }
}

#[test]
fn a_stalled_tunnel_goes_on_where_it_stopped() {
    const COUNT: u64 = 24 << 20;
    for mode in [Mode::Http, Mode::Grpc] {
        let rig = Rig::start(mode, Kind::Rust);
        let source = Upstream::start(Behavior::Source { bytes: COUNT }).unwrap();
        let mut stalled = rig.tunnel(source.addr());
        stalled.reader.read_exact(&mut [0; 100]).unwrap();
        others_live(&rig, Duration::from_secs(1));
        assert_eq!(stalled.reader.rest().unwrap().len() as u64, COUNT - 100);
    }
}

/// An agent of upstream's has no flow control: a reader that stops for long is cut, and counted.
#[test]
fn stalled_reader_of_upstream_agent_is_cut() {
    let flags = ServerFlags::new(Mode::Http).flag("--slow-consumer-timeout=1s");
    let rig = Rig::of(flags, Mode::Http, Kind::Go);
    let source = Upstream::start(Behavior::Source { bytes: u64::MAX }).unwrap();
    let stalled = rig.tunnel(source.addr());
    wait::until("the cut", LIMIT, || rig.server.established() == 0.0).unwrap();
    source.wait_closed(LIMIT).unwrap();
    let ended = "rhizome_konnectivity_tunnels_ended_total";
    let reason = [("reason", "slow_consumer")];
    assert_eq!(rig.server.value(ended, &reason), 1.0);
    drop(stalled);
}

/// Small messages cost more than their bytes.
#[test]
fn small_packets_stall_no_shared_connection() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let stuck = Upstream::start(Behavior::NeverReads).unwrap();
    let frontend = GrpcFrontend::sharing(&rig.server.flags.uds()).unwrap();
    let mut lives = frontend.connect(&echo.addr().to_string()).unwrap().unwrap();
    let mut wire = frontend.open().unwrap();
    let (address, random) = (stuck.addr().to_string(), 9);
    wire.send(&Packet::DialReq { address, random }).unwrap();
    let Packet::DialRsp { connect_id, .. } = wire.recv(LIMIT).unwrap() else {
        panic!("no answer to a dial");
    };
    // Enough to fill everything on the way, then as many single bytes as still are taken.
    let filling = std::thread::spawn(move || {
        let large = Packet::data(connect_id, vec![1; 64 << 10]);
        let piled = (0..160).all(|_| wire.send(&large).is_ok());
        let small = vec![Packet::data(connect_id, *b"x"); 100];
        let _ = piled && (0..1000).all(|_| small.iter().all(|packet| wire.send(packet).is_ok()));
    });
    let clock = Stopwatch::start();
    while clock.elapsed() < Duration::from_secs(4) {
        assert_eq!(lives.echo(b"x").unwrap(), b"x");
    }
    drop(stuck);
    filling.join().unwrap();
    assert_eq!(lives.echo(b"x").unwrap(), b"x");
}
