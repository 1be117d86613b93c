//! Finding a route in small and large tables, and building a large one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use route::{
    ClusterSpec, EndpointAddress, EndpointSpec, IpPrefix, RouteMatch, RouteSpec, Snapshot,
    TableSpec,
};

use crate::workload::Workload;

pub(crate) fn workloads() -> Vec<Workload> {
    let one = Rc::new(built(&table(1), None));
    let large = Rc::new(built(&table(LARGE), None));
    let by_name = |table: &Snapshot, name: &String| table.by_server_name(Some(name)).is_some();
    let names = |count| spread(count).map(server_name);
    let wildcards =
        spread(LARGE).map(|nth| format!("kubelet-{nth}.nodes.{}", wildcard_zone(nth % WILDCARDS)));
    let among = "server name, 100 wildcards among 10,000";
    let mut all = vec![
        lookups("server name of 1", &one, names(1), by_name),
        lookups("server name of 10,000", &large, names(LARGE), by_name),
        lookups(among, &large, wildcards, by_name),
        lookups(
            "destination address of 10,000",
            &large,
            spread(LARGE).map(|nth| at(destination(nth))),
            |table, address| table.by_destination(*address).is_some(),
        ),
        lookups(
            "connect destination of 10,000",
            &large,
            spread(LARGE).map(cluster_name),
            |table, value| table.by_connect(value).is_some(),
        ),
    ];
    all.extend(builds(large));
    all
}

fn lookups<K: 'static>(
    name: &'static str,
    table: &Rc<Snapshot>,
    keys: impl Iterator<Item = K>,
    found: impl Fn(&Snapshot, &K) -> bool + Copy + 'static,
) -> Workload {
    let input = (Rc::clone(table), keys.collect::<Vec<K>>());
    Workload::shared(name, LOOKUPS, LOOKUPS, input, move |(table, keys)| {
        keys.iter().filter(|key| found(table, key)).count()
    })
}

fn builds(previous: Rc<Snapshot>) -> [Workload; 2] {
    let build = |name, shoots, previous: Option<Rc<Snapshot>>| {
        let spec = table(shoots);
        Workload::consuming(
            name,
            LARGE,
            spec.routes.len(),
            move || (spec.clone(), previous.clone()),
            |(spec, previous)| {
                let generation = 1 + u64::from(previous.is_some());
                let table = Snapshot::build(spec, generation, previous.as_deref());
                table.map_or(0, |table| table.routes().len())
            },
        )
    };
    let first = build("a table of 10,000, built", LARGE, None);
    let again = "a table of 10,000, built again with one more";
    [first, build(again, LARGE + 1, Some(previous))]
}

/// A table as a seed has it: per shoot a cluster of one endpoint, its name, its CONNECT value and
/// the address that its nodes know it by; and a few wildcards.
fn table(shoots: usize) -> TableSpec {
    let clusters = (0..shoots).map(|nth| ClusterSpec {
        endpoints: vec![EndpointSpec::new(EndpointAddress::Ip(at(pod(nth))))],
        ..ClusterSpec::new(cluster_name(nth))
    });
    let own = (0..shoots).flat_map(|nth| {
        let matches = [
            RouteMatch::ServerNames(vec![server_name(nth)]),
            RouteMatch::ConnectDestinations(vec![cluster_name(nth)]),
            RouteMatch::Destinations {
                prefixes: vec![IpPrefix::host(IpAddr::V4(destination(nth)))],
                port: Some(PORT),
            },
        ];
        matches.map(|matches| RouteSpec::new(matches, cluster_name(nth)))
    });
    let wildcards = (0..WILDCARDS).map(|nth| {
        let pattern = format!("*.{}", wildcard_zone(nth));
        RouteSpec::new(RouteMatch::ServerNames(vec![pattern]), cluster_name(0))
    });
    TableSpec {
        clusters: clusters.collect(),
        routes: own.chain(wildcards).collect(),
    }
}

/// An empty table instead of an error: what is not found then fails the workload.
fn built(spec: &TableSpec, previous: Option<&Snapshot>) -> Snapshot {
    Snapshot::build(spec.clone(), 1, previous).unwrap_or_default()
}

/// Numbers below `count`, spread over all of them.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    // Coprime to any count used here.
    (0..LOOKUPS).map(move |nth| nth * 7919 % count)
}

fn server_name(nth: usize) -> String {
    format!("api.s{nth}.p{}.internal.example.com", nth % 100)
}

fn wildcard_zone(nth: usize) -> String {
    format!("z{nth}.ingress.example.com")
}

fn cluster_name(nth: usize) -> String {
    let project = nth % 100;
    format!("outbound|443||kube-apiserver.shoot--p{project}--s{nth}.svc.cluster.local")
}

fn pod(nth: usize) -> Ipv4Addr {
    address(10, 64, nth)
}

fn destination(nth: usize) -> Ipv4Addr {
    address(10, 1, nth)
}

fn address(first: u8, second: u8, nth: usize) -> Ipv4Addr {
    let [.., high, low] = nth.to_be_bytes();
    Ipv4Addr::new(first, second, high, low)
}

fn at(ip: Ipv4Addr) -> SocketAddr {
    SocketAddr::from((ip, PORT))
}

const LARGE: usize = 10_000;
const WILDCARDS: usize = 100;
const LOOKUPS: usize = 1000;
const PORT: u16 = 443;
