//! Agents that are gone from one moment to the next.

use std::time::Duration;

use testkit::konnectivity::DialRule;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::Stopwatch;

use crate::support::{Backend, Kind, LIMIT, Mode, Rig, refusal};

#[test]
fn killed_agent_ends_only_its_tunnels() {
    for (kind, mode) in [
        (Kind::Rust, Mode::Http),
        (Kind::Rust, Mode::Grpc),
        (Kind::Go, Mode::Http),
        (Kind::Go, Mode::Grpc),
    ] {
        let mut rig = Rig::start(mode, kind);
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let mut lost = rig.tunnel(echo.addr());
        lost.echo(b"x").unwrap();
        let survivor = Backend::start(Kind::Go, &rig.server, "survivor");
        rig.server.wait_agents(2);
        let mut kept = loop {
            let mut tunnel = rig.tunnel(echo.addr());
            tunnel.echo(b"x").unwrap();
            let Backend::Go(agent) = &survivor else {
                panic!("a fake");
            };
            if agent.tunnels() == 1 {
                break tunnel;
            }
        };
        rig.agent.kill();
        let clock = Stopwatch::start();
        assert_eq!(lost.reader.rest().unwrap(), b"");
        assert!(
            clock.elapsed() < Duration::from_secs(2),
            "{:?}",
            clock.elapsed()
        );
        assert_eq!(kept.echo(b"still").unwrap(), b"still");
        rig.server.wait_agents(1);
        rig.server.wait_established(1);
        rig.tunnel(echo.addr()).echo(b"new").unwrap();
    }
}

#[test]
fn waiting_dials_fail_without_new_agent() {
    for mode in [Mode::Http, Mode::Grpc] {
        let rig = Rig::start(mode, Kind::Go);
        let Backend::Go(agent) = &rig.agent else {
            panic!("a fake");
        };
        agent.rule(DialRule::Ignore);
        std::thread::scope(|scope| {
            let dials: Vec<_> = (0..5)
                .map(|_| scope.spawn(|| refusal(&rig.server.frontend(), "127.0.0.1:1")))
                .collect();
            agent.wait_dials(5, LIMIT).unwrap();
            agent.cut();
            for dial in dials {
                let refused = dial.join().unwrap();
                if mode == Mode::Http {
                    // Tried elsewhere, where there is no agent, or failed as it is.
                    assert!([500, 502].contains(&refused.status), "{refused:?}");
                }
            }
        });
        assert_eq!(rig.server.established(), 0.0);
    }
}

#[test]
fn waiting_dial_is_tried_on_other_agent() {
    let rig = Rig::start(Mode::Http, Kind::Go);
    let Backend::Go(agent) = &rig.agent else {
        panic!("a fake");
    };
    agent.rule(DialRule::Ignore);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    std::thread::scope(|scope| {
        let dial = scope.spawn(|| rig.tunnel(echo.addr()).echo(b"x").unwrap());
        agent.wait_dials(1, LIMIT).unwrap();
        let _second = Backend::start(Kind::Go, &rig.server, "second");
        rig.server.wait_agents(2);
        agent.cut();
        assert_eq!(dial.join().unwrap(), b"x");
    });
}

#[test]
fn an_agent_comes_back_in_its_place() {
    let mut rig = Rig::start(Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    for _ in 0..3 {
        rig.tunnel(echo.addr()).echo(b"x").unwrap();
        rig.agent.kill();
        rig.server.wait_ready(500);
        rig.agent = Backend::start(Kind::Rust, &rig.server, "agent");
        rig.server.wait_ready(200);
    }
    rig.tunnel(echo.addr()).echo(b"x").unwrap();
}
