//! Much of everything: a gibibyte each way, and thousands of agents.

use std::io::{Read, Write};
use std::net::Ipv4Addr;

use testkit::konnectivity::{AgentMetadata, DialRule, FakeAgent};
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Backend, Kind, LIMIT, Mode, Rig, SERVER, ServerFlags, noise, refusal};

const GIBIBYTE: usize = 1 << 30;

/// A block of a prime number of bytes, so that no shift by what buffers hold goes unnoticed.
const BLOCK: usize = 1_048_573;

#[test]
fn gibibyte_each_way_is_unchanged() {
    for mode in [Mode::Http, Mode::Grpc] {
        let rig = Rig::start(mode, Kind::Rust);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut tunnel = rig.tunnel(echo.addr());
        tunnel.echo(b"warm").unwrap();
        let before = resident(&rig);

        let (mut reader, mut writer) = (tunnel.reader, tunnel.writer);
        let block = noise(7, BLOCK);
        let sent = block.clone();
        let sending = std::thread::spawn(move || {
            for part in pieces(&sent) {
                writer.write_all(part).unwrap();
            }
            writer
        });
        let mut back = vec![0; BLOCK];
        for (count, part) in pieces(&block).enumerate() {
            let back = &mut back[..part.len()];
            reader.read_exact(back).unwrap();
            assert!(back == part, "block {count} came back otherwise");
        }

        drop((sending.join().unwrap(), reader));
        echo.wait_closed(LIMIT).unwrap();
        rig.wait_idle();
        for (name, was, now) in before
            .into_iter()
            .zip(resident(&rig))
            .map(|((name, was), (_, now))| (name, was, now))
        {
            let grown = now.saturating_sub(was);
            assert!(grown < 32 << 10, "{name} grew by {grown} KiB, {mode:?}");
        }
    }
}

/// Cuts a gibibyte of `block`, again and again, into blocks.
fn pieces(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..GIBIBYTE)
        .step_by(BLOCK)
        .map(|start| &block[..BLOCK.min(GIBIBYTE - start)])
}

fn resident(rig: &Rig) -> [(&'static str, u64); 2] {
    let Backend::Rust(agent) = &rig.agent else {
        panic!("a program of ours");
    };
    [
        ("server", rig.server.guard.usage().unwrap().rss_kib),
        ("agent", agent.guard.usage().unwrap().rss_kib),
    ]
}

/// Each agent is the only way to one address.
#[test]
fn each_of_many_agents_serves_its_address() {
    const AGENTS: u32 = 5000;
    let address = |index: u32| Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + index);
    let metadata = |index: u32| {
        let identifier = format!("ipv4={}", address(index));
        AgentMetadata::new(&format!("agent-{index}")).replaced("agentidentifiers", &identifier)
    };
    let flags = ServerFlags::new(Mode::Http).flag("--proxy-strategies=destHost");
    let server = flags.start();
    let target = server.target();
    let first = FakeAgent::start(&target, &metadata(0)).unwrap();
    let others = (1..AGENTS).map(|index| first.another(&target, &metadata(index)).unwrap());
    let others: Vec<FakeAgent> = others.collect();
    let ready = format!("{SERVER}ready_backends");
    let strategy = [("proxy_strategy", "destHost")];
    server.wait_value(&ready, &strategy, f64::from(AGENTS));
    let held = server.guard.usage().unwrap().rss_kib;
    println!("{AGENTS} agents: {held} KiB resident");

    let agents: Vec<&FakeAgent> = std::iter::once(&first).chain(&others).collect();
    let frontend = server.frontend();
    for (index, agent) in (0..).zip(&agents) {
        agent.rule(DialRule::Refuse("not here".to_owned()));
        refusal(&frontend, &format!("{}:80", address(index)));
    }

    for (index, agent) in (0..).zip(&agents) {
        assert_eq!(agent.dials(), [format!("{}:80", address(index))]);
    }
}
