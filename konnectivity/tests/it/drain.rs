//! Programs that are told to stop.

use std::time::Duration;

use testkit::konnectivity::{FakeServer, GrpcFrontend, Packet, ServerOptions};
use testkit::process::Signal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{
    Agent, AgentFlags, Backend, Balancer, Kind, LIMIT, Mode, Pki, Rig, SERVER, Server, ServerFlags,
    dial,
};

#[test]
fn draining_agent_is_dialed_last() {
    for (kind, mode) in [(Kind::Rust, Mode::Http), (Kind::Go, Mode::Grpc)] {
        let mut rig = Rig::start(mode, kind);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut old = rig.tunnel(echo.addr());
        old.echo(b"x").unwrap();
        let other = Backend::start(Kind::Go, &rig.server, "other");
        rig.server.wait_agents(2);
        drain(&mut rig.agent);
        // From the packet on, all dials go elsewhere: 20 in a row would not by chance.
        let (Backend::Go(agent), addr) = (&other, echo.addr()) else {
            panic!("a fake");
        };
        let mut row = 0;
        wait::until("20 dials in a row", LIMIT, || {
            let before = agent.dials().len();
            rig.tunnel(addr).echo(b"x").unwrap();
            row = if agent.dials().len() > before {
                row + 1
            } else {
                0
            };
            row == 20
        })
        .unwrap();
        assert_eq!(old.echo(b"still").unwrap(), b"still");
        drop(old);
        if let Backend::Rust(agent) = &mut rig.agent {
            assert!(agent.wait_exit().success());
        }
    }
}

#[test]
fn draining_agent_is_dialed_if_alone() {
    for kind in [Kind::Rust, Kind::Go] {
        let mut rig = Rig::start(Mode::Http, kind);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        drain(&mut rig.agent);
        if let Backend::Rust(agent) = &rig.agent {
            agent.wait_value("rhizome_konnectivity_draining", &[], 1.0);
        }
        for _ in 0..5 {
            rig.tunnel(echo.addr()).echo(b"x").unwrap();
        }
    }
}

#[test]
fn agent_announces_drain_on_each_stream() {
    let pki = std::sync::Arc::new(Pki::new());
    let servers = ["one", "two"].map(|id| {
        let mut options = ServerOptions::new(id, &pki.server);
        options.count = 2;
        FakeServer::start(&options).unwrap()
    });
    let balancer = Balancer::start(&servers.each_ref().map(FakeServer::addr));
    let flags = AgentFlags::new(&pki, "ours", balancer.addr()).flag("--grace-period=1h");
    let mut agent = flags.start();
    agent.wait_servers(2);
    let mut links = servers
        .each_ref()
        .map(|server| server.accept(LIMIT).unwrap());
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let old = links.each_mut().map(|link| link.dial(&target).unwrap());
    agent.signal(Signal::TERM);
    for (link, old) in links.iter_mut().zip(old) {
        let drain = |packet: &Packet| *packet == Packet::Drain;
        link.wire.find("DRAIN", LIMIT, drain).unwrap();
        // Old ones live, new ones are served.
        link.write(old, b"still").unwrap();
        assert_eq!(link.read(old, 5).unwrap(), b"still");
        let new = link.dial(&target).unwrap();
        link.write(new, b"new").unwrap();
        assert_eq!(link.read(new, 3).unwrap(), b"new");
        assert!(agent.guard.exit_status().unwrap().is_none());
        link.close(old).unwrap();
        link.close(new).unwrap();
    }
    assert!(agent.wait_exit().success());
}

#[test]
fn agent_ends_at_grace_period_or_second_signal() {
    let pki = std::sync::Arc::new(Pki::new());
    let server = FakeServer::start(&ServerOptions::new("one", &pki.server)).unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    for (grace, signals) in [("2s", 1), ("100s", 2)] {
        let flags = AgentFlags::new(&pki, "ours", server.addr());
        let mut agent = flags.flag(format!("--grace-period={grace}")).start();
        let mut link = server.accept(LIMIT).unwrap();
        link.dial(&echo.addr().to_string()).unwrap();
        let clock = Stopwatch::start();
        agent.signal(Signal::TERM);
        let drain = |packet: &Packet| *packet == Packet::Drain;
        link.wire.find("DRAIN", LIMIT, drain).unwrap();
        if signals == 2 {
            agent.signal(Signal::TERM);
        }
        agent.wait_exit();
        let least = Duration::from_secs(if signals == 1 { 2 } else { 0 });
        let took = clock.elapsed();
        assert!((least..LIMIT).contains(&took), "{grace}: {took:?}");
        echo.wait_closed(LIMIT).unwrap();
    }
}

#[test]
fn draining_server_lets_tunnels_end() {
    for mode in [Mode::Http, Mode::Grpc] {
        let flags = ServerFlags::new(mode).flag("--graceful-shutdown-timeout=60s");
        let mut rig = Rig::of(flags, mode, Kind::Rust);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut old = rig.tunnel(echo.addr());
        old.echo(b"x").unwrap();
        rig.server.signal(Signal::TERM);
        rig.server.wait_status("/readyz", 500);
        wait::until("no new tunnels", LIMIT, || {
            !matches!(rig.frontend.connect(&echo.addr().to_string()), Ok(Ok(_)))
        })
        .unwrap();
        assert_eq!(old.echo(b"still").unwrap(), b"still");
        drop(old);
        assert!(rig.server.wait_exit().success());
    }
}

#[test]
fn draining_server_takes_no_streams_of_shared_connection() {
    let flags = ServerFlags::new(Mode::Grpc).flag("--graceful-shutdown-timeout=60s");
    let mut rig = Rig::of(flags, Mode::Grpc, Kind::Rust);
    let frontend = GrpcFrontend::sharing(&rig.server.flags.uds()).unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let mut old = frontend.connect(&target).unwrap().unwrap();
    old.echo(b"x").unwrap();

    rig.server.signal(Signal::TERM);

    wait::until("GOAWAY", LIMIT, || frontend.open().is_err()).unwrap();
    assert_eq!(old.echo(b"still").unwrap(), b"still");
    // Nothing but the connection is left then, and that the client keeps.
    drop(old);
    assert!(rig.server.wait_exit().success());
}

#[test]
fn stopped_server_accepts_until_drain_delay() {
    let flags = ServerFlags::new(Mode::Http).flag("--graceful-shutdown-delay=1h");
    let mut rig = Rig::of(flags, Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.server.signal(Signal::TERM);
    rig.server.wait_status("/readyz", 500);
    // The load balancer has not seen it yet.
    let mut new = rig.tunnel(echo.addr());
    assert_eq!(new.echo(b"new").unwrap(), b"new");
    rig.server.signal(Signal::TERM);
    rig.server.wait_exit();
}

#[test]
fn dial_waits_for_agents_just_lost() {
    let rig = Rig::start(Mode::Http, Kind::Go);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.tunnel(echo.addr()).echo(b"x").unwrap();
    drop(rig.agent);
    rig.server.wait_agents(0);
    let addr = echo.addr().to_string();
    let (frontend, server) = (&rig.frontend, &rig.server);
    let mut tunnel = std::thread::scope(|scope| {
        let asked = scope.spawn(|| dial(frontend, &addr).unwrap());
        server.wait_value(&format!("{SERVER}pending_backend_dials"), &[], 1.0);
        // One that comes again has the same id or not.
        let again = Backend::start(Kind::Go, server, "again");
        (asked.join().unwrap(), again)
    });
    assert_eq!(tunnel.0.echo(b"new").unwrap(), b"new");
}

#[test]
fn a_server_ends_tunnels_at_the_deadline() {
    let flags = ServerFlags::new(Mode::Http).flag("--graceful-shutdown-timeout=3s");
    let mut rig = Rig::of(flags, Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = rig.tunnel(echo.addr());
    tunnel.echo(b"x").unwrap();
    let clock = Stopwatch::start();
    rig.server.signal(Signal::TERM);
    rig.server.wait_exit();
    let took = clock.elapsed();
    let expected = Duration::from_secs(3)..Duration::from_secs(15);
    assert!(expected.contains(&took), "{took:?}");
    // An end or a reset.
    let _ = tunnel.reader.rest();
    echo.wait_closed(LIMIT).unwrap();
}

#[test]
fn a_server_without_patience_ends_at_once() {
    let mut server = Server::start(Mode::Http);
    let _agent: Agent = Agent::connected(AgentFlags::new(server.pki(), "a", server.agents()));
    server.wait_ready(200);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let frontend = server.frontend();
    let mut tunnel = dial(&frontend, &echo.addr().to_string()).unwrap();
    tunnel.echo(b"x").unwrap();
    let clock = Stopwatch::start();
    server.signal(Signal::TERM);
    server.wait_exit();
    // Below any time a server may be given; on an idle machine it takes some milliseconds.
    let took = clock.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    echo.wait_closed(LIMIT).unwrap();
    assert!(!server.flags.uds().exists());
}

fn drain(agent: &mut Backend) {
    match agent {
        Backend::Go(agent) => agent.send(Packet::Drain).unwrap(),
        Backend::Rust(agent) => agent.signal(Signal::TERM),
    }
}
