//! Tests of who owns a policy: the same Service whatever the order, and no loss is silent.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::fixture::{
    apply, keys, messages, named, namespace, remove, set, settings, state,
};
use super::super::{Compatibility, Policy, PolicySettings, Reason, ServicePlan, service};
use super::*;

const EVERYWHERE: [(&str, &str); 1] = [("namespace-selectors", "[{}]")];
const SHARED: &str = "egress-to-a-b-x-tcp-10250";

/// A Service that was created on this day.
fn created(day: u8, mut service: Value) -> Value {
    let time = format!("2026-01-0{day}T00:00:00Z");
    service["metadata"]["creationTimestamp"] = time.into();
    service
}

/// `b-x` of namespace `a` and `x` of `a-b`, which is older, mean one egress policy of their clients
/// in `c`.
fn ambiguous() -> (ClusterState, ObjectKey, ObjectKey) {
    let mut objects = ["a", "a-b", "c"].map(namespace).to_vec();
    objects.push(created(2, named("a", "b-x", &EVERYWHERE)));
    objects.push(created(1, named("a-b", "x", &EVERYWHERE)));
    let [younger, older] = [("a", "b-x"), ("a-b", "x")].map(|(a, b)| ObjectKey::new(a, b));
    (state(&objects), younger, older)
}

/// Plans and settles a Service; returns the Services to be planned again, and the plan.
fn settled(
    claims: &mut Claims,
    state: &ClusterState,
    key: &ObjectKey,
) -> (BTreeSet<ObjectKey>, ServicePlan) {
    let mut plan = service(state, &settings(Compatibility::Document), &[], key);
    (claims.settle(state, key, [], &mut plan), plan)
}

#[test]
fn the_older_service_owns_what_two_ask_for() {
    let (state, younger, older) = ambiguous();
    let shared = ObjectKey::new("c", SHARED);
    let mut claims = Claims::default();

    let document = settings(Compatibility::Document);
    let all = service(&state, &document, &[], &younger).policies.len();
    let (again, plan) = settled(&mut claims, &state, &younger);
    assert_eq!((again, plan.problems.len()), (set(&[]), 0));
    assert_eq!(plan.policies.len(), all);
    assert_eq!(claims.owner(&shared), Some(&younger));

    let (again, plan) = settled(&mut claims, &state, &older);
    assert_eq!((again, plan.problems.len()), (set(&[("a", "b-x")]), 0));
    assert_eq!(plan.policies.len(), all);
    assert_eq!(claims.owner(&shared), Some(&older));

    for _ in 0..2 {
        let (again, plan) = settled(&mut claims, &state, &younger);
        assert_eq!((again, plan.policies.len()), (set(&[]), all - 1));
        assert!(!keys(&plan).contains(&shared.to_string()));
        let reported = messages(&plan.problems, Reason::PolicyConflict);
        assert_eq!(reported.len(), 1);
        let has = |part| reported[0].contains(part);
        assert!(has("Service a-b/x") && has(SHARED), "{reported:?}");
    }

    for (key, again, owner) in [
        (&older, set(&[("a", "b-x")]), Some(&younger)),
        (&younger, set(&[]), None),
    ] {
        // A Service that is gone asks for nothing.
        let (state, mut plan) = (ClusterState::default(), wanting(key, &[]));
        assert_eq!(claims.settle(&state, key, [], &mut plan), again);
        assert_eq!(claims.owner(&shared), owner);
    }
    assert!(claims.claimants.is_empty() && claims.claims.is_empty());
}

#[test]
fn a_service_created_anew_is_young_again() {
    let (mut state, younger, older) = ambiguous();
    let mut claims = Claims::default();
    for key in [&younger, &older] {
        settled(&mut claims, &state, key);
    }
    let anew = created(3, named("a-b", "x", &EVERYWHERE));
    remove(&mut state, &anew);
    apply(&mut state, &anew);
    let (again, plan) = settled(&mut claims, &state, &older);
    assert_eq!(again, set(&[("a", "b-x")]));
    assert_eq!(messages(&plan.problems, Reason::PolicyConflict).len(), 1);
    assert_eq!(claims.owner(&ObjectKey::new("c", SHARED)), Some(&younger));
}

#[test]
fn frozen_policies_stay_claimed() {
    let (mut state, younger, older) = ambiguous();
    let mut claims = Claims::default();
    settled(&mut claims, &state, &older);
    let frozen = named("a-b", "x", &[("namespace-selectors", "?")]);
    apply(&mut state, &frozen);
    assert_eq!(settled(&mut claims, &state, &older).0, set(&[]));
    settled(&mut claims, &state, &younger);
    assert_eq!(claims.owner(&ObjectKey::new("c", SHARED)), Some(&older));
}

#[test]
fn lost_policies_are_one_problem_per_owner() {
    let names = ["p", "q", "r", "s", "t"];
    let younger = created(2, named("a", "younger", &[]));
    let state = state(&[named("a", "older", &[]), younger]);
    let mut claims = Claims::default();
    let [_, plan] = ["older", "younger"].map(|name| {
        let key = ObjectKey::new("a", name);
        let mut plan = wanting(&key, &names);
        claims.settle(&state, &key, [], &mut plan);
        plan
    });
    assert_eq!(plan.policies, []);
    assert_eq!(
        messages(&plan.problems, Reason::PolicyConflict),
        ["Service a/older, which is older, owns NetworkPolicies: x/p, x/q, x/r, and 2 more"]
    );
}

/// A plan that wants policies of these names.
fn wanting(key: &ObjectKey, names: &[&str]) -> ServicePlan {
    let (state, settings) = (ClusterState::default(), PolicySettings::default());
    let policies = names.iter().map(|name| Policy {
        key: ObjectKey::new("x", name),
        labels: BTreeMap::new(),
        description: String::new(),
        spec: json!({}),
    });
    let mut plan = service(&state, &settings, &[], key);
    plan.policies = policies.collect();
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
        let objects: Vec<_> = services.iter().zip(&ages)
            .map(|(key, age)| created(*age, named("a", &key.name, &[]))).collect();
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
    let wanted = (0..4).filter(|bit| bits & (1 << bit) != 0);
    let names: Vec<_> = wanted.map(|bit| NAMES[bit]).collect();
    let mut plan = wanting(key, &names);
    let again = claims.settle(state, key, [], &mut plan);
    for name in names {
        let policy = ObjectKey::new("x", name);
        let given = plan.policies.iter().any(|one| one.key == policy);
        assert_eq!(given, claims.owner(&policy) == Some(key));
    }
    again
}
