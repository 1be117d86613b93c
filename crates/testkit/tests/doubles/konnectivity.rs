//! The fake agent and the fake server with each other.

use std::time::Duration;

use testkit::certs::{Authority, Identity};
use testkit::konnectivity::{
    AgentLink, AgentMetadata, AgentTarget, End, FakeAgent, FakeServer, ServerOptions, connect,
};
use testkit::upstream::{Behavior, Upstream};
use testkit::{ports, wait};

const LIMIT: Duration = Duration::from_secs(20);

struct Pair {
    authority: Authority,
    server: FakeServer,
    client: Identity,
}

impl Pair {
    fn new() -> Self {
        let authority = Authority::new("unit").unwrap();
        let mut options = ServerOptions::new("one", &authority.server(&["127.0.0.1"]).unwrap());
        options.clients_pem = Some(authority.pem().to_owned());
        let client = authority.client("agent", &[], &[]).unwrap();
        let server = FakeServer::start(&options).unwrap();
        Self {
            authority,
            server,
            client,
        }
    }

    fn target(&self) -> AgentTarget {
        AgentTarget::new(self.server.addr(), self.authority.pem(), Some(&self.client))
    }

    fn agent(&self) -> (FakeAgent, AgentLink) {
        let agent = FakeAgent::start_split(&self.target(), &AgentMetadata::new("a"), 7);
        (agent.unwrap(), self.server.accept(LIMIT).unwrap())
    }
}

#[test]
fn bytes_go_there_and_back() {
    let pair = Pair::new();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (agent, mut link) = pair.agent();
    assert_eq!(agent.answered("serverid"), ["one"]);
    assert_eq!(agent.answered("servercount"), ["1"]);
    assert_eq!(link.said("agentid"), ["a"]);
    let id = link.dial(&echo.addr().to_string()).unwrap();
    assert_eq!(id, 1);
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    link.write(id, &bytes).unwrap();
    assert_eq!(link.read(id, bytes.len()).unwrap(), bytes);
    link.close(id).unwrap();
    assert_eq!(link.read_to_end(id).unwrap(), (vec![], String::new()));
    echo.wait_closed(LIMIT).unwrap();
    assert_eq!(agent.tunnels(), 0);
}

#[test]
fn agent_errors_match_upstream() {
    let pair = Pair::new();
    let (_agent, mut link) = pair.agent();
    link.write(9, b"x").unwrap();
    let (_, text) = link.read_to_end(9).unwrap();
    assert_eq!(text, "unrecognized connectID");
    link.close(9).unwrap();
    assert_eq!(link.read_to_end(9).unwrap().1, "Unknown connectID");
    let [port] = ports::free(1).unwrap()[..] else {
        panic!("one port");
    };
    let refused = link.dial(&format!("127.0.0.1:{port}")).unwrap_err();
    assert!(refused.to_string().ends_with("connection refused"));
    let unknown = link.dial("no-such-host.invalid:80").unwrap_err();
    assert!(unknown.to_string().ends_with("no such host"), "{unknown}");
}

#[test]
fn destination_end_closes_connection() {
    let pair = Pair::new();
    let source = Upstream::start(Behavior::Source { bytes: 100_000 }).unwrap();
    let (agent, mut link) = pair.agent();
    let id = link.dial(&source.addr().to_string()).unwrap();
    assert_eq!(link.read_to_end(id).unwrap().0.len(), 100_000);
    assert_eq!(agent.tunnels(), 0);
}

#[test]
fn agent_metadata_is_checked() {
    let pair = Pair::new();
    let good = AgentMetadata::new("a");
    for metadata in [
        good.clone().without("agentid"),
        good.clone().with("agentid", "b"),
        good.clone().with("agentidentifiers", "host=x"),
    ] {
        let mut wire = connect(&pair.target(), &metadata).unwrap();
        let end = wire.end(LIMIT).unwrap();
        assert!(matches!(end, End::Status { code: 2, .. }), "{end:?}");
    }
    pair.server.refuse(true);
    assert!(FakeAgent::start(&pair.target(), &good).is_err());
}

#[test]
fn agent_without_http2_or_certificate_is_refused() {
    let pair = Pair::new();
    let mut target = pair.target();
    target.alpn.clear();
    assert!(FakeAgent::start(&target, &AgentMetadata::new("a")).is_err());
    let mut target = pair.target();
    target.identity = None;
    assert!(FakeAgent::start(&target, &AgentMetadata::new("a")).is_err());
}

#[test]
fn frozen_agent_answers_when_thawed() {
    let pair = Pair::new();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let (agent, mut link) = pair.agent();
    agent.freeze(true);
    let random = link.ask(&echo.addr().to_string()).unwrap();
    assert!(link.answer(random, Duration::from_millis(200)).is_err());
    assert!(agent.dials().is_empty());
    agent.freeze(false);
    assert_eq!(link.answer(random, LIMIT).unwrap(), Ok(1));
}

#[test]
fn either_side_notices_the_end() {
    let pair = Pair::new();
    let (agent, mut link) = pair.agent();
    agent.cut();
    assert!(matches!(link.wire.end(LIMIT).unwrap(), End::Failed(_)));
    let (agent, link) = pair.agent();
    link.wire.finish_with(14, "bye").unwrap();
    wait::until("the end", LIMIT, || agent.ended().is_some()).unwrap();
    let end = agent.ended();
    assert!(
        matches!(&end, Some(End::Status { code: 14, message }) if message == "bye"),
        "{end:?}"
    );
}
