//! Choices among agents, and what becomes of them as streams come and go.

use std::collections::BTreeSet;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

fn add(backends: &mut Backends, stream: u64, agent: &str, identifiers: &str) {
    let identifiers = Identifiers::parse(identifiers).unwrap();
    backends.insert(StreamId(stream), AgentId::new(agent), identifiers);
}

fn pick(backends: &Backends, strategies: &str, host: &str) -> Option<u64> {
    let strategies = Strategy::parse_list(strategies).unwrap();
    let stream = backends.pick(&strategies, host, 0, &[]);
    stream.map(|stream| stream.0)
}

#[test]
fn strategies_are_read_in_order() {
    let list = Strategy::parse_list("destHost,,default,").unwrap();
    assert_eq!(list, [Strategy::DestHost, Strategy::Default]);
    assert_eq!(Strategy::parse_list(","), Err(StrategyError::Empty));
    let twice = Err(StrategyError::Twice(Strategy::Default));
    assert_eq!(Strategy::parse_list("default,default"), twice);
    let unknown = Err(StrategyError::Unknown("Default".to_owned()));
    assert_eq!(Strategy::parse_list("Default"), unknown);
}

#[test]
fn newest_live_stream_of_agent_is_chosen() {
    let mut backends = Backends::default();
    add(&mut backends, 1, "a", "");
    add(&mut backends, 2, "a", "");
    assert_eq!(pick(&backends, "default", "x"), Some(2));
    backends.set_alive(StreamId(2), false);
    assert_eq!(pick(&backends, "default", "x"), Some(1));
    backends.set_alive(StreamId(1), false);
    assert_eq!(pick(&backends, "default", "x"), None);
    assert_eq!(backends.ready(Strategy::Default), 0);
    backends.set_alive(StreamId(2), true);
    assert_eq!(backends.ready(Strategy::Default), 1);
    backends.remove(StreamId(1));
    assert_eq!(pick(&backends, "default", "x"), Some(2));
}

#[test]
fn a_draining_agent_is_the_last_resort() {
    let mut backends = Backends::default();
    for (stream, agent) in [(1, "a"), (2, "b"), (3, "c")] {
        add(&mut backends, stream, agent, "");
    }
    backends.set_draining(StreamId(1));
    backends.set_draining(StreamId(3));
    for random in [0, u64::MAX / 2, u64::MAX] {
        let chosen = backends.pick(&[Strategy::Default], "x", random, &[]);
        assert_eq!(chosen, Some(StreamId(2)));
    }
    backends.set_draining(StreamId(2));
    assert!(pick(&backends, "default", "x").is_some());
}

#[test]
fn one_that_was_tried_is_not_chosen_again() {
    let mut backends = Backends::default();
    add(&mut backends, 1, "a", "");
    add(&mut backends, 2, "b", "");
    let list = [Strategy::Default];
    let first = backends.pick(&list, "x", 0, &[]).unwrap();
    let second = backends.pick(&list, "x", 0, &[first]).unwrap();
    assert_ne!(first, second);
    assert_eq!(backends.pick(&list, "x", 0, &[first, second]), None);
}

#[test]
fn unmatched_hosts_use_next_strategy() {
    let mut backends = Backends::default();
    add(&mut backends, 1, "a", "ipv4=10.0.0.1&ipv6=A%3A%3A0%3A1");
    add(&mut backends, 2, "b", "host=Node-2&ipv4=10.0.0.2");
    assert_eq!(pick(&backends, "destHost", "10.0.0.1"), Some(1));
    assert_eq!(pick(&backends, "destHost", "a::1"), Some(1));
    assert_eq!(pick(&backends, "destHost", "node-2"), Some(2));
    assert_eq!(pick(&backends, "destHost", "node"), None);
    assert!(pick(&backends, "destHost,default", "node").is_some());
    assert_eq!(pick(&backends, "destHost,defaultRoute", "node"), None);
    assert_eq!(backends.ready(Strategy::DestHost), 4);
}

#[test]
fn the_default_route_takes_agents_that_offer_it() {
    let mut backends = Backends::default();
    add(&mut backends, 1, "a", "");
    add(&mut backends, 2, "b", "default-route=true");
    for random in [0, u64::MAX] {
        let chosen = backends.pick(&[Strategy::DefaultRoute], "x", random, &[]);
        assert_eq!(chosen, Some(StreamId(2)));
    }
}

#[test]
fn the_smallest_range_wins() {
    let mut backends = Backends::default();
    add(&mut backends, 1, "a", "cidr=10.0.0.0%2F8");
    add(&mut backends, 2, "b", "cidr=10.1.0.0%2F16&cidr=nonsense");
    add(&mut backends, 3, "c", "cidr=a%3A%3A%2F16");
    assert_eq!(pick(&backends, "destCIDR", "10.1.2.3"), Some(2));
    assert_eq!(pick(&backends, "destCIDR", "10.2.2.3"), Some(1));
    assert_eq!(pick(&backends, "destCIDR", "a::5"), Some(3));
    assert_eq!(pick(&backends, "destCIDR", "node"), None);
    backends.set_draining(StreamId(2));
    assert_eq!(pick(&backends, "destCIDR", "10.1.2.3"), Some(1));
}

#[test]
fn agents_are_chosen_evenly() {
    let mut backends = Backends::default();
    for stream in 0..4 {
        add(&mut backends, stream, &format!("agent-{stream}"), "");
    }
    let mut counts = [0; 4];
    for step in 0..400u64 {
        let random = step * (u64::MAX / 400);
        let chosen = backends.pick(&[Strategy::Default], "x", random, &[]);
        counts[usize::try_from(chosen.unwrap().0).unwrap()] += 1;
    }
    assert!(
        counts.iter().all(|count| (95..=105).contains(count)),
        "{counts:?}"
    );
}

/// Each time a walk over all keys would take minutes.
#[test]
fn many_streams_come_and_go_quickly() {
    let mut backends = Backends::default();
    let streams = 0..3_000;
    for stream in streams.clone() {
        let hosts: Vec<_> = (0..64)
            .map(|host| format!("host={stream}-{host}"))
            .collect();
        add(&mut backends, stream, "a", &hosts.join("&"));
        let ready = usize::try_from(64 * (stream + 1)).unwrap();
        assert_eq!(backends.ready(Strategy::DestHost), ready);
    }
    for stream in streams {
        backends.set_alive(StreamId(stream), false);
        backends.remove(StreamId(stream));
        let ready = usize::try_from(64 * (2_999 - stream)).unwrap();
        assert_eq!(backends.ready(Strategy::DestHost), ready);
    }
}

proptest! {
    /// Coming and going leaves nothing behind, and a choice is always of what is there.
    #[test]
    fn tables_follow_the_streams(
        steps in proptest::collection::vec((0u8..4, 0u64..8, 0u8..3, any::<u64>()), 0..60),
    ) {
        let mut backends = Backends::default();
        // With the agent of each, and whether it is alive.
        let mut present = BTreeMap::new();
        let all = Strategy::parse_list("destHost,destCIDR,defaultRoute,default").unwrap();
        for (step, stream, agent, random) in steps {
            if step == 0 {
                let identifiers = "ipv4=10.0.0.1&cidr=10.0.0.0%2F8&default-route=true&host=h&host=h";
                add(&mut backends, stream, &format!("agent-{agent}"), identifiers);
                present.insert(StreamId(stream), (agent, true));
            } else if step == 1 {
                backends.remove(StreamId(stream));
                present.remove(&StreamId(stream));
            } else {
                backends.set_alive(StreamId(stream), step == 2);
                if let Some((_, alive)) = present.get_mut(&StreamId(stream)) {
                    *alive = step == 2;
                }
            }
            let alive = present.values().filter(|(_, alive)| *alive);
            let agents: BTreeSet<_> = alive.map(|(agent, _)| agent).collect();
            let any = usize::from(!agents.is_empty());
            for (strategy, ready) in all.iter().zip([2 * any, any, agents.len(), agents.len()]) {
                prop_assert_eq!(backends.ready(*strategy), ready);
                let chosen = backends.pick(&[*strategy], "10.0.0.1", random, &[]);
                prop_assert_eq!(chosen.is_some(), ready > 0);
                prop_assert!(chosen.is_none_or(|stream| present[&stream].1));
            }
        }
        for (stream, _) in present {
            backends.remove(stream);
        }
        prop_assert!(backends.streams.is_empty() && all.iter().all(|s| backends.ready(*s) == 0));
    }
}
