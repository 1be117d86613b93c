//! Which agent is dialed.

use testkit::konnectivity::{AgentMetadata, DialRule, FakeAgent, FakeFrontend};

use crate::support::{Mode, Server, ServerFlags, refusal};

/// Starts an agent that refuses each dial with its own name, which shows who was asked.
fn named(server: &Server, id: &str, identifiers: &str) -> FakeAgent {
    let metadata = AgentMetadata::new(id).replaced("agentidentifiers", identifiers);
    let agent = FakeAgent::start(&server.target(), &metadata).unwrap();
    agent.rule(DialRule::Refuse(format!("it is {id}")));
    agent
}

fn asked(frontend: &FakeFrontend, target: &str) -> String {
    let text = refusal(frontend, target).body;
    text.strip_prefix("it is ").unwrap_or(&text).to_owned()
}

#[test]
fn a_host_leads_to_the_agent_that_names_it() {
    for mode in [Mode::Grpc, Mode::Http] {
        let flags = ServerFlags::new(mode).flag("--proxy-strategies=destHost,default");
        let server = flags.start();
        let _one = named(&server, "one", "ipv4=10.0.0.1&host=node-1");
        let _two = named(&server, "two", "ipv4=10.0.0.2&ipv6=fd00::2");
        server.wait_agents(2);
        let frontend = server.frontend();
        for (target, expected) in [
            ("10.0.0.1:10250", "one"),
            ("10.0.0.2:10250", "two"),
            ("node-1:80", "one"),
            ("[fd00::2]:443", "two"),
        ] {
            for _ in 0..5 {
                assert_eq!(asked(&frontend, target), expected, "{target}");
            }
        }
        // Any agent for what none names.
        let mut found: Vec<_> = (0..40).map(|_| asked(&frontend, "10.0.0.3:80")).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, ["one", "two"]);
    }
}

#[test]
fn one_strategy_asks_no_other_agent() {
    let flags = ServerFlags::new(Mode::Http).flag("--proxy-strategies=destHost");
    let server = flags.start();
    let agent = named(&server, "one", "host=node-1");
    let frontend = server.frontend();
    testkit::wait::until("a choice", crate::support::LIMIT, || {
        asked(&frontend, "node-1:80") == "one"
    })
    .unwrap();
    let before = agent.dials().len();
    let refused = refusal(&frontend, "node-2:80");
    assert_eq!(refused.status, 500, "{refused:?}");
    assert!(refused.body.ends_with("No agent available"), "{refused:?}");
    assert_eq!(agent.dials().len(), before);
}

/// As at upstream.
#[test]
fn first_strategy_decides_readiness_of_one_cluster() {
    let flags = ServerFlags::new(Mode::Http).flag("--proxy-strategies=destHost,default");
    let server = flags.start();
    let _agent = named(&server, "one", "");
    server.wait_agents(1);
    assert_eq!(asked(&server.frontend(), "10.0.0.1:80"), "one");
    assert_eq!(server.readiness(), 500);
    let connections = format!("{}ready_backend_connections", crate::support::SERVER);
    assert_eq!(server.value(&connections, &[]), 0.0);
}

#[test]
fn default_route_serves_unnamed_destinations() {
    let flags = ServerFlags::new(Mode::Http).flag("--proxy-strategies=destHost,defaultRoute");
    let server = flags.start();
    let _node = named(&server, "node", "ipv4=10.0.0.1");
    let _route = named(&server, "route", "default-route=true");
    let name = format!("{}ready_backends", crate::support::SERVER);
    server.wait_value(&name, &[("proxy_strategy", "destHost")], 1.0);
    server.wait_value(&name, &[("proxy_strategy", "defaultRoute")], 1.0);
    let frontend = server.frontend();
    for _ in 0..10 {
        assert_eq!(asked(&frontend, "10.0.0.1:1"), "node");
        assert_eq!(asked(&frontend, "10.0.0.9:1"), "route");
    }
}

#[test]
fn range_selects_its_agent_by_strategy() {
    let flags = ServerFlags::new(Mode::Http).flag("--proxy-strategies=destCIDR,default");
    let server = flags.start();
    let _range = named(&server, "range", "cidr=10.1.0.0/16");
    let _other = named(&server, "other", "cidr=fd00::/8");
    server.wait_agents(2);
    let frontend = server.frontend();
    for _ in 0..10 {
        assert_eq!(asked(&frontend, "10.1.2.3:1"), "range");
        assert_eq!(asked(&frontend, "[fd00::1]:1"), "other");
    }
}
