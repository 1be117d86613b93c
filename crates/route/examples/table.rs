//! Measures a table: bytes per route, time to build, to rebuild and to look up.
//!
//! `cargo run --release -p route --example table [ROUTES]`, 10,000 routes by default. Each route
//! has one server name, one cluster and one endpoint of its own.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use route::{ClusterSpec, EndpointSpec, RouteMatch, RouteSpec, Snapshot, TableSpec};

/// Snapshots that memory is measured by.
const COPIES: usize = 8;

fn main() {
    let routes = std::env::args()
        .nth(1)
        .map_or(10_000, |text| text.parse().expect("a number"));
    let spec = table(routes);

    // The first ones fill what making the specifications left free.
    let build = || Snapshot::build(spec.clone(), 1, None).expect("a valid table");
    let mut snapshots: Vec<Snapshot> = (0..3).map(|_| build()).collect();
    let before = resident();
    snapshots.extend((0..COPIES).map(|_| build()));
    let bytes = (resident() - before) / COPIES;
    let snapshot = snapshots.swap_remove(0);
    drop(snapshots);
    println!("routes                 {routes}");
    println!("bytes per route       {}", bytes / routes.max(1));

    println!(
        "build                  {:?}",
        best(|| Snapshot::build(spec.clone(), 1, None))
    );
    println!("of which copying specs {:?}", best(|| spec.clone()));
    println!(
        "rebuild unchanged      {:?}",
        best(|| Snapshot::build(spec.clone(), 2, Some(&snapshot)))
    );

    let name = |n: usize| format!("api.shoot-{n:05}.project.example.com");
    let names: Vec<String> = (0..routes).map(name).collect();
    let found = best(|| {
        names
            .iter()
            .filter(|name| snapshot.by_server_name(Some(name)).is_some())
            .count()
    });
    println!(
        "look-up of a name      {:?}",
        found / u32::try_from(routes.max(1)).unwrap_or(u32::MAX)
    );
}

fn table(routes: usize) -> TableSpec {
    let mut table = TableSpec::default();
    for n in 0..routes {
        let cluster =
            format!("outbound|443||kube-apiserver.shoot--project--{n:05}.svc.cluster.local");
        let mut spec = ClusterSpec::new(&cluster);
        let [_, a, b, c] = u32::try_from(n).unwrap_or(0).to_be_bytes();
        let address = format!("10.{a}.{b}.{c}:443").parse().expect("an address");
        spec.endpoints.push(EndpointSpec {
            zone: Some("a".into()),
            ..EndpointSpec::new(address)
        });
        table.clusters.push(spec);
        let names = RouteMatch::ServerNames(vec![format!("api.shoot-{n:05}.project.example.com")]);
        table.routes.push(RouteSpec::new(names, cluster));
    }
    table
}

/// Returns the least of 20 times that `work` takes.
fn best<T>(mut work: impl FnMut() -> T) -> Duration {
    let once = |_| {
        let started = Instant::now();
        let result = black_box(work());
        let elapsed = started.elapsed();
        drop(result);
        elapsed
    };
    (0..20).map(once).min().unwrap_or_default()
}

/// Returns the bytes of memory that the process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .expect("resident")
        .parse()
        .expect("a number");
    pages * 4096
}
