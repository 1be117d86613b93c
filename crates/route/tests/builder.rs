//! A snapshot that is put together part by part.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use route::{Builder, ClusterSpec, RouteMatch, RouteSpec, Snapshot};

fn with<'p>(previous: Option<&'p Snapshot>, names: &[&str]) -> Builder<'p> {
    let mut builder = Builder::new(previous);
    for name in names {
        builder.add_cluster(&ClusterSpec::new(*name));
    }
    builder
}

fn names(snapshot: &Snapshot) -> Vec<String> {
    let names = snapshot
        .clusters()
        .map(|cluster| cluster.name().to_string());
    names.collect()
}

#[test]
fn places_are_told_in_the_order_in_which_clusters_were_given() {
    let first = with(None, &["d", "a", "c"]).routes();
    assert_eq!(first.cluster_places(), [2, 0, 1]);
    let first = first.build(1).unwrap();
    // One goes, one comes in front, one is changed in its place, one stays.
    let mut builder = with(Some(&first), &["b"]);
    builder.keep_cluster(2);
    builder.add_cluster(&ClusterSpec::new("c"));
    let next = builder.routes();
    assert_eq!(next.cluster_places(), [0, 2, 1]);
    assert_eq!(names(&next.build(2).unwrap()), ["b", "c", "d"]);
}

#[test]
fn a_cluster_is_told_of_each_time_it_is_given_again() {
    let first = with(None, &["a", "b"]).routes().build(1).unwrap();
    for (kept, added, again) in [
        (&[0, 0][..], &[][..], 1),
        (&[0, 0, 0], &[], 2),
        (&[0], &["a", "a"], 2),
        (&[], &["a", "a"], 1),
        (&[1], &["c", "c", "c", "a"], 2),
        (&[0, 1], &["c"], 0),
    ] {
        let mut builder = Builder::new(Some(&first));
        kept.iter().for_each(|place| builder.keep_cluster(*place));
        for name in added {
            builder.add_cluster(&ClusterSpec::new(*name));
        }
        let faults = builder
            .routes()
            .build(2)
            .map_or_else(|why| why.total(), |_| 0);
        assert_eq!(faults, again, "{kept:?} {added:?}");
    }
}

#[test]
fn a_route_finds_its_cluster_in_whatever_order_routes_come() {
    let clusters = ["c9", "c1", "c10", "c2", "c5", "c3"];
    for order in [
        &["c9", "c1", "c10", "c2", "c5", "c3"][..],
        &["c9", "c10", "c2", "c3"],
        &["c3", "c9", "c1", "c1", "c10", "c10", "c9", "c2"],
        &["c3", "c5", "c2", "c10", "c1", "c9"],
    ] {
        let mut builder = with(None, &clusters).routes();
        for (nth, cluster) in order.iter().enumerate() {
            let name = RouteMatch::ServerNames(vec![format!("n{nth}.test")]);
            builder.add_route(&RouteSpec::new(name, *cluster));
        }
        let snapshot = builder.build(1).unwrap();
        let led = snapshot
            .routes()
            .map(|route| route.cluster().name().to_string());
        assert!(led.eq(order.iter().copied()), "{order:?}");
    }
}
