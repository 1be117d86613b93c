//! `deny-all` and its exceptions: which namespaces they are for, in which order, and what they
//! follow.

use serde_json::{Value, json};
use testkit::wait;

use crate::api::{Api, Policies, policies_of};
use crate::child::{Child, LIMIT};
use crate::definitions::{CLUSTER, create, install};
use crate::stage::Stage;

const CONFIG: &str = r#"  networkPolicy: { enabled: false }
  namespacePolicies:
    enabled: true
    blockedCIDRs: ["169.254.169.254/32"]
    cluster: { pods: ["100.96.0.0/11"], services: ["100.64.0.0/13"], nodes: ["10.250.0.0/16"] }
    additionalNamespaceSelectors: [{ matchLabels: { extra: "yes" } }]
"#;

/// All of them, and those that need no API server's address.
const ALL: [&str; 6] = [
    "allow-to-blocked-cidrs",
    "allow-to-dns",
    "allow-to-private-networks",
    "allow-to-public-networks",
    "allow-to-runtime-apiserver",
    "deny-all",
];

/// Returns the names of the policies of a namespace, sorted.
fn names(policies: &Policies, namespace: &str) -> Vec<String> {
    let own = policies.keys().filter_map(|key| key.split_once('/'));
    let own = own.filter(|(place, _)| *place == namespace);
    own.map(|(_, name)| name.to_owned()).collect()
}

fn but(left_out: &[&str]) -> Vec<String> {
    let all = ALL.into_iter().filter(|name| !left_out.contains(name));
    all.map(str::to_owned).collect()
}

fn quota(limit: u32) -> Value {
    let hard = json!({ "count/networkpolicies.networking.k8s.io": limit.to_string() });
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "few" },
        "spec": { "hard": hard },
        "status": { "hard": hard, "used": { "count/networkpolicies.networking.k8s.io": "0" } },
    })
}

/// Lets a namespace have so many policies. No other controller counts them here: the figures of its
/// status are a test's to write.
fn allow(api: &mut Api, limit: u32) {
    let all = "/api/v1/namespaces/short/resourcequotas";
    let one = format!("{all}/few");
    if api.find(&one).is_none() {
        api.create(all, &quota(limit));
    }
    let change = quota(limit);
    api.patch(&one, &json!({ "spec": change["spec"] }));
    let hard = json!({ "hard": change["status"]["hard"], "used": change["status"]["used"] });
    let used = names(&api.policies(), "short").len();
    let mut status = json!({ "status": hard });
    status["status"]["used"]["count/networkpolicies.networking.k8s.io"] = json!(used.to_string());
    api.patch(&format!("{one}/status"), &status);
}

/// A namespace is never left with `deny-all` alone, whichever of the others fail.
fn order(api: &mut Api, controller: &Child) {
    api.namespace("short", &json!({}));
    allow(api, 0);
    let label = json!({ "metadata": { "labels": { "gardener.cloud/role": "extension" } } });
    api.patch("/api/v1/namespaces/short", &label);
    let refused = [("verb", "create"), ("code", "403")];
    let refusals = || controller.value("rhizome_netpol_write_errors_total", &refused);
    wait::until("two attempts to be refused", LIMIT, || refusals() >= 8.0).unwrap();
    assert_eq!(names(&api.policies(), "short"), Vec::<String>::new());
    // Four of the five, so that one fails and deny-all, which is tried after them, does too.
    for limit in [1, 2, 4] {
        allow(api, limit);
        let limit = usize::try_from(limit).unwrap();
        let policies = api.wait_policies("as many as may be", |found| {
            names(found, "short").len() == limit
        });
        let own = names(&policies, "short");
        assert_ne!(own, ["deny-all"]);
    }
    allow(api, 100);
    let wanted = but(&["allow-to-runtime-apiserver"]);
    api.wait_policies("all of them", |found| names(found, "short") == wanted);
}

fn roles(api: &mut Api) {
    for (name, labels) in [
        ("full", json!({ "gardener.cloud/role": "extension" })),
        ("chosen", json!({ "extra": "yes" })),
        ("mesh", json!({ "gardener.cloud/role": "istio-system" })),
        (
            "exposed",
            json!({ "handler.exposureclass.gardener.cloud/name": "x" }),
        ),
        ("plain", json!({})),
    ] {
        api.namespace(name, &labels);
    }
    let networks = [
        "allow-to-blocked-cidrs",
        "allow-to-private-networks",
        "allow-to-public-networks",
        "allow-to-runtime-apiserver",
    ];
    let policies = api.wait_policies("policies of all", |found| {
        let has = |name, wanted: Vec<String>| names(found, name) == wanted;
        has("garden", but(&networks[3..]))
            && has("full", but(&networks[3..]))
            && has("chosen", but(&networks[3..]))
            && has("mesh", but(&networks))
            && has("exposed", but(&networks))
    });
    assert_eq!(names(&policies, "plain"), Vec::<String>::new());
    let dns = &policies["full/allow-to-dns"]["spec"]["egress"][0];
    let tenth = json!({ "ipBlock": { "cidr": "100.64.0.10/32" } });
    assert!(dns["to"].as_array().unwrap().contains(&tenth), "{dns}");
    let blocked = &policies["full/allow-to-public-networks"]["spec"]["egress"][0]["to"][0];
    let except = blocked["ipBlock"]["except"].as_array().unwrap();
    assert!(except.contains(&json!("169.254.169.254/32")), "{blocked}");
}

/// The address of the API server, which the API server itself cannot publish on loopback.
fn api_server(api: &mut Api) {
    let all = "/api/v1/namespaces/default/endpoints";
    let mut endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "kubernetes" },
        "subsets": [{ "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "name": "https", "port": 6443 }] }],
    });
    api.create(all, &endpoints);
    let reaches = |policies: &Policies, place: &str, cidr: &str| {
        let own = policies.get(&format!("{place}/allow-to-runtime-apiserver"));
        own.is_some_and(|own| {
            own["spec"]["egress"][0]["to"] == json!([{ "ipBlock": { "cidr": cidr } }])
        })
    };
    for address in ["10.1.2.3", "10.9.9.9"] {
        endpoints["subsets"][0]["addresses"][0]["ip"] = json!(address);
        api.patch(
            &format!("{all}/kubernetes"),
            &json!({ "subsets": endpoints["subsets"] }),
        );
        let cidr = format!("{address}/32");
        api.wait_policies("the API server's address", |found| {
            let places = ["garden", "full", "chosen", "mesh", "short"];
            places.iter().all(|place| reaches(found, place, &cidr))
        });
    }
    // Without any, what was known stays.
    api.delete(&format!("{all}/kubernetes"));
    assert!(reaches(&api.policies(), "full", "10.9.9.9/32"));
}

/// The kind `Cluster` comes later, and with it the networks of shoots.
fn shoots(api: &mut Api) {
    let label = json!({ "gardener.cloud/role": "shoot" });
    api.namespace("shoot--p--one", &label);
    let private = "shoot--p--one/allow-to-private-networks";
    let excepts = |policies: &Policies, cidr: &str| {
        let blocks = &policies.get(private)?["spec"]["egress"][0]["to"];
        let first = &blocks[0]["ipBlock"];
        assert_eq!(first["cidr"], "10.0.0.0/8");
        Some(first["except"].as_array()?.contains(&json!(cidr)))
    };
    let policies = api.wait_policies("the shoot's policies", |found| found.contains_key(private));
    assert_eq!(excepts(&policies, "10.5.0.0/16"), Some(false));
    api.wait_events(&["/shoot--p--one: MissingCluster"]);
    install(api, CLUSTER);
    let networks = |pods: &str| json!({ "shoot": { "spec": { "networking": { "pods": pods } } } });
    create(
        api,
        CLUSTER,
        ("", "shoot--p--one"),
        &networks("10.5.0.0/16"),
    );
    api.wait_policies("the shoot's pods to be excepted", |found| {
        excepts(found, "10.5.0.0/16") == Some(true)
    });
    let change = json!({ "spec": networks("10.6.0.0/16") });
    api.patch(
        "/apis/extensions.gardener.cloud/v1alpha1/clusters/shoot--p--one",
        &change,
    );
    api.wait_policies("the change of its pods to be followed", |found| {
        excepts(found, "10.6.0.0/16") == Some(true) && excepts(found, "10.5.0.0/16") == Some(false)
    });
}

/// What is changed by hand is put back; a namespace that is nothing any more loses what is ours.
fn drift(api: &mut Api) {
    api.delete(&format!("{}/allow-to-dns", policies_of("full")));
    api.patch(
        &format!("{}/deny-all", policies_of("full")),
        &json!({ "spec": { "policyTypes": ["Ingress"] } }),
    );
    api.wait_policies("them to be put back", |found| {
        names(found, "full") == ALL
            && found["full/deny-all"]["spec"]["policyTypes"] == json!(["Ingress", "Egress"])
    });
    let foreign = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny-all" }, "spec": { "podSelector": {} },
    });
    api.create(&policies_of("plain"), &foreign);
    api.patch(
        "/api/v1/namespaces/full",
        &json!({ "metadata": { "labels": { "gardener.cloud/role": null } } }),
    );
    let policies = api.wait_policies("ours to go", |found| names(found, "full").is_empty());
    assert_eq!(
        names(&policies, "plain"),
        ["deny-all"],
        "a foreign description is left alone"
    );
}

#[test]
fn namespaces_never_get_deny_all_alone() {
    let stage = Stage::new("namespaces");
    let mut api = stage.api();
    let controller = stage.controller("controller", CONFIG);
    order(&mut api, &controller);
    roles(&mut api);
    api_server(&mut api);
    shoots(&mut api);
    drift(&mut api);
    let text = stage.dry_run(CONFIG);
    assert!(
        text.contains("# 0 to create, 0 to update, 0 to delete"),
        "{text}"
    );
}
