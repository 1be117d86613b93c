//! Tests of who owns a policy: the same Service whatever the order, and no loss is silent.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::super::fixture::{
    apply, keys, messages, named, namespace, remove, set, settings, state,
};
use super::super::{Compatibility, Policy, PolicySettings, Reason, ServicePlan, service};
use super::*;

/// `b-x` of namespace `a` and `x` of `a-b` mean one egress policy of their clients in `c`.
fn ambiguous() -> (ClusterState, ObjectKey, ObjectKey) {
    let everywhere = [("namespace-selectors", "[{}]")];
    let mut younger = named("a", "b-x", &everywhere);
    younger["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
    let older = named("a-b", "x", &everywhere);
    let spaces = ["a", "a-b", "c"].map(namespace);
    let state = state(&[&spaces[..], &[younger, older]].concat());
    (
        state,
        ObjectKey::new("a", "b-x"),
        ObjectKey::new("a-b", "x"),
    )
}

fn planned(state: &ClusterState, key: &ObjectKey) -> ServicePlan {
    service(state, &settings(Compatibility::Document), &[], key)
}

const SHARED: &str = "egress-to-a-b-x-tcp-10250";

#[test]
fn the_older_service_owns_what_two_ask_for() {
    let (state, younger, older) = ambiguous();
    let shared = ObjectKey::new("c", SHARED);
    let mut claims = Claims::default();

    let mut plan = planned(&state, &younger);
    let all = plan.policies.len();
    assert_eq!(claims.settle(&state, &younger, &mut plan), set(&[]));
    assert_eq!((plan.policies.len(), plan.problems.len()), (all, 0));
    assert_eq!(claims.owner(&shared), Some(&younger));

    let mut plan = planned(&state, &older);
    assert_eq!(
        claims.settle(&state, &older, &mut plan),
        set(&[("a", "b-x")])
    );
    assert_eq!((plan.policies.len(), plan.problems.len()), (all, 0));
    assert_eq!(claims.owner(&shared), Some(&older));

    for _ in 0..2 {
        let mut plan = planned(&state, &younger);
        assert_eq!(claims.settle(&state, &younger, &mut plan), set(&[]));
        assert_eq!(plan.policies.len(), all - 1);
        assert!(!keys(&plan).contains(&shared.to_string()));
        let reported = messages(&plan.problems, Reason::PolicyConflict);
        assert_eq!(reported.len(), 1);
        assert!(
            reported[0].contains("Service a-b/x") && reported[0].contains(SHARED),
            "{reported:?}"
        );
    }

    // A Service that is gone asks for nothing.
    let mut release = |key| claims.settle(&ClusterState::default(), key, &mut wanting(key, &[]));
    assert_eq!(release(&older), set(&[("a", "b-x")]));
    assert_eq!(claims.owner(&shared), Some(&younger));
    let mut release = |key| claims.settle(&ClusterState::default(), key, &mut wanting(key, &[]));
    assert_eq!(release(&younger), set(&[]));
    assert_eq!(claims.owner(&shared), None);
    assert!(claims.claimants.is_empty() && claims.claims.is_empty());
}

#[test]
fn a_service_created_anew_is_young_again() {
    let (mut state, younger, older) = ambiguous();
    let mut claims = Claims::default();
    for key in [&younger, &older] {
        claims.settle(&state, key, &mut planned(&state, key));
    }
    let mut anew = named("a-b", "x", &[("namespace-selectors", "[{}]")]);
    remove(&mut state, &anew);
    anew["metadata"]["creationTimestamp"] = json!("2026-01-03T00:00:00Z");
    apply(&mut state, &anew);
    let mut plan = planned(&state, &older);
    assert_eq!(
        claims.settle(&state, &older, &mut plan),
        set(&[("a", "b-x")])
    );
    assert_eq!(messages(&plan.problems, Reason::PolicyConflict).len(), 1);
    assert_eq!(claims.owner(&ObjectKey::new("c", SHARED)), Some(&younger));
}

#[test]
fn frozen_policies_stay_claimed() {
    let (mut state, younger, older) = ambiguous();
    let mut claims = Claims::default();
    claims.settle(&state, &older, &mut planned(&state, &older));
    apply(
        &mut state,
        &named("a-b", "x", &[("namespace-selectors", "?")]),
    );
    assert_eq!(
        claims.settle(&state, &older, &mut planned(&state, &older)),
        set(&[])
    );
    claims.settle(&state, &younger, &mut planned(&state, &younger));
    assert_eq!(claims.owner(&ObjectKey::new("c", SHARED)), Some(&older));
}

#[test]
fn lost_policies_are_one_problem_per_owner() {
    let names = ["p", "q", "r", "s", "t"];
    let mut older = named("a", "older", &[]);
    older["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
    let state = state(&[older, named("a", "younger", &[])]);
    let mut claims = Claims::default();
    let keys = ["older", "younger"].map(|name| ObjectKey::new("a", name));
    claims.settle(&state, &keys[0], &mut wanting(&keys[0], &names));
    let mut plan = wanting(&keys[1], &names);
    claims.settle(&state, &keys[1], &mut plan);
    assert_eq!(plan.policies, []);
    assert_eq!(
        messages(&plan.problems, Reason::PolicyConflict),
        ["Service a/older, which is older, owns NetworkPolicies: x/p, x/q, x/r, and 2 more"]
    );
}

/// A plan that wants policies of these names.
fn wanting(key: &ObjectKey, names: &[&str]) -> ServicePlan {
    let mut plan = service(
        &ClusterState::default(),
        &PolicySettings::default(),
        &[],
        key,
    );
    plan.policies = names
        .iter()
        .map(|name| Policy {
            key: ObjectKey::new("x", name),
            labels: BTreeMap::new(),
            description: String::new(),
            spec: json!({}),
        })
        .collect();
    plan
}

const NAMES: [&str; 4] = ["p", "q", "r", "s"];

/// What Services want one after the other: which Service, and which of the names, by bits.
fn steps() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((0..5_usize, 0..16_u8), 1..40)
}

proptest! {
    #[test]
    fn any_order_ends_in_the_same_owners(
        ages in prop::collection::vec(1..4_u8, 5),
        steps in steps(),
        mut order in Just((0..5_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let services: Vec<_> = (0..5).map(|number| ObjectKey::new("a", &format!("s{number}"))).collect();
        let objects: Vec<_> = services.iter().zip(&ages).map(|(key, age)| {
            let mut object = named("a", &key.name, &[]);
            object["metadata"]["creationTimestamp"] = json!(format!("2026-01-0{age}T00:00:00Z"));
            object
        }).collect();
        let state = state(&objects);

        // Whatever happened before, what counts is what each wants at last.
        let mut claims = Claims::default();
        let mut wants = [0_u8; 5];
        for (number, bits) in steps {
            wants[number] = bits;
            run(&mut claims, &state, &services, &wants, number);
        }
        let mut fresh = Claims::default();
        order.retain(|number| wants[*number] != 0);
        for number in order {
            run(&mut fresh, &state, &services, &wants, number);
        }
        for (bit, name) in NAMES.iter().enumerate() {
            let asking = (0..5).filter(|number| wants[*number] & (1 << bit) != 0);
            let first = asking.min_by_key(|number| (ages[*number], &services[*number]));
            let expected = first.map(|number| &services[number]);
            let policy = ObjectKey::new("x", name);
            prop_assert_eq!(claims.owner(&policy), expected);
            prop_assert_eq!(fresh.owner(&policy), expected);
        }
        prop_assert_eq!(claims.claimants, fresh.claimants);
    }
}

/// Settles a Service and the Services to be planned again, and checks that each of them gets
/// exactly what it owns, that those are who gained or lost something, and that it comes to an end.
fn run(
    claims: &mut Claims,
    state: &ClusterState,
    services: &[ObjectKey],
    wants: &[u8; 5],
    first: usize,
) {
    let owners =
        |claims: &Claims| NAMES.map(|name| claims.owner(&ObjectKey::new("x", name)).cloned());
    let before = owners(claims);
    let again = settle(claims, state, &services[first], wants[first]);
    let mut expected = BTreeSet::new();
    for (old, new) in before.into_iter().zip(owners(claims)) {
        if old != new {
            expected.extend(old.into_iter().chain(new));
        }
    }
    expected.remove(&services[first]);
    assert_eq!(again, expected);
    for key in again {
        let number = services.iter().position(|one| *one == key).unwrap();
        assert_eq!(settle(claims, state, &key, wants[number]), BTreeSet::new());
    }
}

fn settle(
    claims: &mut Claims,
    state: &ClusterState,
    key: &ObjectKey,
    bits: u8,
) -> BTreeSet<ObjectKey> {
    let names: Vec<_> = (0..4)
        .filter(|bit| bits & (1 << bit) != 0)
        .map(|bit| NAMES[bit])
        .collect();
    let mut plan = wanting(key, &names);
    let again = claims.settle(state, key, &mut plan);
    for name in names {
        let policy = ObjectKey::new("x", name);
        let given = plan.policies.iter().any(|one| one.key == policy);
        assert_eq!(given, claims.owner(&policy) == Some(key));
    }
    again
}
