//! The cases that the documentation of NetworkPolicy explains, one by one.

use anyhow::Result;
use serde_json::{Value, json};
use testkit::netpol::{Blocks, Cluster, End, Labels, NamedPort, Pod, Protocol};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn pod(namespace: &str, name: &str, ip: &str, own: &[(&str, &str)]) -> Pod {
    Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: labels(own),
        ip: ip.parse().unwrap(),
        ports: vec![
            named("web", Protocol::Tcp, 8080),
            named("dns", Protocol::Udp, 5353),
            named("dns-tcp", Protocol::Tcp, 5353),
        ],
    }
}

fn named(name: &str, protocol: Protocol, number: u16) -> NamedPort {
    NamedPort {
        name: name.to_owned(),
        protocol,
        number,
    }
}

fn policy(spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": "test" },
        "spec": spec,
    })
}

fn cluster_of(policies: &[Value], blocks: Blocks) -> Result<Cluster> {
    let namespaces = [
        ("default", labels(&[("project", "mine")])),
        ("other", labels(&[("project", "myproject"), ("tier", "b")])),
        ("third", Labels::new()),
    ];
    let namespaces = namespaces.map(|(name, own)| (name.to_owned(), own));
    Cluster::new(namespaces.into(), policies, blocks)
}

fn cluster(spec: Value) -> Cluster {
    cluster_of(&[policy(spec)], Blocks::LeaveOutPods).unwrap()
}

/// Tells whether TCP 80 gets through.
fn web(cluster: &Cluster, from: &Pod, to: &Pod) -> bool {
    cluster.allows(End::Pod(from), End::Pod(to), Protocol::Tcp, 80)
}

fn outside(ip: &str) -> End<'static> {
    End::Address(ip.parse().unwrap())
}

fn db() -> Pod {
    pod("default", "db", "10.9.0.1", &[("role", "db")])
}

fn frontend(namespace: &str) -> Pod {
    pod(namespace, "frontend", "10.9.0.2", &[("role", "frontend")])
}

fn plain(namespace: &str) -> Pod {
    pod(namespace, "plain", "10.9.0.3", &[])
}

#[test]
fn without_policies_everything_is_open() {
    let cluster = cluster_of(&[], Blocks::LeaveOutPods).unwrap();
    assert!(web(&cluster, &plain("third"), &db()));
    let out = End::Pod(&db());
    assert!(cluster.allows(outside("192.0.2.1"), out, Protocol::Sctp, 1));
    assert!(cluster.allows(out, outside("192.0.2.1"), Protocol::Udp, 1));
}

#[test]
fn policy_type_isolates_direction() {
    for (spec, enters, leaves) in [
        (
            json!({ "podSelector": {}, "policyTypes": ["Ingress"] }),
            false,
            true,
        ),
        (
            json!({ "podSelector": {}, "policyTypes": ["Egress"] }),
            true,
            false,
        ),
        (
            json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
            false,
            false,
        ),
        // Without types: ingress, and egress where there are rules for it.
        (json!({ "podSelector": {} }), false, true),
        (
            json!({ "podSelector": {}, "egress": [{ "ports": [{ "port": 1 }] }] }),
            false,
            false,
        ),
        // An empty rule allows everything.
        (
            json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}] }),
            true,
            true,
        ),
        (
            json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] }),
            true,
            true,
        ),
        // Empty lists are as absent ones.
        (
            json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [], "ports": [] }] }),
            true,
            true,
        ),
        (
            json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [] }),
            false,
            true,
        ),
        // Rules of a direction that the types leave out count for nothing.
        (
            json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] }),
            true,
            false,
        ),
        // Pods that are not selected stay open.
        (
            json!({ "podSelector": { "matchLabels": { "role": "x" } }, "policyTypes": ["Ingress", "Egress"] }),
            true,
            true,
        ),
    ] {
        let cluster = cluster(spec.clone());
        assert_eq!(web(&cluster, &plain("other"), &db()), enters, "{spec}");
        assert_eq!(web(&cluster, &db(), &plain("other")), leaves, "{spec}");
        let all = web(&cluster, &plain("default"), &db());
        assert_eq!(all, enters && leaves, "{spec}");
        assert!(web(&cluster, &plain("other"), &frontend("third")));
    }
}

#[test]
fn nothing_keeps_a_pod_from_itself() {
    let cluster = cluster(json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
    assert!(web(&cluster, &db(), &db()));
    assert!(!web(&cluster, &db(), &frontend("default")));
}

/// The documentation's first example.
fn documented() -> Value {
    json!({
        "podSelector": { "matchLabels": { "role": "db" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{
            "from": [
                { "ipBlock": { "cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"] } },
                { "namespaceSelector": { "matchLabels": { "project": "myproject" } } },
                { "podSelector": { "matchLabels": { "role": "frontend" } } },
            ],
            "ports": [{ "protocol": "TCP", "port": 6379 }],
        }],
        "egress": [{
            "to": [{ "ipBlock": { "cidr": "10.0.0.0/24" } }],
            "ports": [{ "protocol": "TCP", "port": 5978 }],
        }],
    })
}

#[test]
fn documented_example_means_what_its_text_says() {
    let cluster = cluster(documented());
    let db = db();
    let to_db = |from: End<'_>, protocol, port| cluster.allows(from, End::Pod(&db), protocol, port);
    for (from, expected) in [
        (&frontend("default"), true),
        (&plain("default"), false),
        (&plain("other"), true),
        (&frontend("other"), true),
        (&frontend("third"), false),
    ] {
        let end = End::Pod(from);
        assert_eq!(to_db(end, Protocol::Tcp, 6379), expected, "{end}");
        assert!(!to_db(end, Protocol::Tcp, 6380) && !to_db(end, Protocol::Udp, 6379));
    }
    for (ip, expected) in [
        ("172.17.0.0", true),
        ("172.17.0.255", true),
        ("172.17.1.0", false),
        ("172.17.1.255", false),
        ("172.17.2.0", true),
        ("172.17.255.255", true),
        ("172.18.0.0", false),
        ("2001:db8::1", false),
    ] {
        assert_eq!(to_db(outside(ip), Protocol::Tcp, 6379), expected, "{ip}");
    }
    let from_db = |ip, port| cluster.allows(End::Pod(&db), outside(ip), Protocol::Tcp, port);
    assert!(from_db("10.0.0.7", 5978));
    assert!(!from_db("10.0.0.7", 5979) && !from_db("10.0.1.7", 5978));
}

#[test]
fn selectors_in_one_peer_both_match() {
    let namespace = json!({ "matchLabels": { "project": "myproject" } });
    let pods = json!({ "matchLabels": { "role": "frontend" } });
    let spec = |from: Value| json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": from }] });
    let both = cluster(spec(
        json!([{ "namespaceSelector": namespace, "podSelector": pods }]),
    ));
    let either = cluster(spec(
        json!([{ "namespaceSelector": namespace }, { "podSelector": pods }]),
    ));
    for (from, by_both, by_either) in [
        (frontend("other"), true, true),
        (plain("other"), false, true),
        (frontend("default"), false, true),
        (frontend("third"), false, false),
    ] {
        let title = End::Pod(&from).to_string();
        assert_eq!(web(&both, &from, &db()), by_both, "{title}");
        assert_eq!(web(&either, &from, &db()), by_either, "{title}");
    }
}

#[test]
fn empty_selectors_select_all_they_range_over() {
    let all_pods = json!({ "podSelector": {}, "namespaceSelector": {} });
    for (peer, default, other, outer) in [
        (json!({ "podSelector": {} }), true, false, false),
        (json!({ "namespaceSelector": {} }), true, true, false),
        (all_pods, true, true, false),
        (
            json!({ "ipBlock": { "cidr": "0.0.0.0/0" } }),
            false,
            false,
            true,
        ),
    ] {
        let spec = json!({
            "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [peer] }],
        });
        let cluster = cluster(spec);
        assert_eq!(web(&cluster, &plain("default"), &db()), default, "{peer}");
        assert_eq!(web(&cluster, &plain("third"), &db()), other, "{peer}");
        let from = outside("192.0.2.1");
        let found = cluster.allows(from, End::Pod(&db()), Protocol::Tcp, 80);
        assert_eq!(found, outer, "{peer}");
    }
}

#[test]
fn operators_select_as_documented() {
    let one = |operator: &str, values: Value| json!({ "key": "tier", "operator": operator, "values": values });
    for (condition, other, third) in [
        (one("In", json!(["a", "b"])), true, false),
        (one("In", json!(["a"])), false, false),
        (one("NotIn", json!(["b"])), false, true),
        (one("NotIn", json!(["a"])), true, true),
        (json!({ "key": "tier", "operator": "Exists" }), true, false),
        (
            json!({ "key": "tier", "operator": "DoesNotExist" }),
            false,
            true,
        ),
    ] {
        let from = json!([{ "namespaceSelector": { "matchExpressions": [condition] } }]);
        let spec =
            json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": from }] });
        let cluster = cluster(spec);
        assert_eq!(web(&cluster, &plain("other"), &db()), other, "{condition}");
        assert_eq!(web(&cluster, &plain("third"), &db()), third, "{condition}");
    }
}

#[test]
fn ports_match_by_number_range_or_name() {
    use Protocol::{Sctp, Tcp, Udp};
    for (port, reached, unreached) in [
        (
            json!({ "port": 80 }),
            &[(Tcp, 80)][..],
            &[(Udp, 80), (Tcp, 81)][..],
        ),
        (
            json!({ "protocol": "SCTP", "port": 80 }),
            &[(Sctp, 80)],
            &[(Tcp, 80)],
        ),
        (
            json!({ "protocol": "UDP" }),
            &[(Udp, 1), (Udp, 65535)],
            &[(Tcp, 1)],
        ),
        (json!({}), &[(Tcp, 1), (Tcp, 65535)], &[(Udp, 1), (Sctp, 1)]),
        (
            json!({ "protocol": "TCP", "port": 32000, "endPort": 32768 }),
            &[(Tcp, 32000), (Tcp, 32500), (Tcp, 32768)],
            &[(Tcp, 31999), (Tcp, 32769), (Udp, 32000)],
        ),
        // Names are of a protocol, and of the pod that is connected to.
        (
            json!({ "protocol": "TCP", "port": "web" }),
            &[(Tcp, 8080)],
            &[(Udp, 8080), (Tcp, 80)],
        ),
        (
            json!({ "protocol": "UDP", "port": "dns" }),
            &[(Udp, 5353)],
            &[(Tcp, 5353)],
        ),
        (
            json!({ "protocol": "TCP", "port": "dns" }),
            &[],
            &[(Udp, 5353), (Tcp, 5353)],
        ),
    ] {
        let rule = json!([{ "ports": [port] }]);
        let into =
            cluster(json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": rule }));
        let out = cluster(json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": rule }));
        let check = |ports: &[(Protocol, u16)], expected| {
            for (protocol, number) in ports {
                let (client, server) = (plain("other"), db());
                let (from, to) = (End::Pod(&client), End::Pod(&server));
                let found = into.allows(from, to, *protocol, *number);
                assert_eq!(found, expected, "in {port} {protocol:?} {number}");
                let found = out.allows(to, from, *protocol, *number);
                assert_eq!(found, expected, "out {port} {protocol:?} {number}");
            }
        };
        check(reached, true);
        check(unreached, false);
    }
}

#[test]
fn named_ports_are_of_the_server() {
    let rule = json!([{ "ports": [{ "port": "web" }] }]);
    let cluster = cluster(json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": rule }));
    let mut server = plain("other");
    server.ports = vec![named("web", Protocol::Tcp, 9090)];
    let client = db();
    let reaches = |to, port| cluster.allows(End::Pod(&client), to, Protocol::Tcp, port);
    assert!(reaches(End::Pod(&server), 9090) && !reaches(End::Pod(&server), 8080));
    assert!(!reaches(outside("192.0.2.1"), 8080));
}

#[test]
fn policies_add_up_within_namespace() {
    let on_port = |namespace: &str, name: &str, port: u16| {
        json!({
            "metadata": { "namespace": namespace, "name": name },
            "spec": {
                "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "ports": [{ "port": port }] }],
            },
        })
    };
    let policies = [
        on_port("default", "a", 1),
        on_port("default", "b", 2),
        on_port("third", "a", 3),
    ];
    let cluster = cluster_of(&policies, Blocks::LeaveOutPods).unwrap();
    let (client, db) = (plain("other"), db());
    let verdict = |port| cluster.connection(End::Pod(&client), End::Pod(&db), Protocol::Tcp, port);
    assert!(verdict(1).allowed() && verdict(2).allowed() && !verdict(3).allowed());
    assert_eq!(verdict(2).ingress.allowing, ["default/b"]);
    assert_eq!(verdict(2).ingress.isolating, ["default/a", "default/b"]);
    assert_eq!(
        verdict(3).to_string(),
        "egress not isolated; ingress denied by default/a, default/b"
    );
}

#[test]
fn both_ends_must_allow() {
    let denied = json!({
        "metadata": { "namespace": "other", "name": "deny" },
        "spec": { "podSelector": {}, "policyTypes": ["Egress"] },
    });
    let open = policy(json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}] }));
    let cluster = cluster_of(&[denied, open], Blocks::LeaveOutPods).unwrap();
    assert!(!web(&cluster, &plain("other"), &db()));
    assert!(web(&cluster, &plain("third"), &db()));
}

#[test]
fn blocks_contain_what_begins_like_them() {
    for (cidr, ip, expected) in [
        ("10.0.0.0/8", "10.255.255.255", true),
        ("10.0.0.0/8", "11.0.0.0", false),
        ("0.0.0.0/0", "203.0.113.1", true),
        ("0.0.0.0/0", "::1", false),
        ("::/0", "2001:db8::1", true),
        ("::/0", "10.0.0.1", false),
        ("192.0.2.7/32", "192.0.2.7", true),
        ("192.0.2.7/32", "192.0.2.6", false),
        ("fc00::/7", "fdff::", true),
        ("fc00::/7", "fe00::", false),
    ] {
        let block = json!({ "ipBlock": { "cidr": cidr } });
        let cluster = cluster(json!({ "podSelector": {}, "ingress": [{ "from": [block] }] }));
        let found = cluster.allows(outside(ip), End::Pod(&db()), Protocol::Tcp, 80);
        assert_eq!(found, expected, "{cidr} {ip}");
    }
}

#[test]
fn blocks_count_for_pods_where_that_is_said() {
    let block = json!({ "ipBlock": { "cidr": "10.9.0.0/16", "except": ["10.9.0.2/32"] } });
    let spec =
        json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [block] }] });
    for (blocks, expected) in [(Blocks::LeaveOutPods, false), (Blocks::MatchPods, true)] {
        let cluster = cluster_of(&[policy(spec.clone())], blocks).unwrap();
        assert_eq!(web(&cluster, &plain("other"), &db()), expected);
        assert!(!web(&cluster, &frontend("other"), &db()));
    }
}

#[test]
fn invalid_policy_is_refused() {
    let from = |peer: Value| json!({ "podSelector": {}, "ingress": [{ "from": [peer] }] });
    let port = |port: Value| json!({ "podSelector": {}, "ingress": [{ "ports": [port] }] });
    let select = |selector: Value| json!({ "podSelector": selector });
    let long = "a".repeat(64);
    for spec in [
        from(json!({})),
        from(json!({ "podSelector": {}, "ipBlock": { "cidr": "10.0.0.0/8" } })),
        from(json!({ "ipBlock": { "cidr": "10.0.0.0" } })),
        from(json!({ "ipBlock": { "cidr": "10.0.0.0/33" } })),
        from(json!({ "ipBlock": { "cidr": "10.0.0.1/8" } })),
        from(json!({ "ipBlock": { "cidr": "::/129" } })),
        from(json!({ "ipBlock": { "cidr": "a/8" } })),
        from(json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"] } })),
        from(json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"] } })),
        from(json!({ "ipBlock": { "cidr": "::/0", "except": ["10.0.0.0/8"] } })),
        from(json!({ "ipblock": { "cidr": "10.0.0.0/8" } })),
        port(json!({ "port": 0 })),
        port(json!({ "port": 65536 })),
        port(json!({ "port": "10250" })),
        port(json!({ "port": "a-name-too-long-for-one" })),
        port(json!({ "port": "Web" })),
        port(json!({ "port": 2, "endPort": 1 })),
        port(json!({ "port": "web", "endPort": 9000 })),
        port(json!({ "endPort": 9000 })),
        port(json!({ "protocol": "tcp", "port": 1 })),
        select(json!({ "matchLabels": { long.clone(): "x" } })),
        select(json!({ "matchLabels": { "a": long } })),
        select(json!({ "matchLabels": { "A.b/c": "x" } })),
        select(json!({ "matchExpressions": [{ "key": "a", "operator": "In" }] })),
        select(
            json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "values": ["x"] }] }),
        ),
        select(json!({ "matchExpressions": [{ "key": "a", "operator": "in", "values": ["x"] }] })),
        json!({ "podSelector": {}, "policyTypes": ["ingress"] }),
        json!({ "podSelector": {}, "to": [] }),
    ] {
        let refused = cluster_of(&[policy(spec.clone())], Blocks::LeaveOutPods);
        assert!(refused.is_err(), "{spec}");
    }
    let fine = policy(json!({ "podSelector": {} }));
    for (key, value) in [
        ("name", "From_World"),
        ("name", ""),
        ("namespace", "absent"),
    ] {
        let mut wrong = fine.clone();
        wrong["metadata"][key] = value.into();
        assert!(
            cluster_of(&[wrong], Blocks::LeaveOutPods).is_err(),
            "{key} {value}"
        );
    }
    let twice = cluster_of(&[fine.clone(), fine], Blocks::LeaveOutPods);
    assert!(twice.is_err());
}
