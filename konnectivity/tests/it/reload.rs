//! Certificates and authorities that change on disk.

use testkit::certs::Authority;
use testkit::konnectivity::{AgentMetadata, AgentTarget, FakeAgent, HttpFrontend};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Agent, AgentFlags, LIMIT, Mode, SERVICE, ServerFlags};

#[test]
fn a_servers_certificate_is_read_again() {
    let server = ServerFlags::new(Mode::Http).tcp().start();
    let pki = server.pki();
    let agent = FakeAgent::start(&server.target(), &AgentMetadata::new("old")).unwrap();
    server.wait_agents(1);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let old_pem = pki.authority.pem();
    let client = Some(&pki.client);
    let old = HttpFrontend::tls(server.frontends(), SERVICE, old_pem, client).unwrap();
    let mut tunnel = old.connect(&echo.addr().to_string()).unwrap().unwrap();
    let next = Authority::new("next").unwrap();
    let identity = next.server(&["127.0.0.1", SERVICE]).unwrap();
    pki.dir.replace("server.key", &identity.key_pem).unwrap();
    pki.dir.replace("server.crt", &identity.cert_pem).unwrap();
    // A client that trusts the next authority alone gets in.
    let target = AgentTarget {
        authority_pem: next.pem().to_owned(),
        ..server.target()
    };
    let new = wait::until_ok("the next certificate", LIMIT, || {
        FakeAgent::start(&target, &AgentMetadata::new("new"))
    });
    let frontend = HttpFrontend::tls(server.frontends(), SERVICE, next.pem(), client);
    let frontend = frontend.unwrap();
    wait::until_ok("the next certificate", LIMIT, || frontend.open()).unwrap();
    server.wait_agents(2);
    assert_eq!(tunnel.echo(b"still").unwrap(), b"still");
    assert!(agent.ended().is_none());
    drop(new);
}

#[test]
fn an_authority_of_agents_is_read_again() {
    let server = ServerFlags::new(Mode::Http).start();
    let pki = server.pki();
    let next = Authority::new("next").unwrap();
    let identity = Some(next.client("agent", &[], &[]).unwrap());
    let target = AgentTarget {
        identity,
        ..server.target()
    };
    assert!(FakeAgent::start(&target, &AgentMetadata::new("new")).is_err());
    let old = FakeAgent::start(&server.target(), &AgentMetadata::new("old")).unwrap();
    // Both, as in a rotation.
    let both = format!("{}{}", pki.authority.pem(), next.pem());
    pki.dir.replace("ca.crt", both).unwrap();
    let new = wait::until_ok("the next authority", LIMIT, || {
        FakeAgent::start(&target, &AgentMetadata::new("new"))
    });
    server.wait_agents(2);
    assert!(old.ended().is_none());
    drop(new);
    // What cannot be read changes nothing.
    pki.dir.replace("ca.crt", "nonsense").unwrap();
    wait::pause(std::time::Duration::from_secs(1));
    let _again = FakeAgent::start(&target, &AgentMetadata::new("new")).unwrap();
}

#[test]
fn agent_reloads_authority_and_certificate() {
    let server = ServerFlags::new(Mode::Http).start();
    let pki = server.pki();
    let next = Authority::new("next").unwrap();
    let agent_dir = testkit::tempdir::TempDir::new("agent").unwrap();
    let files = next.client("agent", &[], &[]).unwrap();
    let files = files.write(agent_dir.path(), "agent").unwrap();
    let ca = next.write(&agent_dir.join("ca.crt")).unwrap();
    let flags = AgentFlags::new(pki, "ours", server.agents()).anonymous();
    let agent: Agent = flags
        .flag(format!("--agent-cert={}", files.cert.display()))
        .flag(format!("--agent-key={}", files.key.display()))
        .flag(format!("--ca-cert={}", ca.display()))
        .flag("--sync-interval-cap=1s")
        .start();
    assert_eq!(agent.readiness(), 503);
    agent_dir.replace("agent.key", &pki.client.key_pem).unwrap();
    agent_dir
        .replace("agent.crt", &pki.client.cert_pem)
        .unwrap();
    agent_dir.replace("ca.crt", pki.authority.pem()).unwrap();
    agent.wait_ready(200);
    server.wait_agents(1);
}
