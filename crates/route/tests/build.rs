//! What building refuses, and what it takes over from the snapshot before.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use route::{
    Balance, BuildErrors, Cluster, ClusterSpec, ConnectFailure, EndpointAddress, EndpointSpec,
    EndpointState, OutlierParams, PickContext, ProxyVersion, RouteMatch, RouteSpec, Snapshot,
    TableSpec, TcpOptions,
};

#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do to count from"
)]
fn start() -> Instant {
    Instant::now()
}

fn endpoint(address: &str) -> EndpointSpec {
    EndpointSpec::new(address.parse().unwrap())
}

fn cluster(name: &str, endpoints: &[&str]) -> ClusterSpec {
    let endpoints = endpoints.iter().map(|address| endpoint(address)).collect();
    ClusterSpec {
        endpoints,
        ..ClusterSpec::new(name)
    }
}

fn named(name: &str, cluster: &str) -> RouteSpec {
    RouteSpec::new(RouteMatch::ServerNames(vec![name.to_owned()]), cluster)
}

fn table(clusters: Vec<ClusterSpec>, routes: Vec<RouteSpec>) -> TableSpec {
    TableSpec { clusters, routes }
}

fn refused(clusters: Vec<ClusterSpec>, routes: Vec<RouteSpec>) -> BuildErrors {
    Snapshot::build(table(clusters, routes), 1, None).unwrap_err()
}

#[test]
fn each_fault_of_a_cluster_names_its_offender() {
    let outlier = |params: OutlierParams| ClusterSpec {
        outlier: Some(params),
        ..cluster("c", &[])
    };
    let with = |spec: EndpointSpec| ClusterSpec {
        endpoints: vec![spec],
        ..cluster("c", &[])
    };
    let host = |name: &str, port| EndpointAddress::Host {
        name: name.to_owned(),
        port,
    };
    let cases = [
        (cluster("", &[]), "cluster \"\": the name is empty"),
        (
            cluster("c", &["10.0.0.1:1", "10.0.0.1:1"]),
            "\"c\": endpoint \"10.0.0.1:1\" is there",
        ),
        (
            with(EndpointSpec {
                weight: 0,
                ..endpoint("h:1")
            }),
            "\"c\": endpoint \"h:1\" has weight",
        ),
        (
            with(EndpointSpec::new(host("h", 0))),
            "endpoint \"h:0\": the port is not a number",
        ),
        (
            with(EndpointSpec::new(host("a..b", 1))),
            "endpoint \"a..b:1\": a host name has no empty",
        ),
        (
            ClusterSpec {
                connect_timeout: Duration::ZERO,
                ..cluster("c", &[])
            },
            "\"c\": the time to connect is zero",
        ),
        (
            outlier(OutlierParams {
                consecutive_connect_failures: 0,
                ..Default::default()
            }),
            "\"c\": the number of failures",
        ),
        (
            outlier(OutlierParams {
                ejection: Duration::ZERO,
                ..Default::default()
            }),
            "\"c\": the ejection time",
        ),
        (
            outlier(OutlierParams {
                max_ejected_percent: 101,
                ..Default::default()
            }),
            "\"c\": at most 100 percent of the endpoints can be ejected, not 101",
        ),
    ];
    for (spec, wanted) in cases {
        let errors = refused(vec![spec], vec![]);
        assert_eq!(errors.total(), 1, "{errors}");
        assert!(errors.to_string().contains(wanted), "{errors}");
    }
    let errors = refused(vec![cluster("c", &[]), cluster("c", &[])], vec![]);
    assert_eq!(
        errors.to_string(),
        "cluster \"c\": the name is taken by another cluster"
    );
}

#[test]
fn each_fault_of_a_route_names_its_offender() {
    let over_long = vec!["abcdefgh"; 29].join(".");
    let wild_over_long = format!("*.{}", &over_long[..253]);
    let names = [
        ("a b", "letters, digits"),
        ("", "no empty labels"),
        (".", "no empty labels"),
        ("a..b", "no empty labels"),
        ("a..", "no empty labels"),
        ("*.", "no empty labels"),
        ("*..", "no empty labels"),
        ("*a.b", "whole first label"),
        ("a.*.b", "whole first label"),
        ("**", "whole first label"),
        ("*.*", "whole first label"),
        ("ä.example", "letters, digits"),
        ("10.0.0.1", "no host name"),
        (over_long.as_str(), "at most 253"),
        (wild_over_long.as_str(), "at most 253"),
    ];
    for (name, wanted) in names {
        let errors = refused(
            vec![cluster("c", &[])],
            vec![named("good.example", "c"), named(name, "c")],
        );
        assert_eq!(errors.total(), 1, "{errors}");
        let text = errors.to_string();
        assert!(
            text.starts_with(&format!("route 2: server name {name:?}: ")),
            "{text}"
        );
        assert!(text.contains(wanted), "{text}");
    }
    let others = [
        (named("a", "gone"), "route 1: there is no cluster \"gone\""),
        (
            RouteSpec::new(RouteMatch::ServerNames(vec![]), "c"),
            "route 1: there is nothing to match",
        ),
        (
            RouteSpec::new(RouteMatch::ConnectDestinations(vec![String::new()]), "c"),
            "route 1: there is nothing to match",
        ),
        (
            RouteSpec::new(
                RouteMatch::Destinations {
                    prefixes: vec![],
                    port: None,
                },
                "c",
            ),
            "route 1: there is nothing to match",
        ),
        (
            RouteSpec::new(
                RouteMatch::Destinations {
                    prefixes: vec!["::/0".parse().unwrap()],
                    port: Some(0),
                },
                "c",
            ),
            "route 1: port 0",
        ),
    ];
    for (spec, wanted) in others {
        let errors = refused(vec![cluster("c", &[])], vec![spec]);
        assert!(
            errors.total() == 1 && errors.to_string().starts_with(wanted),
            "{errors}"
        );
    }
}

#[test]
fn equal_matches_are_refused_in_any_spelling() {
    let destination = |prefix: &str, port| RouteMatch::Destinations {
        prefixes: vec![prefix.parse().unwrap()],
        port,
    };
    let connect = |value: &str| RouteMatch::ConnectDestinations(vec![value.to_owned()]);
    let names =
        |names: &[&str]| RouteMatch::ServerNames(names.iter().map(ToString::to_string).collect());
    let cases = [
        (
            names(&["a.example"]),
            names(&["b", "A.Example."]),
            "\"a.example\" is matched twice",
        ),
        (names(&["*"]), names(&["*"]), "\"*\" is matched twice"),
        (
            names(&["c", "*.D"]),
            names(&["*.d"]),
            "\"*.d\" is matched twice",
        ),
        (
            destination("10.0.0.0/8", Some(443)),
            destination("::ffff:10.0.0.0/104", Some(443)),
            "destination 10.0.0.0/8 port 443 is matched twice",
        ),
        (
            destination("::/0", None),
            destination("::/0", None),
            "destination ::/0 is matched twice",
        ),
        (connect("x"), connect("x"), "\"x\" is matched twice"),
    ];
    for (left, right, wanted) in cases {
        let routes = vec![RouteSpec::new(left, "c"), RouteSpec::new(right, "c")];
        let errors = refused(vec![cluster("c", &[])], routes);
        assert_eq!(errors.to_string(), format!("route 2: {wanted}"));
    }
    let twice = RouteSpec::new(names(&["a", "A"]), "c");
    assert_eq!(refused(vec![cluster("c", &[])], vec![twice]).total(), 1);
    let apart = vec![
        RouteSpec::new(destination("10.0.0.0/8", Some(443)), "c"),
        RouteSpec::new(destination("10.0.0.0/8", None), "c"),
        RouteSpec::new(connect("x"), "c"),
        RouteSpec::new(names(&["x", "*.x"]), "c"),
        RouteSpec::new(connect("X"), "c"),
    ];
    assert!(Snapshot::build(table(vec![cluster("c", &[])], apart), 1, None).is_ok());
}

#[test]
fn all_faults_are_counted_and_the_first_are_told() {
    let clusters = (0..30).map(|n| ClusterSpec {
        connect_timeout: Duration::ZERO,
        ..ClusterSpec::new(format!("c{n:02}"))
    });
    let errors = refused(clusters.collect(), vec![named("a b", "gone")]);
    assert_eq!(errors.total(), 32);
    assert_eq!(errors.first().len(), BuildErrors::KEPT);
    let text = errors.to_string();
    assert_eq!(text.matches("; ").count(), 20);
    assert!(
        text.starts_with("cluster \"c00\": ") && text.ends_with("; and 12 more"),
        "{text}"
    );
}

#[test]
fn too_many_endpoints_are_refused() {
    let endpoints = (0..65_536_u32).map(|n| {
        EndpointSpec::new(EndpointAddress::Ip(
            (IpAddr::from(n.to_be_bytes()), 443).into(),
        ))
    });
    let mut spec = ClusterSpec {
        endpoints: endpoints.collect(),
        ..ClusterSpec::new("c")
    };
    let errors = refused(vec![spec.clone()], vec![]);
    assert_eq!(
        errors.first(),
        ["cluster \"c\": 65536 endpoints are more than a cluster can have, which is 65535"]
    );
    spec.endpoints.pop();
    assert!(Snapshot::build(table(vec![spec], vec![]), 1, None).is_ok());
}

#[test]
fn unchanged_parts_are_shared() {
    let spec = table(
        vec![
            cluster("a", &["10.0.0.1:1", "h:1"]),
            cluster("b", &["10.0.0.2:1"]),
        ],
        vec![named("a", "a"), named("b", "b")],
    );
    let first = Snapshot::build(spec.clone(), 1, None).unwrap();
    let second = Snapshot::build(spec.clone(), 2, Some(&first)).unwrap();
    assert_eq!(second.generation(), 2);
    for (old, new) in first.clusters().zip(second.clusters()) {
        assert!(Arc::ptr_eq(old, new));
    }
    for (old, new) in first.routes().zip(second.routes()) {
        assert!(Arc::ptr_eq(old, new));
    }
    let mut changed = spec;
    changed.clusters[1].connect_retries = 9;
    changed.clusters.insert(0, cluster("aa", &[]));
    let third = Snapshot::build(changed, 3, Some(&second)).unwrap();
    assert!(Arc::ptr_eq(
        third.cluster("a").unwrap(),
        second.cluster("a").unwrap()
    ));
    assert_eq!(third.cluster("b").unwrap().settings().connect_retries, 9);
    let route =
        |snapshot: &Snapshot, name| Arc::clone(snapshot.by_server_name(Some(name)).unwrap());
    assert!(Arc::ptr_eq(&route(&third, "a"), &route(&second, "a")));
    assert!(Arc::ptr_eq(
        route(&third, "b").cluster(),
        third.cluster("b").unwrap()
    ));
}

#[test]
fn every_change_of_a_cluster_is_seen() {
    type Change = fn(&mut ClusterSpec);
    let changes: [Change; 14] = [
        |spec| spec.balance = Balance::Maglev,
        |spec| spec.zone_aware = false,
        |spec| spec.connect_timeout = Duration::from_secs(1),
        |spec| spec.connect_retries = 7,
        |spec| spec.max_connections = 7,
        |spec| spec.outlier = None,
        |spec| spec.send_proxy_protocol = Some(ProxyVersion::V2),
        |spec| spec.tcp = Some(Arc::new(TcpOptions::default())),
        |spec| spec.endpoints[0].address = "10.0.0.9:1".parse().unwrap(),
        |spec| spec.endpoints[0].zone = Some("z".into()),
        |spec| spec.endpoints[0].weight = 7,
        |spec| spec.endpoints[0].priority = 7,
        |spec| spec.endpoints[0].healthy = false,
        |spec| spec.endpoints.truncate(1),
    ];
    let spec = cluster("c", &["10.0.0.1:1", "10.0.0.2:1"]);
    let first = Snapshot::build(table(vec![spec.clone()], vec![]), 1, None).unwrap();
    for (index, change) in changes.into_iter().enumerate() {
        let mut spec = spec.clone();
        change(&mut spec);
        let second = Snapshot::build(table(vec![spec.clone()], vec![]), 2, Some(&first)).unwrap();
        let fresh = Snapshot::build(table(vec![spec], vec![]), 2, None).unwrap();
        let [second, fresh] = [&second, &fresh].map(|snapshot| snapshot.cluster("c").unwrap());
        assert!(
            !Arc::ptr_eq(second, first.cluster("c").unwrap()),
            "change {index}"
        );
        assert_eq!(
            format!("{second:?}"),
            format!("{fresh:?}"),
            "change {index}"
        );
    }
}

#[test]
fn a_reload_forgets_nothing() {
    let now = start();
    let mut spec = cluster("c", &["10.0.0.1:1", "10.0.0.2:1"]);
    spec.outlier = Some(OutlierParams {
        consecutive_connect_failures: 2,
        ..Default::default()
    });
    spec.max_connections = 2;
    let first = Snapshot::build(table(vec![spec.clone()], vec![]), 1, None).unwrap();
    let old = Arc::clone(first.cluster("c").unwrap());
    assert!(old.try_acquire());
    old.endpoints()[0].begin();
    old.connect_failed(&old.endpoints()[1], ConnectFailure::Refused, now);

    spec.endpoints.insert(0, endpoint("10.0.0.3:1"));
    spec.endpoints[2].weight = 5;
    let second = Snapshot::build(table(vec![spec.clone()], vec![]), 2, Some(&first)).unwrap();
    let new = second.cluster("c").unwrap();
    assert_eq!(
        (new.active(), new.connect_failures(ConnectFailure::Refused)),
        (1, 1)
    );
    assert_eq!(
        new.endpoints()
            .iter()
            .map(|e| e.active())
            .collect::<Vec<_>>(),
        [0, 1, 0]
    );
    // The second failure in a row, seen by the new snapshot; the ejection is seen by the old one.
    new.connect_failed(&new.endpoints()[2], ConnectFailure::Timeout, now);
    assert_eq!(new.endpoints()[2].state(now), EndpointState::Ejected);
    assert_eq!(old.endpoints()[1].state(now), EndpointState::Ejected);
    // A connection of the old snapshot ends; the limit spans both.
    assert!(new.try_acquire());
    assert!(!old.try_acquire() && !new.try_acquire());
    old.release();
    old.endpoints()[0].end();
    assert_eq!((new.active(), new.endpoints()[1].active()), (1, 0));

    let gone = Snapshot::build(table(vec![], vec![]), 3, Some(&second)).unwrap();
    assert!(gone.cluster("c").is_none());
    let back = Snapshot::build(table(vec![spec], vec![]), 4, Some(&gone)).unwrap();
    let back = back.cluster("c").unwrap();
    assert_eq!(
        (
            back.active(),
            back.connect_failures(ConnectFailure::Refused)
        ),
        (0, 0)
    );
}

#[test]
fn connections_are_counted_across_threads() {
    let spec = ClusterSpec {
        max_connections: 3,
        ..cluster("c", &["10.0.0.1:1"])
    };
    let snapshot = Snapshot::build(table(vec![spec], vec![]), 1, None).unwrap();
    let cluster: &Cluster = snapshot.cluster("c").unwrap();
    let endpoint = &cluster.endpoints()[0];
    let now = start();
    let acquired: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut acquired = 0;
                    for _ in 0..20_000 {
                        if cluster.try_acquire() {
                            assert!(cluster.active() <= 3);
                            acquired += 1;
                            cluster.release();
                        }
                        endpoint.begin();
                        cluster.connect_failed(endpoint, ConnectFailure::Failed, now);
                        endpoint.end();
                    }
                    acquired
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert!(acquired > 0);
    assert_eq!((cluster.active(), endpoint.active()), (0, 0));
    assert_eq!(cluster.connect_failures(ConnectFailure::Failed), 80_000);
    assert_eq!(endpoint.state(now), EndpointState::Ejected);
    for _ in 0..3 {
        assert!(cluster.try_acquire());
    }
    assert!(!cluster.try_acquire());
}

#[test]
fn addresses_are_read_as_they_are_written() {
    for text in [
        "10.0.0.7:443",
        "[::1]:443",
        "name:443",
        "a-b.example.com.:1",
    ] {
        assert_eq!(text.parse::<EndpointAddress>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "name",
        "name:",
        "name:0",
        "name:65536",
        "name:+1",
        ":443",
        "::1:443",
        "[::1]",
        "a b:1",
        "10.0.0.300:443",
        "10.0.0.1:0",
        "[name]:443",
        "http://name:80",
    ] {
        assert!(text.parse::<EndpointAddress>().is_err(), "{text}");
    }
}

#[test]
fn one_endpoint_is_picked_until_tried() {
    let snapshot = Snapshot::build(table(vec![cluster("c", &["h:1"])], vec![]), 1, None).unwrap();
    let cluster = snapshot.cluster("c").unwrap();
    let mut cx = PickContext {
        source: IpAddr::from([192, 0, 2, 1]),
        zone: None,
        now: start(),
        random: 0,
        tried: &[],
    };
    let picked = Arc::clone(cluster.pick(&cx).unwrap());
    let tried = [picked];
    cx.tried = &tried;
    assert!(cluster.pick(&cx).is_none());
}

#[test]
fn every_change_of_a_route_is_seen() {
    type Change = fn(&mut RouteSpec);
    let changes: [Change; 6] = [
        |spec| spec.listeners = route::ListenerSet::only(3),
        |spec| spec.matches = RouteMatch::ServerNames(vec!["a".into(), "c".into()]),
        |spec| spec.cluster = "d".into(),
        |spec| spec.allow_sources = vec!["192.0.2.0/24".parse().unwrap()],
        |spec| spec.idle_timeout = Some(Duration::from_secs(1)),
        |spec| spec.max_connection_age = Some(Duration::ZERO),
    ];
    let matches = RouteMatch::ServerNames(vec!["a".into(), "b".into()]);
    let spec = RouteSpec::new(matches, "c");
    let clusters = || vec![cluster("c", &[]), cluster("d", &[])];
    let first = Snapshot::build(table(clusters(), vec![spec.clone()]), 1, None).unwrap();
    for (index, change) in changes.into_iter().enumerate() {
        let mut spec = spec.clone();
        change(&mut spec);
        let spec = table(clusters(), vec![spec]);
        let second = Snapshot::build(spec.clone(), 2, Some(&first)).unwrap();
        let fresh = Snapshot::build(spec, 2, None).unwrap();
        let routes = |snapshot: &Snapshot| format!("{:?}", snapshot.routes().collect::<Vec<_>>());
        assert_ne!(routes(&second), routes(&first), "change {index}");
        assert_eq!(routes(&second), routes(&fresh), "change {index}");
        assert_eq!(second.by_server_name(Some("b")).is_some(), index != 1);
    }
}

#[test]
fn a_route_tells_its_own_timeouts() {
    let (idle, age) = (Some(Duration::from_secs(3)), Some(Duration::from_secs(4)));
    let routes = vec![
        named("plain", "c"),
        RouteSpec {
            idle_timeout: idle,
            ..named("idle", "c")
        },
        RouteSpec {
            max_connection_age: age,
            ..named("age", "c")
        },
    ];
    let snapshot = Snapshot::build(table(vec![cluster("c", &[])], routes), 1, None).unwrap();
    let times = snapshot
        .routes()
        .map(|route| (route.idle_timeout(), route.max_connection_age()));
    assert_eq!(
        times.collect::<Vec<_>>(),
        [(None, None), (idle, None), (None, age)]
    );
}
