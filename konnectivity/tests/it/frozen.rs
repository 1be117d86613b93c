//! Agents that stand still and lines that are dead: what upstream waits for without end, and then
//! leaks.

use std::sync::Arc;
use std::time::Duration;

use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{
    AGENT, Agent, AgentFlags, Backend, Balancer, Kind, LIMIT, Mode, Pki, Rig, SERVER, ServerFlags,
    dial, refusal,
};

/// Short bounds, so that none of the tests lasts long.
fn rig(mode: Mode, kind: Kind, dial_timeout: &str, keepalive: &str) -> Rig {
    let flags = ServerFlags::new(mode)
        .flag(format!("--backend-dial-timeout={dial_timeout}"))
        .flag(format!("--keepalive-time={keepalive}"))
        .flag("--keepalive-timeout=2s");
    Rig::of(flags, mode, kind)
}

#[test]
fn a_dial_to_a_frozen_agent_is_given_up() {
    for kind in [Kind::Go, Kind::Rust] {
        for mode in [Mode::Grpc, Mode::Http] {
            let mut rig = rig(mode, kind, "1s", "1h");
            rig.agent.freeze(true);
            let clock = Stopwatch::start();
            let refused = refusal(&rig.frontend, "127.0.0.1:1");
            assert!(
                clock.elapsed() < Duration::from_secs(8),
                "{:?}",
                clock.elapsed()
            );
            if mode == Mode::Http {
                assert_eq!(refused.status, 504);
                assert!(
                    refused.body.starts_with("Backend dial timeout: "),
                    "{refused:?}"
                );
            }
            assert_eq!(rig.server.failures("backend_dial_timeout"), 1.0);
            rig.server
                .wait_value(&format!("{SERVER}pending_backend_dials"), &[], 0.0);
            rig.agent.freeze(false);
        }
    }
}

#[test]
fn a_frozen_agent_is_found_out_and_not_chosen() {
    for kind in [Kind::Go, Kind::Rust] {
        let mut rig = rig(Mode::Http, kind, "30s", "1s");
        let echo = Upstream::start(Behavior::Echo).unwrap();
        rig.tunnel(echo.addr()).echo(b"x").unwrap();
        rig.agent.freeze(true);
        rig.server.wait_ready(500);
        // No agent is left to dial, or none that answers.
        assert_eq!(refusal(&rig.frontend, "127.0.0.1:1").status, 500);
        rig.agent.freeze(false);
        if kind == Kind::Rust {
            rig.server.wait_ready(200);
            rig.tunnel(echo.addr()).echo(b"x").unwrap();
        }
    }
}

#[test]
fn dial_waits_for_frozen_agent_that_thaws() {
    let flags = ServerFlags::new(Mode::Http)
        .flag("--backend-dial-timeout=6s")
        .flag("--keepalive-timeout=20s");
    let mut rig = Rig::of(flags, Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.agent.freeze(true);
    // From here on it is known that the agent does not answer.
    assert_eq!(refusal(&rig.frontend, "127.0.0.1:1").status, 504);

    let (frontend, target) = (rig.server.frontend(), echo.addr().to_string());
    let dialing = std::thread::spawn(move || dial(&frontend, &target));
    let pending = format!("{SERVER}pending_backend_dials");
    rig.server.wait_value(&pending, &[], 1.0);
    rig.agent.freeze(false);

    let mut tunnel = dialing.join().unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

#[test]
fn responsive_agent_is_preferred_to_frozen() {
    let mut rig = rig(Mode::Http, Kind::Go, "2s", "1s");
    let living = Backend::start(Kind::Rust, &rig.server, "living");
    rig.server.wait_agents(2);
    rig.agent.freeze(true);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    for _ in 0..10 {
        rig.tunnel(echo.addr()).echo(b"x").unwrap();
    }
    rig.server.wait_agents(1);
    living.wait_tunnels(0);
    rig.agent.freeze(false);
}

#[test]
fn unanswered_dial_is_counted_when_another_agent_answers() {
    let mut rig = rig(Mode::Http, Kind::Go, "2s", "1h");
    let _living = Backend::start(Kind::Rust, &rig.server, "living");
    rig.server.wait_agents(2);
    rig.agent.freeze(true);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let retried = || {
        rig.server
            .value("rhizome_konnectivity_dials_retried_total", &[])
    };
    // Agents are chosen at random.
    while retried() == 0.0 {
        rig.tunnel(echo.addr()).echo(b"x").unwrap();
    }
    let ended = "rhizome_konnectivity_tunnels_ended_total";
    let count = |reason| rig.server.value(ended, &[("reason", reason)]);
    assert_eq!((count("dial_timeout"), count("cancelled")), (1.0, 0.0));
    rig.agent.freeze(false);
}

/// The agent's bound is its interval and the 20 s that an answer may take, as grpc-go has it.
#[test]
fn black_hole_is_noticed_at_both_ends() {
    let pki = Arc::new(Pki::new());
    let flags = ServerFlags::of(&pki, "server", Mode::Http);
    let flags = flags.flag("--keepalive-time=2s");
    let server = flags.flag("--keepalive-timeout=2s").start();
    let balancer = Balancer::start(&[server.agents()]);
    let flags = AgentFlags::new(&pki, "agent", balancer.addr()).flag("--keepalive-time=5s");
    let agent = Agent::connected(flags);
    server.wait_agents(1);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = dial(&server.frontend(), &echo.addr().to_string()).unwrap();
    tunnel.echo(b"x").unwrap();

    // No agent is connected again, so that what is counted are the connections that were.
    balancer.set(&[]);
    balancer.swallow();

    server.wait_agents(0);
    assert!(tunnel.reader.rest().unwrap().is_empty());
    let streams = format!("{AGENT}open_server_connections");
    wait::until("no stream at the agent", Duration::from_secs(30), || {
        agent.value(&streams, &[]) == 0.0
    })
    .unwrap();
    agent.wait_tunnels(0);
    echo.wait_closed(LIMIT).unwrap();
}

/// At upstream all 20 tunnels stay, on both sides.
#[test]
fn dials_that_were_given_up_leave_no_tunnels() {
    for kind in [Kind::Go, Kind::Rust] {
        for mode in [Mode::Grpc, Mode::Http] {
            let mut rig = rig(mode, kind, "30s", "1h");
            let echo = Upstream::start(Behavior::Echo).unwrap();
            rig.agent.freeze(true);
            match mode {
                Mode::Grpc => abandon_by_grpc(&rig, echo.addr()),
                Mode::Http => abandon_by_http(&rig, echo.addr()),
            }
            rig.agent.freeze(false);
            rig.tunnel(echo.addr()).echo(b"x").unwrap();
            rig.wait_idle();
            echo.wait_closed(LIMIT).unwrap();
            rig.server
                .wait_value(&format!("{SERVER}http_connections"), &[], 0.0);
        }
    }
}

fn abandon_by_http(rig: &Rig, addr: std::net::SocketAddr) {
    use std::io::Write;

    let pending = format!("{SERVER}pending_backend_dials");
    let http = rig.server.http();
    let head = format!("CONNECT {addr} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    let asked: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = http.open().unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    rig.server.wait_value(&pending, &[], 20.0);
    drop(asked);
    rig.server.wait_value(&pending, &[], 0.0);
    assert_eq!(rig.server.failures("frontend_close"), 20.0);
}

fn abandon_by_grpc(rig: &Rig, addr: std::net::SocketAddr) {
    use testkit::konnectivity::Packet;

    let pending = format!("{SERVER}pending_backend_dials");
    let grpc = rig.server.grpc();
    let asked: Vec<_> = (0..20)
        .map(|random| {
            let wire = grpc.open().unwrap();
            let address = addr.to_string();
            wire.send(&Packet::DialReq { address, random }).unwrap();
            wire
        })
        .collect();
    rig.server.wait_value(&pending, &[], 20.0);
    // Some end their streams in order, the others just go.
    for wire in asked.iter().take(10) {
        wire.finish().unwrap();
    }
    rig.server.wait_value(&pending, &[], 10.0);
    drop(asked);
    rig.server.wait_value(&pending, &[], 0.0);
    assert_eq!(rig.server.failures("frontend_close"), 20.0);
}
