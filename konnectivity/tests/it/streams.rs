//! What agents say of themselves, and several streams of one agent.

use std::io::{Read, Write};

use testkit::konnectivity::{AgentMetadata, End, FakeAgent, connect, connect_often};
use testkit::wait;

use crate::support::{Backend, Held, Kind, LIMIT, Mode, SERVER, Server, ServerFlags, dial};

#[test]
fn agent_with_invalid_headers_is_refused() {
    let server = Server::start(Mode::Http);
    let good = AgentMetadata::new("a");
    for (metadata, text) in [
        (
            good.clone().without("agentid"),
            "expected one agent ID in the context, got []",
        ),
        (
            good.clone().with("agentid", "b"),
            "expected one agent ID in the context, got [a b]",
        ),
        (good.clone().with("agentidentifiers", "host=x"), ""),
        (
            good.clone().replaced("agentidentifiers", "host=x;host=y"),
            "",
        ),
    ] {
        let mut wire = connect(&server.target(), &metadata).unwrap();
        match wire.end(LIMIT).unwrap() {
            End::Status { code: 2, message } => {
                let message = message.replace("%20", " ");
                assert!(message.contains(text), "{message:?} without {text:?}");
            }
            other => panic!("{metadata:?}: {other:?}"),
        }
    }
    assert_eq!(server.readiness(), 500);
    server.wait_agents(0);
    // And one that says nothing wrong is not.
    let _agent = FakeAgent::start(&server.target(), &good).unwrap();
    server.wait_agents(1);
}

/// Though one stays, and whether or not they are refused.
#[test]
fn streams_of_an_agents_connection_are_bounded() {
    let server = Server::start(Mode::Http);
    let good = AgentMetadata::new("a");
    for others in [good.clone().without("agentid"), good.clone()] {
        let opened = connect_often(&server.target(), &good, &others, 1_000).unwrap();
        assert!(opened < 100, "{opened} streams were answered");
    }
}

#[test]
fn unknown_identifiers_are_ignored() {
    let server = Server::start(Mode::Http);
    for (count, identifiers) in
        (1..).zip(["colour=blue", "default-route=maybe", "", "uid=1&host=a%20b"])
    {
        let metadata = AgentMetadata::new(&format!("agent-{count}"));
        let metadata = metadata.replaced("agentidentifiers", identifiers);
        let agent = FakeAgent::start(&server.target(), &metadata.with("x-unknown", "1"));
        std::mem::forget(agent.unwrap());
        server.wait_agents(count);
    }
    let metadata = AgentMetadata::new("without").without("agentidentifiers");
    let _agent = FakeAgent::start(&server.target(), &metadata).unwrap();
    server.wait_agents(5);
}

#[test]
fn server_announces_its_id_and_count() {
    let flags = ServerFlags::new(Mode::Http)
        .flag("--server-id=this-one")
        .flag("--server-count=7");
    let server = flags.start();
    let agent = FakeAgent::start(&server.target(), &AgentMetadata::new("a")).unwrap();
    assert_eq!(agent.answered("serverid"), ["this-one"]);
    assert_eq!(agent.answered("servercount"), ["7"]);
    assert!(agent.answered("knp-ext").is_empty());
    let metadata = AgentMetadata::new("b").with("knp-ext", "window=1,fin=1,other=9");
    let agent = FakeAgent::start(&server.target(), &metadata).unwrap();
    assert_eq!(agent.answered("knp-ext"), ["window=1,fin=1"]);
}

/// Upstream delivers the answer to one client's request to another: both connections have id 1.
#[test]
fn two_agents_of_one_id_are_not_mixed_up() {
    for (kind, mode) in [
        (Kind::Rust, Mode::Http),
        (Kind::Go, Mode::Http),
        (Kind::Go, Mode::Grpc),
    ] {
        let flags = ServerFlags::new(mode).flag("--proxy-strategies=destHost,default");
        let server = flags.start();
        // `localhost` leads to one, the address to the other.
        let _by_name = Backend::identified(kind, &server, "same", "host=localhost");
        let _by_address = Backend::identified(kind, &server, "same", "ipv4=127.0.0.1");
        let streams = format!("{SERVER}grpc_connections");
        server.wait_value(&streams, &[("service_method", "Connect")], 2.0);
        let (first, second) = (Held::new(), Held::new());
        let frontend = server.frontend();
        let name = format!("localhost:{}", first.addr().port());
        let mut one = dial(&frontend, &name).unwrap();
        let mut two = dial(&frontend, &second.addr().to_string()).unwrap();
        let (mut at_first, mut at_second) = (first.accept(), second.accept());
        at_first.write_all(b"for one").unwrap();
        at_second.write_all(b"for two").unwrap();
        let mut found = [0; 7];
        one.reader.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"for one");
        two.reader.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"for two");
        one.writer.write_all(b"from one").unwrap();
        let mut found = [0; 8];
        at_first.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"from one");
        // The end of one is not the end of the other.
        drop(one);
        assert_eq!(at_first.read(&mut found).unwrap(), 0);
        assert_eq!(two.echo_from(&mut at_second), b"still");
    }
}

trait EchoFrom {
    fn echo_from(&mut self, destination: &mut std::net::TcpStream) -> Vec<u8>;
}

impl EchoFrom for testkit::konnectivity::Tunnel {
    fn echo_from(&mut self, destination: &mut std::net::TcpStream) -> Vec<u8> {
        self.writer.write_all(b"still").unwrap();
        let mut found = vec![0; 5];
        destination.read_exact(&mut found).unwrap();
        destination.write_all(&found).unwrap();
        self.reader.read_exact(&mut found).unwrap();
        found
    }
}

#[test]
fn second_agent_stream_keeps_first_tunnels() {
    let server = Server::start(Mode::Http);
    let frontend = server.frontend();
    let held = Held::new();
    let first = Backend::start(Kind::Go, &server, "same");
    server.wait_agents(1);
    let mut old = dial(&frontend, &held.addr().to_string()).unwrap();
    let mut at_old = held.accept();
    let mut second = Backend::start(Kind::Go, &server, "same");
    let streams = format!("{SERVER}grpc_connections");
    let labels = [("service_method", "Connect")];
    server.wait_value(&streams, &labels, 2.0);
    // The newest that is alive is dialed first.
    let mut new = dial(&frontend, &held.addr().to_string()).unwrap();
    let mut at_new = held.accept();
    second.wait_tunnels(1);
    first.wait_tunnels(1);
    assert_eq!(old.echo_from(&mut at_old), b"still");
    assert_eq!(new.echo_from(&mut at_new), b"still");
    second.kill();
    server.wait_value(&streams, &labels, 1.0);
    assert_eq!(new.reader.rest().unwrap(), b"");
    assert_eq!(old.echo_from(&mut at_old), b"still");
    wait::until("the first's tunnel alone", LIMIT, || {
        server.established() == 1.0
    })
    .unwrap();
    let mut third = dial(&frontend, &held.addr().to_string()).unwrap();
    assert_eq!(third.echo_from(&mut held.accept()), b"still");
}
