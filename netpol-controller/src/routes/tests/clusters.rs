//! Clusters: endpoints and how they are used.

use std::time::Duration;

use route::{Balance, ClusterSpec, ProxyVersion};
use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::{GatewayEntry, Group, group};
use crate::state::{Kind, TargetPort};

fn found(settings: &[GatewayEntry], objects: &[Value]) -> Group {
    let mut all = passthrough(SHOOT, &["api.example.com"]).to_vec();
    all.extend(objects.iter().cloned());
    group(&state(&all), settings, SHOOT)
}

fn cluster(objects: &[Value]) -> ClusterSpec {
    let mut group = found(&one(), objects);
    assert_eq!(group.gateways[0].clusters.len(), 1);
    group.gateways[0].clusters.remove(0)
}

fn key() -> String {
    format!("{SHOOT}/kube-apiserver")
}

/// `address@zone` of a cluster's endpoints.
fn addresses(cluster: &ClusterSpec) -> Vec<String> {
    let all = cluster.endpoints.iter();
    all.map(|one| format!("{}@{}", one.address, one.zone.as_deref().unwrap_or("-")))
        .collect()
}

fn with(conditions: &[(&str, Value)]) -> Value {
    let mut slice = slice(&key(), "kube-apiserver:443", &[]);
    let endpoints = conditions
        .iter()
        .map(|(ip, conditions)| json!({"addresses": [ip], "conditions": conditions}));
    slice["endpoints"] = endpoints.collect();
    slice
}

#[test]
fn endpoints_are_those_of_the_services_port() {
    let named = service(&key(), &["metrics:80", "kube-apiserver:443:6443"]);
    let mut slice = slice(&key(), "kube-apiserver:6443", &["10.0.0.2@b", "10.0.0.1@a"]);
    slice["ports"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "metrics", "port": 80}));
    let cluster = cluster(&[named, slice]);
    assert_eq!(cluster.name, API);
    assert_eq!(addresses(&cluster), ["10.0.0.1:6443@a", "10.0.0.2:6443@b"]);
}

#[test]
fn target_port_is_routed_by_number_or_name() {
    let mut named = service(&key(), &["kube-apiserver:443"]);
    named["spec"]["ports"][0]["targetPort"] = json!("https");
    let routed = found(&one(), &[named]).routed;
    let targets: Vec<_> = routed
        .into_values()
        .flatten()
        .map(|one| one.target)
        .collect();
    assert_eq!(targets, [TargetPort::Name("https".to_owned())]);
}

#[test]
fn terminating_endpoints_are_the_last_resort() {
    let ready = json!({"ready": true, "serving": true, "terminating": false});
    let ending = json!({"ready": false, "serving": true, "terminating": true});
    let not = json!({"ready": false, "serving": false, "terminating": false});
    for (conditions, expected) in [
        (
            vec![("10.0.0.1", ready), ("10.0.0.2", ending.clone())],
            vec!["10.0.0.1:443@-"],
        ),
        (
            vec![("10.0.0.1", not.clone()), ("10.0.0.2", ending)],
            vec!["10.0.0.2:443@-"],
        ),
        (vec![("10.0.0.1", not)], vec![]),
        (vec![("10.0.0.1", json!({}))], vec!["10.0.0.1:443@-"]),
    ] {
        let cluster = cluster(&[api_server(SHOOT), with(&conditions)]);
        assert_eq!(addresses(&cluster), expected, "{conditions:?}");
    }
}

#[test]
fn dual_stack_uses_the_first_family() {
    let mut v6 = slice(&key(), "kube-apiserver:443", &["fd00::1"]);
    v6["metadata"]["name"] = json!("kube-apiserver-v6");
    let v4 = slice(&key(), "kube-apiserver:443", &["10.0.0.1"]);
    let mut service = api_server(SHOOT);
    let both = [service.clone(), v4, v6.clone()];
    assert_eq!(addresses(&cluster(&both)), ["10.0.0.1:443@a"]);
    assert_eq!(
        addresses(&cluster(&[service.clone(), v6])),
        ["[fd00::1]:443@a"]
    );
    service["spec"]["clusterIP"] = json!("None");
    let headless = [service, both[1].clone(), both[2].clone()];
    assert_eq!(
        addresses(&cluster(&headless)),
        ["10.0.0.1:443@a", "[fd00::1]:443@a"]
    );
}

#[test]
fn external_name_leads_nowhere() {
    for name in ["api.example.org", "127.0.0.1", "localhost", "192.0.2.1"] {
        let mut service = api_server(SHOOT);
        service["spec"]["type"] = json!("ExternalName");
        service["spec"]["externalName"] = json!(name);
        let found = found(&one(), &[service]);
        assert_eq!(found.gateways[0].clusters[0].endpoints, [], "{name}");
        let problems = count(&found, Reason::RouteNotTranslated, Kind::VirtualService);
        assert_eq!((problems, found.routed.len()), (1, 0), "{name}");
    }
}

#[test]
fn missing_service_empties_cluster_with_event() {
    let other = service(&key(), &["other:80"]);
    for objects in [&[][..], &[other]] {
        let found = found(&one(), objects);
        assert_eq!(found.gateways[0].clusters[0].endpoints, []);
        assert_eq!(
            count(&found, Reason::RouteNotTranslated, Kind::VirtualService),
            1
        );
        assert!(found.routed.is_empty());
        assert!(of(&found, 0).contains(&format!("names api.example.com -> {API}")));
    }
}

fn ruled(policy: Value) -> Group {
    found(&one(), &[api_server(SHOOT), rule(&key(), policy)])
}

#[test]
fn the_rule_says_how_a_cluster_is_used() {
    let found = ruled(json!({
        "connectionPool": {"tcp": {
            "maxConnections": 5000,
            "connectTimeout": "10s",
            "idleTimeout": "1h",
            "tcpKeepalive": {"probes": 9},
        }},
        "loadBalancer": {
            "consistentHash": {"useSourceIp": true},
            "localityLbSetting": {"enabled": false},
        },
        "outlierDetection": {
            "consecutive5xxErrors": 3,
            "baseEjectionTime": "60s",
            "maxEjectionPercent": 50,
        },
        "proxyProtocol": {"version": "V2"},
    }));
    let own = &found.gateways[0].clusters[0];
    assert_eq!(own.max_connections, 5000);
    assert_eq!(own.connect_timeout, Duration::from_secs(10));
    assert_eq!(own.tcp.as_ref().unwrap().keepalive_probes, 9);
    assert_eq!(own.balance, Balance::Maglev);
    assert!(!own.zone_aware);
    let outlier = own.outlier.as_ref().unwrap();
    assert_eq!(outlier.consecutive_connect_failures, 3);
    assert_eq!(outlier.ejection, Duration::from_secs(60));
    assert_eq!(outlier.max_ejected_percent, 50);
    assert_eq!(own.send_proxy_protocol, Some(ProxyVersion::V2));
    let names = found.gateways[0]
        .routes
        .iter()
        .find(|one| one.source.kind == Kind::VirtualService);
    assert_eq!(
        names.unwrap().spec.idle_timeout,
        Some(Duration::from_secs(3600))
    );
    assert_eq!(problems(&found), [""; 0]);
}

#[test]
fn balancing_is_translated() {
    for (simple, balance, reported) in [
        ("LEAST_CONN", Balance::LeastRequest, 0),
        ("LEAST_REQUEST", Balance::LeastRequest, 0),
        ("ROUND_ROBIN", Balance::RoundRobin, 0),
        ("RANDOM", Balance::Random, 0),
        ("UNSPECIFIED", Balance::LeastRequest, 0),
        ("PASSTHROUGH", Balance::LeastRequest, 1),
    ] {
        let found = ruled(json!({"loadBalancer": {"simple": simple}}));
        assert_eq!(found.gateways[0].clusters[0].balance, balance, "{simple}");
        assert_eq!(
            count(&found, Reason::RouteAdapted, Kind::DestinationRule),
            reported,
            "{simple}"
        );
    }
}

#[test]
fn unsupported_rule_settings_are_reported() {
    for policy in [
        json!({"tls": {"mode": "SIMPLE"}}),
        json!({"tls": {"mode": "MUTUAL"}}),
        json!({"loadBalancer": {"consistentHash": {"httpHeaderName": "x"}}}),
        json!({"connectionPool": {"tcp": {"connectTimeout": "soon"}}}),
        json!({"connectionPool": {"tcp": {"maxConnections": -1}}}),
    ] {
        let found = ruled(policy.clone());
        assert_eq!(
            count(&found, Reason::RouteAdapted, Kind::DestinationRule),
            1,
            "{policy}"
        );
        let default = ClusterSpec::new(API);
        assert_eq!(found.gateways[0].clusters[0], default, "{policy}");
    }
}

#[test]
fn settings_beyond_what_gateways_take_are_adapted() {
    let keepalive = |own: Value| json!({"connectionPool": {"tcp": {"tcpKeepalive": own}}});
    for policy in [
        keepalive(json!({"time": "10h"})),
        keepalive(json!({"interval": "32768s"})),
        keepalive(json!({"probes": 128})),
        json!({"outlierDetection": {"baseEjectionTime": "0s"}}),
    ] {
        let found = ruled(policy.clone());
        assert_eq!(
            count(&found, Reason::RouteAdapted, Kind::DestinationRule),
            1,
            "{policy}"
        );
        let own = &found.gateways[0].clusters[0];
        for resource in xds::cluster(own) {
            let read = xds::decode(resource.kind, &resource.name, &resource.body);
            assert!(read.is_ok(), "{policy}: {read:?}");
        }
        let longest = Duration::from_secs(32_767);
        let taken = own.tcp.as_ref().is_none_or(|tcp| {
            tcp.keepalive <= longest
                && tcp.keepalive_interval <= longest
                && tcp.keepalive_probes <= 127
        });
        assert!(taken, "{policy}: {:?}", own.tcp);
    }
    let longest = ruled(keepalive(
        json!({"time": "32767s", "interval": "32767s", "probes": 127}),
    ));
    assert_eq!(problems(&longest), [""; 0]);
}

#[test]
fn settings_of_the_port_stand_alone() {
    let tcp = |most: u32| json!({"tcp": {"maxConnections": most}});
    let found = ruled(json!({
        "connectionPool": tcp(1),
        "loadBalancer": {"simple": "RANDOM"},
        "portLevelSettings": [
            {"port": {"number": 80}, "connectionPool": tcp(2)},
            {"port": {"number": 443}, "connectionPool": tcp(3)},
        ],
    }));
    let own = &found.gateways[0].clusters[0];
    assert_eq!(
        (own.max_connections, own.balance),
        (3, Balance::LeastRequest)
    );
}

#[test]
fn outlier_detection_can_be_turned_off() {
    let found = ruled(json!({"outlierDetection": {"consecutive5xxErrors": 0}}));
    assert_eq!(found.gateways[0].clusters[0].outlier, None);
}

#[test]
fn the_nearest_rule_counts() {
    let most = |key: &str, host: &str, most: u32| {
        let mut own = rule(
            key,
            json!({"connectionPool": {"tcp": {"maxConnections": most}}}),
        );
        own["spec"]["host"] = json!(host);
        own
    };
    let host = "kube-apiserver.shoot--foo--bar.svc.cluster.local";
    let wild = "*.shoot--foo--bar.svc.cluster.local";
    let mut all = vec![api_server(SHOOT)];
    for (rule, expected) in [
        (most("elsewhere/x", host, 1), 0),
        (most(&format!("{SHOOT}/wild"), wild, 2), 2),
        (most("istio-system/x", host, 3), 3),
        (most(&format!("{SHOOT}/x"), host, 4), 4),
        (most(&format!("{SHOOT}/a-younger"), "kube-apiserver", 5), 4),
        (most("istio-ingress/x", host, 6), 6),
    ] {
        let mut rule = rule;
        if expected == 4 && rule["metadata"]["name"] == "a-younger" {
            rule["metadata"]["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
        }
        all.push(rule);
        assert_eq!(
            found(&one(), &all).gateways[0].clusters[0].max_connections,
            expected
        );
    }
}

#[test]
fn zones_count_unless_a_rule_says_otherwise() {
    assert!(cluster(&[api_server(SHOOT)]).zone_aware);
    let off = json!({"loadBalancer": {"localityLbSetting": {"enabled": false}}});
    assert!(!ruled(off).gateways[0].clusters[0].zone_aware);
}

#[test]
fn gateway_is_sent_its_own_pods_with_zones() {
    let key = "istio-ingress/istio-ingressgateway";
    let own = service(key, &["tcp:443:9443"]);
    let mut slice = slice(key, "tcp:9443", &["10.0.0.2@b", "10.0.0.1@a", "fd00::1@a"]);
    // A pod is to find itself before it is ready.
    slice["endpoints"][0]["conditions"] = json!({"ready": false, "serving": false});
    let mut entries = one();
    entries.push(entry("elsewhere", "istio-ingress--b", &[("istio", "b")]));
    let state = state(&[own, slice]);
    let group = group(&state, &entries, "istio-ingress");
    let [mine, elsewhere] = &group.gateways[..] else {
        panic!("{group:?}");
    };
    let names: Vec<_> = mine.clusters.iter().map(|one| &one.name).collect();
    assert_eq!(names, ["rhizome-gateway"]);
    let expected = ["10.0.0.1:443@a", "10.0.0.2:443@b", "[fd00::1]:443@a"];
    assert_eq!(addresses(&mine.clusters[0]), expected);
    assert!(elsewhere.clusters.is_empty() && group.routed.is_empty());
}
