//! What is above a bound is refused, and nothing else.

use std::net::{SocketAddr, TcpStream};

use testkit::konnectivity::{AgentMetadata, DialRule, FakeAgent, FakeFrontend, HttpFrontend};
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Backend, Kind, LIMIT, Mode, Rig, SERVICE, Server, ServerFlags, refusal};

#[test]
fn tunnels_are_bounded() {
    for mode in [Mode::Http, Mode::Grpc] {
        let flags = ServerFlags::new(mode).flag("--max-tunnels=2");
        let rig = Rig::of(flags, mode, Kind::Rust);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut kept: Vec<_> = (0..2).map(|_| rig.tunnel(echo.addr())).collect();
        let refused = refusal(&rig.frontend, &echo.addr().to_string());
        if mode == Mode::Http {
            assert_eq!(refused.status, 503, "{refused:?}");
        }
        for tunnel in &mut kept {
            assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
        }
        kept.pop();
        rig.server.wait_tunnels(1);
        rig.tunnel(echo.addr()).echo(b"x").unwrap();
    }
}

#[test]
fn dials_that_wait_are_bounded() {
    let flags = ServerFlags::new(Mode::Http).flag("--max-pending-dials=2");
    let rig = Rig::of(flags, Mode::Http, Kind::Go);
    let Backend::Go(agent) = &rig.agent else {
        panic!("a fake");
    };
    agent.rule(DialRule::Ignore);
    let asking: Vec<_> = (0..2)
        .map(|_| {
            use std::io::Write;
            let mut stream = rig.server.http().open().unwrap();
            stream
                .write_all(b"CONNECT 10.0.0.1:1 HTTP/1.1\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    agent.wait_dials(2, LIMIT).unwrap();
    assert_eq!(refusal(&rig.frontend, "10.0.0.1:1").status, 503);
    drop(asking);
    let pending = format!("{}pending_backend_dials", crate::support::SERVER);
    rig.server.wait_value(&pending, &[], 0.0);
    agent.rule(DialRule::Refuse("no".to_owned()));
    assert_eq!(refusal(&rig.frontend, "10.0.0.1:1").body, "no");
}

#[test]
fn dials_per_second_are_bounded() {
    let flags = ServerFlags::new(Mode::Http).flag("--max-dials-per-second=5");
    let rig = Rig::of(flags, Mode::Http, Kind::Go);
    let Backend::Go(agent) = &rig.agent else {
        panic!("a fake");
    };
    agent.rule(DialRule::Refuse("no".to_owned()));
    let statuses: Vec<_> = (0..40)
        .map(|_| refusal(&rig.frontend, "10.0.0.1:1").status)
        .collect();
    assert!(statuses.contains(&502), "{statuses:?}");
    assert!(statuses.contains(&503), "{statuses:?}");
}

/// A server with TLS on both ports, of which each has 93 places for handshakes.
fn with_few_places() -> Server {
    let flags = ServerFlags::new(Mode::Http).tcp().descriptors(1000);
    flags.start()
}

/// Opens connections that say nothing to a port until one source has no place left there.
fn fill(server: &Server, addr: SocketAddr, port: &str) -> Vec<TcpStream> {
    let dial = || TcpStream::connect(addr).unwrap();
    let silent = (0..200).map(|_| dial()).collect();
    let refused = "rhizome_konnectivity_refused_peers_total";
    let labels = [("port", port), ("reason", "limit")];
    // One source has half of them.
    server.wait_value(refused, &labels, 200.0 - 47.0);
    silent
}

#[test]
fn silent_connections_do_not_lock_frontends_out() {
    let server = with_few_places();
    let _silent = fill(&server, server.agents(), "agents");

    let (pki, addr) = (server.pki(), server.frontends());
    let frontend = HttpFrontend::tls(addr, SERVICE, pki.authority.pem(), Some(&pki.client));
    let answer = refusal(&FakeFrontend::Http(frontend.unwrap()), "10.0.0.1:1");

    assert_eq!(answer.status, 500, "there is no agent: {answer:?}");
}

#[test]
fn silent_connections_do_not_lock_agents_out() {
    let server = with_few_places();
    let _silent = fill(&server, server.frontends(), "frontends");

    let _agent = FakeAgent::start(&server.target(), &AgentMetadata::new("a")).unwrap();

    server.wait_agents(1);
}

#[test]
fn too_long_target_ends_no_link() {
    for mode in [Mode::Http, Mode::Grpc] {
        let rig = Rig::start(mode, Kind::Rust);
        let _second = Backend::start(Kind::Rust, &rig.server, "second");
        rig.server.wait_agents(2);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut tunnels: Vec<_> = (0..8).map(|_| rig.tunnel(echo.addr())).collect();

        let refused = refusal(&rig.frontend, &format!("{}:443", "a".repeat(600)));

        match mode {
            Mode::Http => assert_eq!(refused.status, 400, "{refused:?}"),
            Mode::Grpc => assert_eq!(refused.body, "address of 604 bytes, more than 512"),
        }
        for tunnel in &mut tunnels {
            assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
        }
    }
}

#[test]
fn agents_are_bounded() {
    let server = ServerFlags::new(Mode::Http).flag("--max-agents=1").start();
    let first = FakeAgent::start(&server.target(), &AgentMetadata::new("a")).unwrap();
    server.wait_agents(1);
    assert!(FakeAgent::start(&server.target(), &AgentMetadata::new("b")).is_err());
    drop(first);
    server.wait_agents(0);
    let _third = FakeAgent::start(&server.target(), &AgentMetadata::new("c")).unwrap();
    server.wait_agents(1);
}
