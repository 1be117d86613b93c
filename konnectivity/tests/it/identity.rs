//! Who is let in: certificates and protocols of agents and frontends.

use std::io::Write;
use std::time::Duration;

use testkit::certs::{Authority, Identity};
use testkit::konnectivity::{AgentMetadata, AgentTarget, FakeAgent, FakeFrontend, HttpFrontend};
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Agent, AgentFlags, Mode, SERVICE, Server, ServerFlags, tunnel};

/// Certificates that must not do, with what is wrong with them.
fn strangers(server: &Server) -> Vec<(&'static str, Option<Identity>)> {
    let other = Authority::new("other").unwrap();
    let ours = &server.pki().authority;
    vec![
        ("none", None),
        (
            "another authority",
            Some(other.client("client", &[], &[]).unwrap()),
        ),
        ("expired", Some(ours.expired_client("client", &[]).unwrap())),
        ("a server's", Some(ours.server(&["127.0.0.1"]).unwrap())),
    ]
}

#[test]
fn agents_without_a_good_certificate_are_refused() {
    let server = Server::start(Mode::Http);
    for (what, identity) in strangers(&server) {
        let target = AgentTarget {
            identity,
            ..server.target()
        };
        let agent = FakeAgent::start(&target, &AgentMetadata::new("a"));
        assert!(agent.is_err(), "{what}");
    }
    assert_eq!(server.readiness(), 500);
    let _agent = FakeAgent::start(&server.target(), &AgentMetadata::new("a")).unwrap();
    server.wait_ready(200);
}

#[test]
fn agents_need_no_optional_certificate() {
    let server = ServerFlags::new(Mode::Http).any_agent().start();
    let target = AgentTarget {
        identity: None,
        ..server.target()
    };
    let _agent = FakeAgent::start(&target, &AgentMetadata::new("a")).unwrap();
    let _ours =
        Agent::connected(AgentFlags::new(server.pki(), "ours", server.agents()).anonymous());
    server.wait_agents(2);
}

#[test]
fn frontends_without_certificate_are_refused() {
    let server = ServerFlags::new(Mode::Http).tcp().start();
    let pem = server.pki().authority.pem();
    for (what, identity) in strangers(&server) {
        let frontend =
            HttpFrontend::tls(server.frontends(), SERVICE, pem, identity.as_ref()).unwrap();
        assert!(frontend.connect("127.0.0.1:1").is_err(), "{what}");
    }
    let client = Some(&server.pki().client);
    let frontend = HttpFrontend::tls(server.frontends(), SERVICE, pem, client).unwrap();
    assert_eq!(
        frontend.connect("127.0.0.1:1").unwrap().unwrap_err().status,
        500
    );
}

#[test]
fn agents_must_offer_http2_and_may_offer_more() {
    let server = Server::start(Mode::Http);
    for alpn in [vec![], vec!["http/1.1".to_owned()]] {
        let target = AgentTarget {
            alpn: alpn.clone(),
            ..server.target()
        };
        assert!(
            FakeAgent::start(&target, &AgentMetadata::new("a")).is_err(),
            "{alpn:?}"
        );
    }
    let alpn = vec!["custom".to_owned(), "h2".to_owned()];
    let target = AgentTarget {
        alpn,
        ..server.target()
    };
    let _agent = FakeAgent::start(&target, &AgentMetadata::new("a")).unwrap();
    let flags = AgentFlags::new(server.pki(), "ours", server.agents());
    let _ours = Agent::connected(flags.flag("--alpn-proto=custom"));
    server.wait_agents(2);
}

#[test]
fn garbage_on_ports_hurts_no_tunnel() {
    let server = ServerFlags::new(Mode::Http).tcp().start();
    let _agent = FakeAgent::start(&server.target(), &AgentMetadata::new("a")).unwrap();
    server.wait_ready(200);
    let (pem, client) = (server.pki().authority.pem(), &server.pki().client);
    let frontend = HttpFrontend::tls(server.frontends(), SERVICE, pem, Some(client)).unwrap();
    let frontend = FakeFrontend::Http(frontend);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut open = tunnel(&frontend, echo.addr());
    assert_eq!(open.echo(b"before").unwrap(), b"before");
    for (addr, port) in [
        (server.agents(), "agents"),
        (server.frontends(), "frontends"),
    ] {
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0; 100],
            b"\x16\x03\x01\xff\xff",
        ] {
            let mut stream = std::net::TcpStream::connect(addr).unwrap();
            stream.write_all(garbage).unwrap();
        }
        let refused = "rhizome_konnectivity_refused_peers_total";
        server.wait_value(refused, &[("port", port)], 3.0);
        // Says nothing, and stays.
        std::mem::forget(std::net::TcpStream::connect(addr).unwrap());
        assert_eq!(open.echo(b"after").unwrap(), b"after");
    }
    let _second = FakeAgent::start(&server.target(), &AgentMetadata::new("b")).unwrap();
    server.wait_agents(2);
    let mut new = tunnel(&frontend, echo.addr());
    assert_eq!(new.echo(b"new").unwrap(), b"new");
}

#[test]
fn an_agent_refuses_a_server_it_does_not_trust() {
    let server = Server::start(Mode::Http);
    let other = Authority::new("other").unwrap();
    let ca = other.write(&server.pki().dir.join("other.crt")).unwrap();
    let flags = AgentFlags::new(server.pki(), "ours", server.agents());
    let agent = flags.flag(format!("--ca-cert={}", ca.display())).start();
    let refused = "rhizome_konnectivity_connects_total";
    let tried = testkit::wait::until("a failed attempt", Duration::from_secs(20), || {
        agent.value(refused, &[("result", "failed")]) > 0.0
    });
    tried.unwrap();
    assert_eq!(agent.readiness(), 503);
    assert_eq!(server.readiness(), 500);
}
