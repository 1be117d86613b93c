//! A tunnel that stands still leaves the others alone.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testkit::konnectivity::{GrpcFrontend, Packet, Tunnel};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Backend, Kind, LIMIT, Mode, Rig, ServerFlags, pairings};

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
    let Backend::Rust(agent) = &rig.agent else {
        panic!("ours");
    };
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
    // Until the sockets are full and the agent holds most of the least window that a tunnel has.
    let large = Packet::data(connect_id, vec![1; 64 << 10]);
    wait::until("the agent to buffer", LIMIT, || {
        wire.send(&large).unwrap();
        agent.value("rhizome_konnectivity_buffered_bytes", &[]) > f64::from(128 << 10)
    })
    .unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let filling = std::thread::spawn(move || {
        let small = Packet::data(connect_id, vec![1; 64]);
        while wire.send(&small).is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    // The others live while small packets fill the rest, and when none is accepted any more.
    let (mut last, mut stalled) = (0, Stopwatch::start());
    wait::until("the small packets to stall", 3 * LIMIT, || {
        assert_eq!(lives.echo(b"x").unwrap(), b"x");
        let now = sent.load(Ordering::Relaxed);
        if std::mem::replace(&mut last, now) != now {
            stalled = Stopwatch::start();
        }
        last > 1000 && stalled.elapsed() > Duration::from_secs(2)
    })
    .unwrap();
    drop(stuck);
    filling.join().unwrap();
    assert_eq!(lives.echo(b"x").unwrap(), b"x");
}
