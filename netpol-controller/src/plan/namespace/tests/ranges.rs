//! Which ranges are exceptions of public and of private networks.

use super::*;

/// Private networks, as both policies have them.
const V4: [&str; 4] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
];
const V6: [&str; 2] = ["fe80::/10", "fc00::/7"];

#[test]
fn public_networks_exclude_private_and_blocked() {
    let v6_cluster = ["fd01::/48", "2001:db8:1::/48", "fd03::/48"];
    for (blocked, cluster, further_v4, further_v6) in [
        // Nothing but the private networks.
        (
            &[][..],
            ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"],
            &[][..],
            &[][..],
        ),
        // Each family has its own of the blocked ranges, private or not.
        (
            &["169.254.169.254/32", "2001:db8::/32", "10.9.0.0/16"],
            ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"],
            &["169.254.169.254/32", "10.9.0.0/16"],
            &["2001:db8::/32"],
        ),
        // What is as wide as the block cannot be excepted, what is there already is not repeated.
        (
            &["0.0.0.0/0", "::/0", "10.0.0.0/8"],
            ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"],
            &[],
            &[],
        ),
        // Public IPv6 addresses may be the cluster's own.
        (
            &["2001:db8:2::/48"],
            v6_cluster,
            &[],
            &[
                "2001:db8:2::/48",
                "fd01::/48",
                "2001:db8:1::/48",
                "fd03::/48",
            ],
        ),
        // Not with two families.
        (
            &[],
            ["10.1.0.0/16", "2001:db8:1::/48", "fd03::/48"],
            &[],
            &[],
        ),
    ] {
        let [pods, services, nodes] = cluster;
        let settings = settings([blocked, &[pods], &[services], &[nodes]]);
        let mut state = shoot_state();
        cluster_object(
            &mut state,
            json!(["IPv4"]),
            json!({ "pods": "10.20.0.0/16" }),
            json!({}),
        );
        let plan = plan(&state, &settings);
        let name = "allow-to-public-networks";
        let expected = vec![vec![
            ("0.0.0.0/0".to_owned(), owned(&[&V4, further_v4].concat())),
            ("::/0".to_owned(), owned(&[&V6, further_v6].concat())),
        ]];
        assert_eq!(blocks(&plan, name), expected, "{blocked:?} {cluster:?}");
        assert!(spec(&plan, name)["egress"][0].get("ports").is_none());
    }
}

#[test]
fn private_networks_are_two_ordered_rules() {
    let plan = plan(&shoot_state(), &NamespaceSettings::default());
    let plain = |cidrs: &[&str]| -> Vec<(String, Vec<String>)> {
        let cidrs = cidrs.iter();
        cidrs.map(|cidr| ((*cidr).to_owned(), Vec::new())).collect()
    };
    assert_eq!(
        blocks(&plan, "allow-to-private-networks"),
        [plain(&V4), plain(&V6)]
    );
    let spec = spec(&plan, "allow-to-private-networks");
    let label = "networking.gardener.cloud/to-private-networks";
    assert_eq!(
        spec["podSelector"],
        json!({ "matchLabels": { label: "allowed" } })
    );
    assert_eq!(spec["policyTypes"], json!(["Egress"]));
    assert_eq!(
        spec["egress"][0]["to"][0],
        json!({ "ipBlock": { "cidr": "10.0.0.0/8" } })
    );
}

#[test]
fn private_networks_except_cluster_ranges() {
    let all = "allow-to-private-networks";
    for (blocked, [pods, services, nodes], expected) in [
        // Order: blocked, pods, Services, nodes; each only within its block.
        (
            &["10.200.0.0/16", "192.168.7.0/24", "fd12::/16", "1.1.1.1/32"][..],
            ["10.3.0.0/16", "100.64.0.0/13", "10.1.0.0/16"],
            [
                (
                    "10.0.0.0/8",
                    &["10.200.0.0/16", "10.3.0.0/16", "10.1.0.0/16"][..],
                ),
                ("172.16.0.0/12", &[]),
                ("192.168.0.0/16", &["192.168.7.0/24"]),
                ("100.64.0.0/10", &["100.64.0.0/13"]),
                ("fe80::/10", &[]),
                ("fc00::/7", &["fd12::/16"]),
            ],
        ),
        // An equal or wider range is no exception.
        (
            &["10.0.0.0/8", "172.0.0.0/8", "fc00::/7"],
            ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/17"],
            [
                ("10.0.0.0/8", &[]),
                ("172.16.0.0/12", &[]),
                ("192.168.0.0/16", &["192.168.0.0/17"]),
                ("100.64.0.0/10", &[]),
                ("fe80::/10", &[]),
                ("fc00::/7", &[]),
            ],
        ),
        // IPv6 only.
        (
            &["10.200.0.0/16"],
            ["fd01::/48", "fd02::/108", "fe80:1::/32"],
            [
                ("10.0.0.0/8", &["10.200.0.0/16"]),
                ("172.16.0.0/12", &[]),
                ("192.168.0.0/16", &[]),
                ("100.64.0.0/10", &[]),
                ("fe80::/10", &["fe80:1::/32"]),
                ("fc00::/7", &["fd01::/48", "fd02::/108"]),
            ],
        ),
        // Both families: the blocked ranges alone.
        (
            &["10.200.0.0/16", "fd12::/16"],
            ["10.3.0.0/16", "fd02::/108", "10.1.0.0/16"],
            [
                ("10.0.0.0/8", &["10.200.0.0/16"]),
                ("172.16.0.0/12", &[]),
                ("192.168.0.0/16", &[]),
                ("100.64.0.0/10", &[]),
                ("fe80::/10", &[]),
                ("fc00::/7", &["fd12::/16"]),
            ],
        ),
    ] {
        let settings = settings([blocked, &[pods], &[services], &[nodes]]);
        let plan = plan(&state("garden", &[(ROLE, "extension")]), &settings);
        let expected = expected.map(|(cidr, except)| (cidr.to_owned(), owned(except)));
        assert_eq!(blocks(&plan, all).concat(), expected, "{blocked:?} {pods}");
        assert!(plan.problems.is_empty());
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn cluster_object(state: &mut ClusterState, families: Value, mut spec: Value, status: Value) {
    spec["ipFamilies"] = families;
    let shoot = json!({ "spec": { "networking": spec }, "status": { "networking": status } });
    let meta = json!({ "name": "shoot--a--b" });
    apply(
        state,
        Kind::Shoot,
        json!({ "metadata": meta, "spec": { "shoot": shoot } }),
    );
}

#[test]
fn shoot_ranges_are_excepted_in_own_namespace() {
    let v4 = json!({ "nodes": "10.9.0.0/16", "pods": "10.7.0.0/16", "services": "10.8.0.0/16" });
    let v6 = json!({ "nodes": "fd09::/64", "pods": "fd07::/64" });
    let both = json!({
        "nodes": ["10.9.0.0/16", "fd09::/64"],
        "pods": ["10.7.0.0/16", "fd07::/64"],
        "services": ["10.6.0.0/16"],
    });
    for (families, spec, status, expected_v4, expected_v6) in [
        // As the spec has them: nodes, pods, Services.
        (
            json!(["IPv4"]),
            &v4,
            json!({}),
            &["10.9.0.0/16", "10.7.0.0/16", "10.8.0.0/16"][..],
            &[][..],
        ),
        // A shoot that does not say has IPv4.
        (
            json!([]),
            &v4,
            json!({}),
            &["10.9.0.0/16", "10.7.0.0/16", "10.8.0.0/16"],
            &[],
        ),
        // With those of the status all are sorted, each once.
        (
            json!(["IPv4"]),
            &v4,
            json!({ "pods": ["10.11.0.0/16", "10.7.0.0/16"], "nodes": ["10.9.0.0/16"] }),
            &["10.7.0.0/16", "10.8.0.0/16", "10.9.0.0/16", "10.11.0.0/16"],
            &[],
        ),
        (
            json!(["IPv6"]),
            &v6,
            json!({}),
            &[],
            &["fd09::/64", "fd07::/64"],
        ),
        // Of two families the IPv6 ranges alone.
        (
            json!(["IPv4", "IPv6"]),
            &v4,
            both.clone(),
            &[],
            &["fd07::/64", "fd09::/64"],
        ),
        (
            json!(["IPv6", "IPv4"]),
            &v4,
            both,
            &[],
            &["fd07::/64", "fd09::/64"],
        ),
        // What is no range is passed over, bits behind one are cut off.
        (
            json!(["IPv4"]),
            &json!({ "nodes": "soon", "pods": "10.7.1.2/16", "services": "11.0.0.0/8" }),
            json!({}),
            &["10.7.0.0/16"],
            &[],
        ),
    ] {
        let mut state = shoot_state();
        cluster_object(&mut state, families.clone(), spec.clone(), status.clone());
        let settings = settings([
            &["10.200.0.0/16"],
            &["10.1.0.0/16"],
            &["100.64.0.0/13"],
            &[],
        ]);
        let plan = plan(&state, &settings);
        let name = "allow-to-private-networks";
        let own = ["10.200.0.0/16", "10.1.0.0/16"];
        let case = format!("{families} {spec} {status}");
        let found = except_of(&plan, name, "10.0.0.0/8");
        assert_eq!(found, owned(&[&own, expected_v4].concat()), "{case}");
        assert_eq!(
            except_of(&plan, name, "fc00::/7"),
            owned(expected_v6),
            "{case}"
        );
        assert_eq!(except_of(&plan, name, "100.64.0.0/10"), ["100.64.0.0/13"]);
        assert!(plan.problems.is_empty(), "{case}");
    }
}

#[test]
fn only_shoots_namespaces_look_for_a_cluster() {
    for (name, labels, missing) in [
        ("shoot--a--b", &[(ROLE, "shoot")][..], true),
        ("shoot-a-b", &[(ROLE, "shoot")], true),
        ("extension-a", &[(ROLE, "extension")], false),
        ("a-shoot", &[(ROLE, "shoot")], false),
        // No policy here excepts a shoot's networks.
        ("shoot--a--b", &[(ROLE, "istio-ingress")], false),
    ] {
        let plan = plan(&state(name, labels), &NamespaceSettings::default());
        let problems: Vec<_> = plan.problems.iter().map(|own| own.reason).collect();
        let expected: &[Reason] = if missing {
            &[Reason::MissingCluster]
        } else {
            &[]
        };
        assert_eq!(problems, expected, "{name} {labels:?}");
        if missing {
            assert_eq!(plan.policies.len(), 6);
            let object = plan.problems[0].object.to_string();
            assert_eq!(object, format!("Namespace {name}"));
        }
    }
}

/// What the API server checks of an `ipBlock` (`ValidateIPBlock`), for every plan of this file's
/// kinds of settings.
#[test]
fn no_exception_lies_outside_its_block() {
    let odd = [
        "0.0.0.0/0",
        "::/0",
        "10.0.0.0/7",
        "fc00::/6",
        "224.0.0.0/4",
        "fe80::/9",
    ];
    let settings = settings([&odd, &odd[..1], &odd[1..3], &odd[3..]]);
    let mut state = shoot_state();
    let status = json!({ "pods": odd, "nodes": odd });
    cluster_object(&mut state, json!(["IPv6"]), json!({}), status);
    let plan = plan(&state, &settings);
    for name in ["allow-to-public-networks", "allow-to-private-networks"] {
        for (cidr, except) in blocks(&plan, name).concat() {
            let block: IpPrefix = cidr.parse().unwrap();
            for text in except {
                let range: IpPrefix = text.parse().unwrap();
                assert!(block.contains(range.network()) && block.len() < range.len());
            }
        }
    }
}
