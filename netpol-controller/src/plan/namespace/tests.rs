//! The plans of namespaces: which policies there are, and what those without exceptions say.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::*;

mod ranges;

const HANDLER: &str = "handler.exposureclass.gardener.cloud/name";
const ROLE: &str = "gardener.cloud/role";

/// A cluster of one namespace, with the Endpoints of the API server.
fn state(name: &str, labels: &[(&str, &str)]) -> ClusterState {
    let mut state = ClusterState::default();
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let object = json!({ "metadata": { "name": name, "labels": labels } });
    apply(&mut state, Kind::Namespace, object);
    let port = json!({ "name": "https", "port": 443, "protocol": "TCP" });
    let subset = json!({ "addresses": [{ "ip": "10.1.2.3" }], "ports": [port] });
    endpoints(&mut state, json!([subset]));
    state
}

fn shoot_state() -> ClusterState {
    state("shoot--a--b", &[(ROLE, "shoot")])
}

fn apply(state: &mut ClusterState, kind: Kind, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    state.apply(kind, object, |_| ()).unwrap();
}

fn endpoints(state: &mut ClusterState, subsets: Value) {
    let meta = json!({ "namespace": "default", "name": "kubernetes" });
    let object = json!({ "metadata": meta, "subsets": subsets });
    apply(state, Kind::Endpoints, object);
}

fn ranges(texts: &[&str]) -> Vec<IpPrefix> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// What is blocked, then the ranges of pods, Services and nodes.
fn settings(texts: [&[&str]; 4]) -> NamespaceSettings {
    let [blocked, pods, services, nodes] = texts.map(ranges);
    NamespaceSettings {
        blocked,
        pods,
        services,
        nodes,
        additional_selectors: Vec::new(),
    }
}

fn plan(state: &ClusterState, settings: &NamespaceSettings) -> NamespacePlan {
    let of_test = |name: &&std::sync::Arc<str>| !name.starts_with("other");
    let name = state.namespaces.keys().find(of_test).unwrap();
    namespace(state, settings, &ApiServer::of(state), name)
}

fn names(plan: &NamespacePlan) -> Vec<&str> {
    let policies = plan.policies.iter();
    policies.map(|policy| &*policy.key.name).collect()
}

fn spec(plan: &NamespacePlan, name: &str) -> Value {
    let mut policies = plan.policies.iter();
    let policy = policies.find(|policy| &*policy.key.name == name).unwrap();
    policy.spec.clone()
}

fn host(cidr: &str) -> Value {
    json!({ "ipBlock": { "cidr": cidr } })
}

fn port(protocol: &str, port: u16) -> Value {
    json!({ "protocol": protocol, "port": port })
}

fn egress(label: &str, rules: Value) -> Value {
    let label = format!("networking.gardener.cloud/{label}");
    json!({
        "podSelector": { "matchLabels": { label: "allowed" } },
        "policyTypes": ["Egress"],
        "egress": rules,
    })
}

/// The blocks of a policy's rules, each with its exceptions, rule by rule.
fn blocks(plan: &NamespacePlan, name: &str) -> Vec<Vec<(String, Vec<String>)>> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let block = |peer: &Value| {
        let block = &peer["ipBlock"];
        let except = block["except"].as_array();
        let except = except.map(|except| except.iter().map(text).collect());
        (text(&block["cidr"]), except.unwrap_or_default())
    };
    let spec = spec(plan, name);
    let rules = spec["egress"].as_array().unwrap().iter();
    rules
        .map(|rule| {
            let peers = rule["to"].as_array().unwrap().iter();
            peers
                .filter(|peer| peer.get("ipBlock").is_some())
                .map(block)
                .collect()
        })
        .collect()
}

fn except_of(plan: &NamespacePlan, name: &str, cidr: &str) -> Vec<String> {
    let blocks = blocks(plan, name).concat();
    let mut of_cidr = blocks.into_iter().filter(|(own, _)| own == cidr);
    of_cidr.next().unwrap().1
}

#[test]
fn namespace_labels_decide_general_policies() {
    const FULL: [bool; 6] = [true; 6];
    const MESH: [bool; 6] = [true, false, false, false, true, true];
    const EXPOSED: [bool; 6] = [false, false, false, false, true, true];
    const NONE: [bool; 6] = [false; 6];
    let extra = NamespaceSettings {
        additional_selectors: vec![
            LabelSelector::of_labels([("team".to_owned(), "a".to_owned())]),
            LabelSelector::of_labels([("team".to_owned(), "b".to_owned())]),
        ],
        ..NamespaceSettings::default()
    };
    for (labels, expected) in [
        (&[("kubernetes.io/metadata.name", "garden")][..], FULL),
        (&[(ROLE, "shoot")], FULL),
        (&[(ROLE, "extension")], FULL),
        (&[("team", "b")], FULL),
        (&[(ROLE, "istio-system")], MESH),
        (&[(ROLE, "istio-ingress")], MESH),
        (&[(HANDLER, "internet")], EXPOSED),
        (&[(HANDLER, "")], EXPOSED),
        (&[(ROLE, "istio-ingress"), (HANDLER, "internet")], MESH),
        (&[(ROLE, "istio-system"), ("team", "a")], FULL),
        (&[(HANDLER, "internet"), (ROLE, "shoot")], FULL),
        (&[(ROLE, "project")], NONE),
        (&[("team", "c")], NONE),
        (&[("kubernetes.io/metadata.name", "garden-x")], NONE),
        (&[], NONE),
    ] {
        let plan = plan(&state("some", labels), &extra);
        let pick = |wanted| {
            let cells = NAMES.iter().zip(expected);
            cells
                .filter(move |(_, cell)| *cell == wanted)
                .map(|(name, _)| *name)
        };
        assert_eq!(names(&plan), pick(true).collect::<Vec<_>>(), "{labels:?}");
        assert_eq!(plan.unwanted, pick(false).collect::<Vec<_>>(), "{labels:?}");
        assert!(plan.untouched.is_empty() && plan.problems.is_empty());
    }
}

#[test]
fn terminating_namespace_has_no_plan() {
    let mut state = shoot_state();
    let settings = NamespaceSettings::default();
    let absent = namespace(&state, &settings, &ApiServer::of(&state), "another");
    assert_eq!(absent, NamespacePlan::default());
    let meta = json!({
        "name": "shoot--a--b",
        "labels": { ROLE: "shoot" },
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    });
    apply(&mut state, Kind::Namespace, json!({ "metadata": meta }));
    assert_eq!(plan(&state, &settings), NamespacePlan::default());
}

#[test]
fn policies_have_descriptions_and_no_labels() {
    let plan = plan(&shoot_state(), &NamespaceSettings::default());
    let mut sentences: Vec<_> = plan.policies.iter().map(|own| &own.description).collect();
    assert!(sentences.iter().all(|text| text.ends_with('.')));
    sentences.sort();
    sentences.dedup();
    assert_eq!(sentences.len(), NAMES.len());
    assert!(plan.policies.iter().all(|own| own.labels.is_empty()));
    let here = |own: &Policy| &*own.key.namespace == "shoot--a--b";
    assert!(plan.policies.iter().all(here));
}

#[test]
fn deny_all_is_last_and_selects_every_pod() {
    assert_eq!(NAMES.last(), Some(&"deny-all"));
    let plan = plan(&shoot_state(), &NamespaceSettings::default());
    assert_eq!(
        spec(&plan, "deny-all"),
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] })
    );
}

#[test]
fn dns_is_reached_by_pods_and_by_address() {
    let settings = settings([&[], &[], &["100.104.0.0/13", "fd00:10:1::/108"], &[]]);
    let plan = plan(&shoot_state(), &settings);
    let pods = |app: &str| {
        let one = json!({ "key": "k8s-app", "operator": "In", "values": [app] });
        json!({
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
            "podSelector": { "matchExpressions": [one] },
        })
    };
    let rule = json!({
        "to": [
            pods("kube-dns"),
            pods("node-local-dns"),
            host("169.254.20.10/32"),
            host("fd30:1319:f1e:230b::1/128"),
            host("100.104.0.10/32"),
            host("fd00:10:1::a/128"),
        ],
        "ports": [port("UDP", 53), port("TCP", 53), port("UDP", 8053), port("TCP", 8053)],
    });
    let expected = egress("to-dns", json!([rule]));
    assert_eq!(spec(&plan, "allow-to-dns"), expected);
}

#[test]
fn blocked_ranges_have_a_rule_each() {
    let ranges = ["10.0.0.0/8", "fd12::/16", "169.254.169.254"];
    let settings = settings([&ranges, &[], &[], &[]]);
    let blocked = plan(&shoot_state(), &settings);
    let expected = ["10.0.0.0/8", "fd12::/16", "169.254.169.254/32"]
        .map(|cidr| vec![(cidr.to_owned(), Vec::new())]);
    assert_eq!(blocks(&blocked, "allow-to-blocked-cidrs"), expected);
    let none = plan(&shoot_state(), &NamespaceSettings::default());
    let mut expected = egress("to-blocked-cidrs", json!([]));
    expected.as_object_mut().unwrap().remove("egress");
    assert_eq!(spec(&none, "allow-to-blocked-cidrs"), expected);
}

fn to_api_server(subsets: Value, mut api_server: impl FnMut(&mut ApiServer)) -> NamespacePlan {
    let mut state = state("garden", &[(ROLE, "istio-ingress")]);
    endpoints(&mut state, subsets);
    let mut own = ApiServer::of(&state);
    api_server(&mut own);
    namespace(&state, &NamespaceSettings::default(), &own, "garden")
}

#[test]
fn api_server_is_reached_at_its_endpoints() {
    let subsets = json!([
        {
            "addresses": [{ "ip": "10.1.2.4" }, { "ip": "10.1.2.3" }, { "ip": "10.1.2.4" }],
            "notReadyAddresses": [{ "ip": "10.1.2.5" }],
            "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }, { "port": 53, "protocol": "UDP" }],
        },
        { "addresses": [{ "ip": "fd00::1" }], "ports": [{ "port": 443 }] },
    ]);
    let plan = to_api_server(subsets, |_| {});
    let hosts = [host("10.1.2.3/32"), host("10.1.2.4/32")];
    let rules = json!([
        { "to": hosts, "ports": [port("TCP", 6443), port("UDP", 53)] },
        { "to": [host("fd00::1/128")], "ports": [port("TCP", 443)] },
    ]);
    let expected = egress("to-runtime-apiserver", rules);
    assert_eq!(spec(&plan, "allow-to-runtime-apiserver"), expected);
    assert!(plan.untouched.is_empty());
}

#[test]
fn resolved_api_server_addresses_add_a_rule() {
    let subsets = json!([{ "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "port": 443 }] }]);
    let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let resolved: Vec<IpAddr> = ips(&["192.0.2.1", "2001:db8::1", "192.0.2.1"]);
    let plan = to_api_server(subsets.clone(), |own| {
        own.host = HostName::Resolved(resolved.clone(), 6443);
    });
    let spec = spec(&plan, "allow-to-runtime-apiserver");
    assert_eq!(spec["egress"].as_array().unwrap().len(), 2);
    let hosts = [host("192.0.2.1/32"), host("2001:db8::1/128")];
    let rule = json!({ "to": hosts, "ports": [port("TCP", 6443)] });
    assert_eq!(spec["egress"][1], rule);
    // A name without addresses adds nothing: a rule without peers would allow everything.
    let plan = to_api_server(subsets, |own| {
        own.host = HostName::Resolved(Vec::new(), 6443)
    });
    assert_eq!(blocks(&plan, "allow-to-runtime-apiserver").len(), 1);
}

#[test]
fn api_server_policy_waits_for_addresses() {
    let known = json!([{ "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "port": 443 }] }]);
    let unready =
        json!([{ "notReadyAddresses": [{ "ip": "10.1.2.3" }], "ports": [{ "port": 443 }] }]);
    let portless = json!([{ "addresses": [{ "ip": "10.1.2.3" }] }]);
    let of_address = [json!([]), unready, portless].map(|subsets| (subsets, HostName::None));
    for (subsets, host) in of_address
        .into_iter()
        .chain([(known, HostName::Unresolved)])
    {
        let plan = to_api_server(subsets.clone(), |own| own.host = host.clone());
        assert_eq!(plan.untouched, ["allow-to-runtime-apiserver"], "{subsets}");
        assert_eq!(names(&plan), ["allow-to-dns", "deny-all"], "{subsets}");
        let unwanted = !plan.unwanted.contains(&"allow-to-runtime-apiserver");
        assert!(unwanted && plan.problems.is_empty());
    }
    assert!(ApiServer::of(&ClusterState::default()).subsets.is_empty());
}
