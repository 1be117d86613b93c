//! An agent and several servers behind one address, and servers that come and go.

use std::collections::BTreeSet;
use std::sync::Arc;

use testkit::konnectivity::{FakeServer, ServerOptions};
use testkit::process::Signal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{
    AGENT, Agent, AgentFlags, Balancer, LIMIT, Mode, Pki, Rig, Server, ServerFlags, dial,
};

#[test]
fn an_agent_is_back_after_its_server_was_killed() {
    let mut rig = Rig::start(Mode::Http, crate::support::Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = rig.tunnel(echo.addr());
    tunnel.echo(b"x").unwrap();
    rig.server.restart();
    rig.server.wait_ready(200);
    rig.agent.wait_tunnels(0);
    rig.tunnel(echo.addr()).echo(b"x").unwrap();
}

#[test]
fn an_agent_finds_a_server_that_replaces_another() {
    let pki = Arc::new(Pki::new());
    let first = ServerFlags::of(&pki, "first", Mode::Http).start();
    let balancer = Balancer::start(&[first.agents()]);
    let agent = Agent::connected(AgentFlags::new(&pki, "a", balancer.addr()));
    first.wait_agents(1);
    let second = ServerFlags::of(&pki, "second", Mode::Http).start();
    balancer.set(&[second.agents()]);
    drop(first);
    second.wait_agents(1);
    agent.wait_servers(1);
}

#[test]
fn agent_finds_successor_while_its_server_drains() {
    let pki = Arc::new(Pki::new());
    let first = ServerFlags::of(&pki, "first", Mode::Http);
    let first = first.flag("--graceful-shutdown-timeout=10m");
    let mut first = first.start();
    let balancer = Balancer::start(&[first.agents()]);
    let agent = Agent::connected(AgentFlags::new(&pki, "a", balancer.addr()));
    first.wait_agents(1);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = dial(&first.frontend(), &echo.addr().to_string()).unwrap();
    tunnel.echo(b"x").unwrap();
    let second = ServerFlags::of(&pki, "second", Mode::Http).start();

    first.signal(Signal::TERM);
    balancer.set(&[second.agents()]);

    second.wait_agents(1);
    agent.wait_servers(2);
    assert_eq!(tunnel.echo(b"still").unwrap(), b"still");
    drop(tunnel);
    first.wait_exit();
    agent.wait_servers(1);
}

#[test]
fn agent_finds_all_servers_behind_balancer() {
    let pki = Arc::new(Pki::new());
    let server = |name: &str| {
        let flags = ServerFlags::of(&pki, name, Mode::Http);
        flags.flag("--server-count=3").start()
    };
    let mut servers: Vec<Server> = ["a", "b", "c"].map(server).into();
    let agents = |servers: &[Server]| servers.iter().map(Server::agents).collect::<Vec<_>>();
    let balancer = Balancer::start(&agents(&servers));
    let agent = Agent::connected(AgentFlags::new(&pki, "agent", balancer.addr()));
    agent.wait_servers(3);
    let known = format!("{AGENT}known_server_count");
    agent.wait_value(&known, &[], 3.0);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    for server in &servers {
        server.wait_agents(1);
        let mut tunnel = dial(&server.frontend(), &echo.addr().to_string()).unwrap();
        tunnel.echo(b"x").unwrap();
    }
    servers.pop().unwrap().guard.kill().unwrap();
    agent.wait_servers(2);
    servers.push(server("d"));
    balancer.set(&agents(&servers));
    agent.wait_servers(3);
    for server in &servers {
        server.wait_agents(1);
    }
}

#[test]
fn an_agent_follows_the_count_of_servers() {
    let pki = Arc::new(Pki::new());
    let options = |id: &str| {
        let mut options = ServerOptions::new(id, &pki.server);
        options.count = 2;
        options
    };
    let servers = ["a", "b", "c", "d"].map(|id| FakeServer::start(&options(id)).unwrap());
    let addrs = servers.each_ref().map(FakeServer::addr);
    let balancer = Balancer::start(&addrs[..2]);
    let flags = AgentFlags::new(&pki, "agent", balancer.addr());
    let flags = flags.flag("--sync-forever").flag("--sync-interval=200ms");
    let agent = flags.start();
    agent.wait_servers(2);
    servers.iter().for_each(|server| server.set_count(4));
    balancer.set(&addrs);
    agent.wait_servers(4);
    // Each server keeps one link: what else came was closed again by the agent.
    let mut links = Vec::new();
    for server in &servers {
        while let Ok(link) = server.accept(std::time::Duration::from_millis(10)) {
            links.push(link);
        }
    }
    servers.iter().for_each(|server| server.set_count(1));
    let attempts = || servers.iter().map(FakeServer::accepted).sum::<u32>();
    let before = attempts();
    wait::until("more attempts", LIMIT, || attempts() > before + 2).unwrap();
    agent.wait_servers(4);
    let ids: BTreeSet<_> = links.iter().flat_map(|link| link.said("agentid")).collect();
    assert_eq!(ids, BTreeSet::from(["agent".to_owned()]));
}

#[test]
fn an_agent_backs_off_from_a_server_that_refuses() {
    let pki = Arc::new(Pki::new());
    let server = FakeServer::start(&ServerOptions::new("one", &pki.server)).unwrap();
    server.refuse(true);
    let flags = AgentFlags::new(&pki, "agent", server.addr()).flag("--sync-interval=100ms");
    let agent = flags.start();
    wait::until("attempts", LIMIT, || server.accepted() >= 4).unwrap();
    assert_eq!(agent.readiness(), 503);
    // Without growing pauses some 30 would come meanwhile.
    let before = server.accepted();
    wait::pause(std::time::Duration::from_secs(3));
    let more = server.accepted() - before;
    assert!(more < 15, "{more} attempts in 3 s");
    server.refuse(false);
    agent.wait_ready(200);
}

#[test]
fn an_agent_without_a_server_is_not_ready() {
    let pki = Arc::new(Pki::new());
    let refusing = crate::support::Refusing::new();
    let agent = AgentFlags::new(&pki, "agent", refusing.addr).start();
    let answer = agent.get("/readyz");
    assert_eq!(answer.status, 503);
    let text = answer.text();
    assert!(text.contains("[+]ping ok"), "{text}");
    let failed = "[-]server-connected failed: no servers connected";
    assert!(text.contains(failed), "{text}");
    assert_eq!(agent.get("/healthz").status, 200);
}
