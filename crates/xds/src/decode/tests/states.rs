//! What resources come to together.

use std::sync::Arc;
use std::time::Duration;

use prost_types::Duration as Seconds;
use route::{ClusterSpec, TcpOptions};

use super::*;
use crate::decode::TableError;
use crate::proto::{
    CircuitBreakers, CommonLbConfig, ConfigSource, EdsClusterConfig, Empty, LbEndpoint, Locality,
    LocalityLbEndpoints, OutlierDetection, Percent, TcpKeepalive, Thresholds,
    UpstreamConnectionOptions, WireGuardRoute, ZoneAwareLbConfig,
};

fn assigned(name: &str, service: &str) -> Cluster {
    Cluster {
        discovery_type: 3,
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ConfigSource::ads()),
            service_name: service.to_owned(),
        }),
        ..cluster(name)
    }
}

/// The cluster that a message and its endpoints come to.
fn spec(message: Cluster) -> ClusterSpec {
    let mut state = State::default();
    state.set("c", right(ResourceType::Cluster, "c", &message));
    table(&state).spec.clusters.remove(0)
}

#[test]
fn assignments_are_asked_for_and_waited_for() {
    let mut state = State::default();
    for (name, service) in [("a", ""), ("b", "shared"), ("c", "shared")] {
        state.set(
            name,
            right(ResourceType::Cluster, name, &assigned(name, service)),
        );
    }
    let wanted: Vec<String> = state
        .wanted(ResourceType::ClusterLoadAssignment)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(wanted, ["a", "shared"]);
    let kind = ResourceType::ClusterLoadAssignment;
    assert_eq!(
        state.missing(),
        [(kind, "a".into()), (kind, "shared".into())].into()
    );
    let before = state.clone();
    for name in ["a", "shared"] {
        let locality = LocalityLbEndpoints {
            lb_endpoints: vec![at("10.0.0.1", 443)],
            ..LocalityLbEndpoints::default()
        };
        state.set(name, right(kind, name, &assignment(name, vec![locality])));
    }
    assert!(state.missing().is_empty());
    assert_eq!(before.missing().len(), 2, "a clone is apart");
    let endpoints = |state: &State| {
        let clusters = table(state).spec.clusters;
        clusters
            .iter()
            .map(|one| one.endpoints.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(endpoints(&state), [1, 1, 1]);
    state.remove(kind, "shared");
    assert_eq!(endpoints(&state), [1, 0, 0]);
    assert_eq!(state.missing(), [(kind, "shared".into())].into());
    state.retain(ResourceType::Cluster, |name| name != "a");
    assert_eq!(endpoints(&state), [0, 0]);
    state.remove(ResourceType::Cluster, "b");
    state.remove(ResourceType::Cluster, "b");
    assert_eq!(table(&state).spec.clusters.len(), 1);
}

#[test]
fn cluster_defaults_are_envoys() {
    let spec = spec(cluster("c"));
    assert_eq!(spec.connect_timeout, Duration::from_secs(5));
    assert_eq!(spec.max_connections, 1024);
    assert_eq!(
        (spec.outlier, spec.tcp, spec.send_proxy_protocol),
        (None, None, None)
    );
    assert_eq!(spec.balance, route::Balance::RoundRobin);
    assert!(spec.zone_aware && spec.endpoints.is_empty());
}

#[test]
fn cluster_fields_are_decoded() {
    let keepalive = TcpKeepalive {
        keepalive_time: Some(7200),
        keepalive_interval: Some(75),
        keepalive_probes: None,
    };
    let thresholds = |priority, most| Thresholds {
        priority,
        max_connections: most,
        ..Thresholds::default()
    };
    let spec = spec(Cluster {
        connect_timeout: Some(Seconds {
            seconds: 10,
            nanos: 0,
        }),
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![thresholds(1, Some(7)), thresholds(0, Some(5000))],
        }),
        outlier_detection: Some(OutlierDetection::default()),
        common_lb_config: Some(CommonLbConfig {
            zone_aware: Some(ZoneAwareLbConfig {
                routing_enabled: Some(Percent { value: 0.0 }),
                min_cluster_size: None,
            }),
            ..CommonLbConfig::default()
        }),
        upstream_connection_options: Some(UpstreamConnectionOptions {
            tcp_keepalive: Some(keepalive),
        }),
        ..cluster("c")
    });
    assert_eq!(spec.connect_timeout, Duration::from_secs(10));
    assert_eq!(spec.max_connections, 5000);
    let outlier = spec.outlier.unwrap();
    assert_eq!(outlier.consecutive_connect_failures, 5);
    assert_eq!(outlier.ejection, Duration::from_secs(30));
    assert_eq!(outlier.max_ejected_percent, 10);
    assert!(!spec.zone_aware);
    let tcp = spec.tcp.unwrap();
    let seconds = [tcp.keepalive, tcp.keepalive_interval].map(|time| time.as_secs());
    assert_eq!((seconds, tcp.keepalive_probes), ([7200, 75], 3));
}

#[test]
fn keepalive_goes_over_the_gateways_own_options() {
    let own = TcpOptions {
        user_timeout: Duration::from_secs(30),
        keepalive_probes: 9,
        ..TcpOptions::default()
    };
    let mut state = State::with_tcp(Arc::new(own.clone()));
    let with = |name: &str, time| Cluster {
        upstream_connection_options: Some(UpstreamConnectionOptions {
            tcp_keepalive: Some(TcpKeepalive {
                keepalive_time: time,
                ..TcpKeepalive::default()
            }),
        }),
        ..cluster(name)
    };
    for (name, time) in [
        ("a", Some(10)),
        ("b", Some(10)),
        ("off", Some(0)),
        ("own", None),
    ] {
        state.set(name, right(ResourceType::Cluster, name, &with(name, time)));
    }
    let clusters = table(&state).spec.clusters;
    let options: Vec<&Arc<TcpOptions>> = clusters
        .iter()
        .map(|one| one.tcp.as_ref().unwrap())
        .collect();
    let keepalive = |seconds| TcpOptions {
        keepalive: Duration::from_secs(seconds),
        ..own.clone()
    };
    assert_eq!(**options[0], keepalive(10));
    assert!(Arc::ptr_eq(options[0], options[1]));
    assert_eq!(**options[2], keepalive(0));
    assert_eq!(**options[3], own);
}

#[test]
fn unenforced_outlier_detection_is_off() {
    let with = |outlier| {
        spec(Cluster {
            outlier_detection: Some(outlier),
            ..cluster("c")
        })
        .outlier
    };
    let unenforced = OutlierDetection {
        enforcing_consecutive_5xx: Some(0),
        ..OutlierDetection::default()
    };
    assert_eq!(with(unenforced.clone()), None);
    let local = OutlierDetection {
        split_external_local_origin_errors: true,
        consecutive_5xx: Some(9),
        consecutive_local_origin_failure: Some(2),
        ..unenforced
    };
    assert_eq!(with(local).unwrap().consecutive_connect_failures, 2);
    let never = OutlierDetection {
        consecutive_5xx: Some(0),
        ..OutlierDetection::default()
    };
    assert_eq!(with(never), None);
}

#[test]
fn endpoints_carry_zone_priority_weight_health() {
    let in_zone = |zone: &str, priority, weight, endpoints| LocalityLbEndpoints {
        locality: Some(Locality {
            zone: zone.to_owned(),
        }),
        lb_endpoints: endpoints,
        load_balancing_weight: weight,
        priority,
    };
    let state_of = |status, host| LbEndpoint {
        health_status: status,
        ..at(host, 443)
    };
    let heavy = LbEndpoint {
        load_balancing_weight: Some(3),
        ..at("name.example.", 443)
    };
    let hosts = ["::1", "::2", "::3", "::4", "::5"];
    let statuses = hosts
        .into_iter()
        .zip(1..)
        .map(|(host, status)| state_of(status, host));
    let load_assignment = assignment(
        "c",
        vec![
            in_zone("a", 0, Some(2), vec![heavy, at("10.0.0.2", 443)]),
            in_zone("", 1, Some(1), statuses.collect()),
            in_zone("b", 0, None, vec![at("10.0.0.3", 443)]),
        ],
    );
    let mut message = Cluster {
        discovery_type: 1,
        load_assignment: Some(load_assignment),
        ..cluster("c")
    };
    let told = |spec: ClusterSpec| -> Vec<String> {
        let one = |one: &route::EndpointSpec| {
            let zone = one.zone.as_deref().unwrap_or("-");
            format!(
                "{} {zone} p{} w{} {}",
                one.address, one.priority, one.weight, one.healthy
            )
        };
        spec.endpoints.iter().map(one).collect()
    };
    let wanted = [
        "name.example.:443 a p0 w3 true",
        "10.0.0.2:443 a p0 w1 true",
        "[::1]:443 - p1 w1 true",
        "[::2]:443 - p1 w1 false",
        "[::3]:443 - p1 w1 false",
        "[::4]:443 - p1 w1 false",
        "[::5]:443 - p1 w1 true",
        "10.0.0.3:443 b p0 w1 true",
    ];
    assert_eq!(told(spec(message.clone())), wanted);
    // With weights of localities each endpoint has its part, and one without a weight has none.
    message.common_lb_config = Some(CommonLbConfig {
        locality_weighted: Some(Empty {}),
        ..CommonLbConfig::default()
    });
    let spec = spec(message);
    assert!(!spec.zone_aware);
    let weights: Vec<u32> = spec.endpoints.iter().map(|one| one.weight).collect();
    assert_eq!(weights, [1500, 500, 200, 200, 200, 200, 200]);
}

#[test]
fn foreign_listener_is_reported_and_parts_merge() {
    let by_name = |name: &str| tcp_chain(names(&[name]), "c");
    let listeners = [
        listener("tls|one", 1, vec![by_name("a")]),
        listener("tls|two|three", 1, vec![by_name("b"), by_name("a")]),
        listener("elsewhere", 1, vec![by_name("z")]),
        listener("vpn", 1, vec![by_name("y")]),
        listener("node|one", 1, vec![by_name("x")]),
    ];
    let table = table(&state(&["c"], &listeners));
    let wanted = [
        "ServerNames([\"a\"]) -> c [0]",
        "ServerNames([\"b\"]) -> c [0]",
    ];
    assert_eq!(listed(&table), wanted);
    let wanted = [
        "elsewhere: no listener of this gateway has its name or port",
        "node|one: filter_chains[0]: a node listener knows no server names",
        "vpn: filter_chains[0]: a connect listener takes only HTTP",
    ];
    assert_eq!(reports(&table), wanted);
}

#[test]
fn contradicting_parts_make_no_table() {
    let listeners = [
        listener("tls|one", 1, vec![tcp_chain(names(&["a", "b"]), "c")]),
        listener("tls|two", 1, vec![tcp_chain(names(&["B"]), "d")]),
    ];
    let error = state(&["c", "d"], &listeners).table(&own()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "resources \"tls|one\" and \"tls|two\" both have a route for server name \"b\""
    );
}

#[test]
fn connect_attempts_use_the_route_maximum() {
    let chain = |name: &str, attempts| FilterChain {
        filters: vec![filter(
            kind::TCP_PROXY,
            &TcpProxy {
                max_connect_attempts: attempts,
                ..tcp_proxy("c")
            },
        )],
        ..tcp_chain(names(&[name]), "c")
    };
    let retries = |chains| {
        let table = table(&state(&["c"], &[listener("tls", 1, chains)]));
        table.spec.clusters[0].connect_retries
    };
    assert_eq!(retries(vec![chain("a", None)]), 2);
    assert_eq!(retries(vec![chain("a", Some(1))]), 0);
    assert_eq!(
        retries(vec![
            chain("a", Some(5)),
            chain("b", Some(1)),
            chain("d", None)
        ]),
        4
    );
}

#[test]
fn wireguard_routes_need_a_listener_of_theirs() {
    let message = |name: &str, key: u8, id| WireGuardRoute {
        name: name.to_owned(),
        public_keys: vec![vec![key; 32]],
        route_id: id,
        cluster: "c".to_owned(),
        allow_sources: vec![range("10.0.0.0", 8)],
        ..WireGuardRoute::default()
    };
    let mut state = state(&["c"], &[]);
    let kind = ResourceType::WireGuardRoute;
    for (name, key, id) in [("g/1", 1, 1), ("g/2", 2, 0)] {
        state.set(name, right(kind, name, &message(name, key, id)));
    }
    let unheard = table(&state);
    assert!(unheard.spec.routes.is_empty());
    let wanted = "g/1: no listener of this gateway takes WireGuard, for which there are 2 routes";
    assert_eq!(reports(&unheard), [wanted]);

    let mut own = own().to_vec();
    own.push(OwnListener {
        name: "wireguard".to_owned(),
        port: 51820,
        protocol: OwnProtocol::WireGuard,
    });
    let heard = state.table(&own).unwrap();
    assert_eq!(heard.reports, []);
    let snapshot = route::Snapshot::build(heard.spec, 1, None).unwrap();
    let route = snapshot.by_route_id(1).unwrap();
    assert!(route.serves(3) && !route.serves(0) && !route.allows("11.0.0.1".parse().unwrap()));
    assert_eq!(snapshot.wireguard_routes().count(), 2);

    state.set("g/3", right(kind, "g/3", &message("g/3", 2, 0)));
    let same = state.table(&own).unwrap();
    assert_eq!(same.spec.routes.len(), 2, "the same again is one route");
    state.set("g/3", right(kind, "g/3", &message("g/3", 2, 9)));
    let conflict = state.table(&own).unwrap_err().to_string();
    let wanted = r#""g/2" and "g/3" both have a route for WireGuard public key AgICAg…"#;
    assert!(conflict.ends_with(wanted), "{conflict}");
}

#[test]
fn too_many_listeners_are_refused() {
    let one = own()[0].clone();
    let error = State::default().table(&vec![one; 65]).unwrap_err();
    assert_eq!(error, TableError::TooManyListeners);
}
