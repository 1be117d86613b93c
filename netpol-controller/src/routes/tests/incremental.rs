//! What a change affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::fixture::*;
use super::listeners::scattered;
use super::restrict::every_shape;
use crate::routes::{GatewayEntry, Table, all_groups, group, groups_of};
use crate::state::ClusterState;

fn shoot(index: usize) -> Vec<Value> {
    let namespace = format!("shoot--foo--{index}");
    let mut all = vec![api_server(&namespace)];
    all.extend(passthrough(
        &namespace,
        &[&format!("api-{index}.example.com")],
    ));
    let key = format!("{namespace}/kube-apiserver");
    all.push(slice(&key, "kube-apiserver:443", &["10.0.0.1"]));
    all
}

fn groups(of: &BTreeSet<Arc<str>>) -> Vec<&str> {
    of.iter().map(AsRef::as_ref).collect()
}

fn affected(state: &ClusterState, object: &Value) -> BTreeSet<Arc<str>> {
    let mut copy = ClusterState::default();
    let (kind, key) = apply(&mut copy, object);
    groups_of(state, &one(), kind, &key)
}

fn filled(state: &ClusterState, settings: &[GatewayEntry]) -> Table {
    let mut table = Table::default();
    for name in all_groups(state) {
        table.put(&name, group(state, settings, &name));
    }
    table
}

#[test]
fn an_endpoint_changes_one_cluster_of_one_group() {
    let objects: Vec<Value> = (0..3).flat_map(shoot).collect();
    let mut state = state(&objects);
    let settings = one();
    let mut table = filled(&state, &settings);
    let before = table.clusters(0, "shoot--foo--1").to_vec();
    let moved = slice(
        "shoot--foo--1/kube-apiserver",
        "kube-apiserver:443",
        &["10.0.0.9"],
    );
    let of = affected(&state, &moved);
    assert_eq!(groups(&of), ["shoot--foo--1"]);
    apply(&mut state, &moved);
    let changed = table.put("shoot--foo--1", group(&state, &settings, "shoot--foo--1"));
    assert_eq!(groups(&changed.clusters), ["shoot--foo--1"]);
    assert!(
        changed.routes.is_empty() && changed.problems.is_empty() && changed.services.is_empty()
    );
    let after = table.clusters(0, "shoot--foo--1");
    assert_eq!(after.len(), before.len());
    let differ = before
        .iter()
        .zip(after)
        .filter(|(old, new)| old != new)
        .count();
    assert_eq!(differ, 1);
    for other in ["shoot--foo--0", "shoot--foo--2"] {
        let same = table.put(other, group(&state, &settings, other));
        assert_eq!(same, crate::routes::Changed::default());
    }
}

#[test]
fn objects_affect_the_namespaces_they_route_to() {
    let mut objects: Vec<Value> = (0..2).flat_map(shoot).collect();
    let chain = filter_chain("shoot--foo--1", "10.1.2.3");
    let rules = http_proxy(8443, "X-Gardener-Destination", REGEX);
    let rule = rule("shoot--foo--0/kube-apiserver", json!({}));
    objects.extend([chain.clone(), rules.clone(), rule.clone()]);
    let state = state(&objects);
    assert_eq!(groups(&affected(&state, &chain)), ["shoot--foo--1"]);
    assert_eq!(groups(&affected(&state, &rule)), ["shoot--foo--0"]);
    let everywhere = ["istio-ingress", "shoot--foo--0", "shoot--foo--1"];
    assert_eq!(groups(&affected(&state, &rules)), everywhere);
    for object in &objects[..4] {
        assert_eq!(
            groups(&affected(&state, object)),
            ["shoot--foo--0"],
            "{object}"
        );
    }
}

#[test]
fn gateways_affect_bound_routes() {
    let mut objects = shoot(0);
    let [mut gateway, mut bound] = passthrough("shared", &["x.example.com"]);
    bound["metadata"]["namespace"] = json!("other");
    bound["spec"]["gateways"] = json!(["shared/kube-apiserver"]);
    gateway["metadata"]["namespace"] = json!("shared");
    objects.extend([gateway.clone(), bound]);
    let state = state(&objects);
    assert_eq!(groups(&affected(&state, &gateway)), ["other", "shared"]);
}

/// All `VirtualService`s of a `Gateway`'s namespace decide if its names are passed through.
#[test]
fn terminating_gateway_affects_all_bound_routes() {
    let settings = one();
    let bound = |name: &str, to: &str| {
        let [_, mut bound] = terminating(to, &["x.example.com"]);
        bound["metadata"]["namespace"] = json!("istio-ingress");
        bound["metadata"]["name"] = json!(name);
        bound
    };
    let [gateway, _] = terminating("istio-ingress", &["x.example.com"]);
    let mut state = state(&[
        api_server("a"),
        api_server("b"),
        gateway,
        bound("first", "a"),
    ]);
    let mut table = filled(&state, &settings);
    assert_eq!(table.accepted(0, "a").len(), 2);
    let second = bound("second", "b");
    let mut of = affected(&state, &second);
    let (kind, key) = apply(&mut state, &second);
    of.extend(affected(&state, &second));
    assert_eq!(groups(&of), ["a", "b", "istio-ingress"]);
    renew(&mut table, &state, &settings, of);
    assert_eq!(table.accepted(0, "a").len(), 0);
    let of = affected(&state, &second);
    state.remove(kind, &key);
    renew(&mut table, &state, &settings, of);
    assert_eq!(table.accepted(0, "a").len(), 2);
}

#[test]
fn pods_affect_nothing_where_labels_decide() {
    let mut objects = shoot(0);
    let own = json!({"app": "istio-ingressgateway", "istio": "ingressgateway"});
    let metadata = json!({"namespace": "istio-ingress", "name": "gateway-0", "labels": own});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
    objects.push(pod.clone());
    let state = state(&objects);
    assert_eq!(groups(&affected(&state, &pod)), [""; 0]);
    let mut loose = one();
    loose[0].selector = labels(&[("istio", "ingressgateway")]);
    let mut copy = ClusterState::default();
    let (kind, key) = apply(&mut copy, &pod);
    assert_eq!(
        groups(&groups_of(&state, &loose, kind, &key)),
        ["shoot--foo--0"]
    );
}

#[test]
fn restrictions_affect_restricted_routes() {
    let mut objects: Vec<Value> = (0..3).flat_map(shoot).collect();
    let filters = every_shape("shoot--foo--1", "api-1.example.com");
    objects.extend(filters.iter().cloned());
    let state = state(&objects);
    let of: Vec<_> = filters.iter().map(|one| affected(&state, one)).collect();
    assert_eq!(groups(&of[0]), ["shoot--foo--1"]);
    let own = "istio-ingress";
    let shoots = ["shoot--foo--0", "shoot--foo--1", "shoot--foo--2"];
    assert_eq!(groups(&of[1]), [&[own], &shoots[..]].concat());
    assert_eq!(groups(&of[2]), ["shoot--foo--1"]);
    // By a part of the id, which others may have too.
    assert_eq!(groups(&of[3]), groups(&all_groups(&state)));
    assert_eq!(groups(&of[4]), groups(&all_groups(&state)));
}

#[test]
fn foreign_filter_affects_nothing() {
    let mut objects: Vec<Value> = (0..3).flat_map(shoot).collect();
    let mut filters = every_shape("shoot--foo--1", "api-1.example.com");
    filters.push(http_proxy(8443, "X-Gardener-Destination", REGEX));
    filters.push(filter_chain("shoot--foo--1", "10.1.2.3"));
    for filter in &mut filters {
        filter["metadata"]["namespace"] = json!("tenant");
    }
    objects.extend(filters.iter().cloned());
    let state = state(&objects);
    for filter in &filters {
        assert_eq!(groups(&affected(&state, filter)), [""; 0], "{filter}");
    }
}

/// Filters come and go, one by one, before and after what they are about.
#[test]
fn affected_groups_of_restrictions_suffice() {
    let settings = one();
    let mut filters = every_shape("shoot--foo--1", "api-1.example.com");
    filters.push(http_proxy(8443, "X-Gardener-Destination", REGEX));
    let shoots: Vec<Value> = (0..3).flat_map(shoot).collect();
    for first in [true, false] {
        let mut state = state(if first { &[] } else { &shoots });
        let mut table = filled(&state, &settings);
        let late = if first { shoots.clone() } else { Vec::new() };
        for object in filters.iter().chain(&late) {
            let mut of = affected(&state, object);
            apply(&mut state, object);
            of.extend(affected(&state, object));
            renew(&mut table, &state, &settings, of);
        }
        for filter in &filters {
            let (kind, key) = apply(&mut ClusterState::default(), filter);
            let of = groups_of(&state, &settings, kind, &key);
            state.remove(kind, &key);
            renew(&mut table, &state, &settings, of);
        }
    }
}

/// Objects of a server without TLS come and go, one by one and in both orders.
#[test]
fn affected_groups_of_plain_servers_suffice() {
    let settings = one();
    let mut objects = scattered("shoot--foo--1");
    for filter_last in [true, false] {
        let mut reported = 0;
        let mut state = state(&[]);
        let mut table = Table::default();
        for object in &objects {
            let mut of = affected(&state, object);
            apply(&mut state, object);
            of.extend(affected(&state, object));
            renew(&mut table, &state, &settings, of);
            reported += table.problems("shoot--foo--1").len();
        }
        // Only before there is a filter for CONNECT.
        assert_eq!(reported, usize::from(filter_last));
        for object in &objects {
            let (kind, key) = apply(&mut ClusterState::default(), object);
            let of = groups_of(&state, &settings, kind, &key);
            state.remove(kind, &key);
            renew(&mut table, &state, &settings, of);
        }
        objects.reverse();
    }
}

/// Translates some groups, which must be what translating all is.
fn renew(
    table: &mut Table,
    state: &ClusterState,
    settings: &[GatewayEntry],
    of: BTreeSet<Arc<str>>,
) {
    for name in of {
        table.put(&name, group(state, settings, &name));
    }
    let whole = filled(state, settings);
    let names: BTreeSet<_> = table.groups().chain(whole.groups()).cloned().collect();
    for name in names {
        assert_eq!(table.accepted(0, &name), whole.accepted(0, &name), "{name}");
        assert_eq!(table.clusters(0, &name), whole.clusters(0, &name), "{name}");
        assert_eq!(table.problems(&name), whole.problems(&name), "{name}");
    }
}

/// The affected groups suffice: translating only them gives what translating all gives.
#[test]
fn affected_groups_are_sufficient() {
    let mut shared: Vec<Value> = (0..3).flat_map(shoot).collect();
    shared.push(filter_chain("shoot--foo--2", "10.1.2.3"));
    shared.push(http_proxy(8443, "X-Gardener-Destination", REGEX));
    shared.push(rule(
        "shoot--foo--1/kube-apiserver",
        json!({"tls": {"mode": "SIMPLE"}}),
    ));
    shared.extend(terminating("shoot--foo--3", &["t.example.com"]));
    shared.push(api_server("shoot--foo--3"));
    // Every order of events would do; these are forwards and backwards.
    for reverse in [false, true] {
        let mut objects = shared.clone();
        if reverse {
            objects.reverse();
        }
        let settings = one();
        let mut state = state(&[]);
        let mut table = Table::default();
        for object in &objects {
            let mut of = affected(&state, object);
            apply(&mut state, object);
            of.extend(affected(&state, object));
            renew(&mut table, &state, &settings, of);
        }
        assert!(table.groups().count() >= 4);
    }
}
