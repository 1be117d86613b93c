//! The state-of-the-world variant.

use super::*;

#[test]
fn lists_are_whole_and_sent_when_they_change() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Listener, "b", "1");
    bench.set(Listener, "a", "1");
    bench.want(Listener, &[]);
    let first = bench.next_full().unwrap();
    assert_eq!((first.kind, first.bodies.len()), (Listener, 2));
    bench.set(Listener, "a", "2");
    assert_eq!(bench.next_full(), None, "one at a time");
    assert_eq!(bench.ack_full(&first, &[]), Handled::Acked(Listener));
    let second = bench.next_full().unwrap();
    assert_eq!(second.bodies, ["2", "1"]);
    assert_ne!(first.version, second.version);
    bench.ack_full(&second, &[]);
    assert_eq!(bench.next_full(), None);
    bench.remove(&[(Listener, "b")]);
    let third = bench.next_full().unwrap();
    assert_eq!(third.bodies, ["2"]);
    bench.ack_full(&third, &[]);
    bench.set(Listener, "a", "3");
    bench.set(Listener, "a", "2");
    assert_eq!(bench.next_full(), None, "taken back");
}

#[test]
fn version_depends_on_content_only() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Listener, "a", "1");
    bench.want(Listener, &[]);
    let version = bench.next_full().unwrap().version;
    let mut other = Bench::new(Audience::Whole);
    other.set(Listener, "x", "1");
    other.set(Listener, "a", "2");
    other.set(Listener, "a", "1");
    other.remove(&[(Listener, "x")]);
    other.want(Listener, &[]);
    assert_eq!(other.next_full().unwrap().version, version);
}

#[test]
fn an_empty_list_is_sent_once() {
    let mut bench = Bench::new(Audience::Whole);
    bench.want(Cluster, &[]);
    let empty = bench.next_full().unwrap();
    assert_eq!(empty.bodies, Vec::<String>::new());
    bench.ack_full(&empty, &[]);
    assert_eq!(bench.next_full(), None);
}

#[test]
fn named_types_send_only_changed_subscriptions() {
    let mut bench = Bench::new(Audience::Whole);
    for name in ["a", "b", "c"] {
        bench.set(ClusterLoadAssignment, name, name);
    }
    bench.want(ClusterLoadAssignment, &["a", "b", "none"]);
    let first = bench.next_full().unwrap();
    assert_eq!(first.bodies, ["a", "b"]);
    bench.ack_full(&first, &["a", "b", "none"]);
    assert_eq!(bench.next_full(), None);
    bench.set(ClusterLoadAssignment, "c", "c2");
    assert_eq!(bench.next_full(), None);
    bench.set(ClusterLoadAssignment, "b", "b2");
    let second = bench.next_full().unwrap();
    assert_eq!(second.bodies, ["b2"]);
    // The acknowledgement also asks for more and for less.
    bench.ack_full(&second, &["b", "c", "none"]);
    let third = bench.next_full().unwrap();
    assert_eq!(third.bodies, ["c2"]);
    bench.ack_full(&third, &["b", "c", "none"]);
    bench.set(ClusterLoadAssignment, "a", "a2");
    assert_eq!(bench.next_full(), None);
    bench.set(ClusterLoadAssignment, "none", "some");
    assert_eq!(bench.next_full().unwrap().bodies, ["some"]);
}

#[test]
fn named_types_are_sent_in_sequential_pieces() {
    let mut bench = Bench::new(Audience::Whole);
    bench.stream.limits.response_bytes = 250;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        bench.set(RouteConfiguration, name, &name.repeat(10));
    }
    bench.want(RouteConfiguration, &names);
    let mut sizes = Vec::new();
    while let Some(listed) = bench.next_full() {
        assert_eq!(bench.next_full(), None);
        sizes.push(listed.bodies.len());
        bench.ack_full(&listed, &names);
    }
    assert_eq!(sizes, [2, 2, 1]);
}

#[test]
fn nothing_of_a_named_type_is_sent_unasked() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(RouteConfiguration, "a", "1");
    bench.want(RouteConfiguration, &[]);
    assert_eq!(bench.next_full(), None);
}

#[test]
fn an_answer_to_an_earlier_response_is_ignored() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Listener, "a", "1");
    bench.want(Listener, &[]);
    let first = bench.next_full().unwrap();
    bench.ack_full(&first, &[]);
    bench.set(Listener, "a", "2");
    let second = bench.next_full().unwrap();
    assert_eq!(bench.ack_full(&first, &["other"]), Handled::Other);
    assert_eq!(bench.ack_full(&second, &[]), Handled::Acked(Listener));
    assert_eq!(bench.next_full(), None, "and neither were its names taken");
}

#[test]
fn a_nonce_of_another_stream_begins_anew() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Listener, "a", "1");
    bench.ask_full(DiscoveryRequest {
        version_info: "9".into(),
        response_nonce: "12".into(),
        ..full(Listener)
    });
    assert_eq!(bench.next_full().unwrap().bodies, ["1"]);
}

#[test]
fn a_refused_list_is_sent_again_when_it_changes() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Listener, "a", "bad");
    bench.want(Listener, &[]);
    let first = bench.next_full().unwrap();
    let refused = bench.ask_full(DiscoveryRequest {
        response_nonce: first.nonce,
        error_detail: Some(refusal()),
        ..full(Listener)
    });
    assert_eq!(refused, Handled::Nacked(Listener, "no good".into()));
    assert_eq!(bench.next_full(), None);
    bench.set(Listener, "a", "good");
    assert_eq!(bench.next_full().unwrap().bodies, ["good"]);
}

#[test]
fn wildcard_narrows_to_names_and_back() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Cluster, "a", "a");
    bench.set(Cluster, "b", "b");
    bench.want(Cluster, &[]);
    let all = bench.next_full().unwrap();
    assert_eq!(all.bodies, ["a", "b"]);
    bench.ack_full(&all, &["b"]);
    let narrow = bench.next_full().unwrap();
    assert_eq!(narrow.bodies, ["b"]);
    bench.ack_full(&narrow, &["*"]);
    let wide = bench.next_full().unwrap();
    assert_eq!(wide.bodies, ["a", "b"]);
    bench.ack_full(&wide, &["b"]);
    let narrow = bench.next_full().unwrap();
    bench.ack_full(&narrow, &[]);
    let none = bench.next_full().unwrap();
    assert_eq!(
        none.bodies,
        Vec::<String>::new(),
        "no names after some is none"
    );
}

#[test]
fn cluster_stays_listed_while_listener_uses_it() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Cluster, "a", "a");
    bench.set(Cluster, "b", "b");
    bench.set(Listener, "tls", "to a");
    bench.want(Cluster, &[]);
    bench.want(Listener, &[]);
    let clusters = bench.next_full().unwrap();
    assert_eq!(bench.next_full(), None, "listeners wait for clusters");
    bench.ack_full(&clusters, &[]);
    let listeners = bench.next_full().unwrap();
    bench.ack_full(&listeners, &[]);

    bench.store.update(
        vec![
            resource(Audience::All, Listener, "tls", "to c"),
            resource(Audience::All, Cluster, "c", "c"),
        ],
        vec![(Cluster, Audience::All, "a".into())],
    );
    bench.stream.pull(&bench.store, bench.now);
    let clusters = bench.next_full().unwrap();
    assert_eq!(clusters.bodies, ["a", "b", "c"]);
    assert_eq!(bench.next_full(), None);
    bench.ack_full(&clusters, &[]);
    let listeners = bench.next_full().unwrap();
    assert_eq!(listeners.bodies, ["to c"]);
    assert_eq!(bench.next_full(), None);
    bench.ack_full(&listeners, &[]);
    let clusters = bench.next_full().unwrap();
    assert_eq!(
        (clusters.kind, clusters.bodies),
        (Cluster, strings(&["b", "c"]))
    );
}

#[test]
fn a_changed_cluster_brings_its_assignment() {
    let mut bench = Bench::new(Audience::Whole);
    bench.set(Cluster, "a", "1");
    bench.set(ClusterLoadAssignment, "a", "endpoints");
    bench.want(Cluster, &[]);
    let clusters = bench.next_full().unwrap();
    bench.ack_full(&clusters, &[]);
    bench.want(ClusterLoadAssignment, &["a"]);
    let assignments = bench.next_full().unwrap();
    bench.ack_full(&assignments, &["a"]);
    bench.set(Cluster, "a", "2");
    let clusters = bench.next_full().unwrap();
    bench.ack_full(&clusters, &[]);
    assert_eq!(bench.next_full().unwrap().bodies, ["endpoints"]);
}

#[test]
fn names_are_bounded() {
    let mut bench = Bench::new(Audience::Whole);
    let names: Vec<String> = (0..1001).map(|number| number.to_string()).collect();
    let request = DiscoveryRequest {
        resource_names: names,
        ..full(ClusterLoadAssignment)
    };
    let now = bench.now;
    Full::on_request(&mut bench.stream, &bench.store, now, request).unwrap_err();
}
