//! What waits for what: nothing refers to what is not there, nothing goes while it is referred to.

use super::*;

/// A client that has a cluster with its assignment and a listener that routes to it.
fn settled(audience: Audience) -> Bench {
    let mut bench = Bench::new(audience);
    bench.set_all(&[
        (Cluster, "old", "1"),
        (ClusterLoadAssignment, "old", "1"),
        (Listener, "tls", "to old"),
    ]);
    bench.subscribe(Cluster, &[]);
    bench.subscribe(Listener, &[]);
    let sent = bench.sends("Cluster +old");
    assert_eq!(bench.next(), None, "listeners wait for clusters");
    bench.subscribe(ClusterLoadAssignment, &["old"]);
    bench.ack(&sent);
    let kinds: Vec<_> = bench.drain().iter().map(|sent| sent.kind).collect();
    assert_eq!(kinds, [ClusterLoadAssignment, Listener]);
    bench
}

#[test]
fn listener_waits_for_cluster_and_assignment() {
    let mut bench = settled(Audience::Parts);
    bench.set_all(&[
        (Listener, "tls", "to new"),
        (Cluster, "new", "1"),
        (ClusterLoadAssignment, "new", "1"),
    ]);
    let cluster = bench.sends("Cluster +new");
    assert_eq!(bench.next(), None);
    // As our client does it: names first, then the acknowledgement.
    bench.subscribe(ClusterLoadAssignment, &["new"]);
    bench.ack(&cluster);
    let assignment = bench.sends("ClusterLoadAssignment +new");
    assert_eq!(bench.next(), None);
    bench.ack(&assignment);
    bench.sends("Listener +tls");
}

#[test]
fn partial_response_announces_more() {
    let more = |sent: &Sent| sent.nonce.ends_with(MORE_FOLLOWS);
    let mut bench = Bench::new(Audience::Parts);
    bench.stream.limits.response_bytes = 400;
    let names: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    let all = |kind| names.iter().map(move |name| (kind, &**name, "1"));
    let both: Vec<_> = all(Cluster).chain(all(Listener)).collect();
    bench.set_all(&both);
    bench.subscribe_all();
    let sent = bench.drain();
    assert!(sent.len() > 4);
    let (last, before) = sent.split_last().unwrap();
    assert_eq!(last.kind, WireGuardRoute, "nothing, but that is said");
    assert!(before.iter().all(more) && !more(last));

    // A change that fits is whole, one that does not is not before its end.
    bench.set(Cluster, "n1", "2");
    assert!(bench.drain().iter().all(|sent| !more(sent)));
    let both: Vec<_> = names.iter().map(|name| (Listener, &**name, "2")).collect();
    bench.set_all(&both);
    let sent: Vec<_> = bench.drain().iter().map(more).collect();
    assert!(sent.len() > 1);
    assert!(sent[..sent.len() - 1].iter().all(|more| *more) && !sent[sent.len() - 1]);
}

#[test]
fn a_promise_that_came_to_nothing_is_taken_back() {
    let mut bench = Bench::new(Audience::Parts);
    bench.stream.limits.response_bytes = 200;
    for name in ["a", "b"] {
        bench.set(ClusterLoadAssignment, name, &"1".repeat(90));
    }
    bench.subscribe(ClusterLoadAssignment, &["a", "b"]);
    let first = bench.next().unwrap();
    assert_eq!(first.set, ["a"]);
    assert!(first.nonce.ends_with(MORE_FOLLOWS));
    bench.unsubscribe(ClusterLoadAssignment, &["b"]);
    let last = bench.sends("ClusterLoadAssignment");
    assert!(!last.nonce.ends_with(MORE_FOLLOWS));
    bench.ack(&first);
    bench.ack(&last);
    assert_eq!(bench.next(), None);
}

#[test]
fn bisected_cluster_is_awaited_until_sent_alone() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set_all(&[
        (Cluster, "a", "1"),
        (Cluster, "b", "1"),
        (Listener, "tls", "to a"),
    ]);
    bench.subscribe(Cluster, &[]);
    bench.subscribe(Listener, &[]);
    let both = bench.next().unwrap();
    assert_eq!(both.set, ["a", "b"]);
    bench.nack(&both);
    let kinds: Vec<_> = bench.drain().iter().map(|sent| sent.kind).collect();
    assert_eq!(
        kinds,
        [Cluster, Cluster, Listener],
        "the listener comes last"
    );
}

#[test]
fn listener_waits_for_late_assignment_request() {
    let mut bench = settled(Audience::Parts);
    bench.set_all(&[
        (Listener, "tls", "to new"),
        (Cluster, "new", "1"),
        (ClusterLoadAssignment, "new", "1"),
    ]);
    let cluster = bench.next().unwrap();
    // As Envoy does it.
    bench.ack(&cluster);
    assert_eq!(bench.next(), None, "the client is going to ask");
    bench.subscribe(ClusterLoadAssignment, &["new"]);
    let assignment = bench.next().unwrap();
    assert_eq!(assignment.set, ["new"]);
    assert_eq!(bench.next(), None);
    bench.ack(&assignment);
    assert_eq!(bench.next().unwrap().kind, Listener);
}

#[test]
fn unrequested_assignment_delays_only_once() {
    let mut bench = settled(Audience::Parts);
    bench.set_all(&[
        (Listener, "tls", "to new"),
        (Cluster, "new", "1"),
        (ClusterLoadAssignment, "new", "1"),
    ]);
    bench.drain();
    assert_eq!(bench.stream.timeout(), Some(bench.now + WAIT));
    bench.now += WAIT;
    let sent = bench.next().unwrap();
    assert_eq!(sent.kind, Listener);
    bench.ack(&sent);
    bench.set(Listener, "tls", "to others");
    assert_eq!(bench.next().unwrap().kind, Listener);
}

#[test]
fn a_cluster_goes_after_what_routed_to_it() {
    let mut bench = settled(Audience::Parts);
    bench.store.update(
        vec![resource(Audience::All, Listener, "tls", "to none")],
        vec![
            (Cluster, Audience::All, "old".into()),
            (ClusterLoadAssignment, Audience::All, "old".into()),
        ],
    );
    bench.stream.pull(&bench.store, bench.now);
    let listener = bench.sends("Listener +tls");
    assert_eq!(bench.next(), None);
    bench.ack(&listener);
    let gone = bench.drain();
    assert_eq!(gone[0].said(), "Cluster -old");
    assert_eq!(gone[1].said(), "ClusterLoadAssignment -old");
    assert_eq!(gone.len(), 2);
}

#[test]
fn cluster_removal_times_out_without_listener_ack() {
    let mut bench = settled(Audience::Parts);
    bench.remove(&[(Listener, "tls"), (Cluster, "old")]);
    bench.sends("Listener -tls");
    assert_eq!(bench.next(), None);
    assert_eq!(bench.stream.timeout(), Some(bench.now + WAIT));
    bench.now += WAIT;
    bench.sends("Cluster -old");
}

#[test]
fn refused_cluster_does_not_block_others() {
    let mut bench = settled(Audience::Parts);
    bench.set_all(&[(Listener, "tls", "to new"), (Cluster, "new", "bad")]);
    let cluster = bench.next().unwrap();
    bench.nack(&cluster);
    assert_eq!(bench.next().unwrap().kind, Listener);
}

#[test]
fn changing_endpoints_do_not_delay_listeners() {
    let mut bench = settled(Audience::Parts);
    bench.set(Listener, "tls", "2");
    let mut listeners = 0;
    for number in 0..10 {
        let body = number.to_string();
        bench.set(ClusterLoadAssignment, "old", &body);
        let assignment = bench.next().unwrap();
        assert_eq!(assignment.kind, ClusterLoadAssignment);
        bench.set(ClusterLoadAssignment, "old", &format!("{body} again"));
        if let Some(sent) = bench.next() {
            assert_eq!(sent.kind, Listener);
            listeners += 1;
            bench.ack(&sent);
        }
        bench.ack(&assignment);
    }
    assert_eq!(listeners, 1);
}

#[test]
fn endpoints_do_not_wait_for_listeners() {
    let mut bench = settled(Audience::Parts);
    bench.set(Listener, "tls", "2");
    let listener = bench.next().unwrap();
    assert_eq!(listener.kind, Listener);
    bench.set(ClusterLoadAssignment, "old", "2");
    let sent = bench.next().unwrap();
    assert_eq!(sent.kind, ClusterLoadAssignment);
}

#[test]
fn changed_listener_waits_for_its_new_clusters() {
    let mut bench = settled(Audience::Parts);
    bench.set_all(&[(Cluster, "a", "1"), (Listener, "tls", "to a")]);
    let first = bench.next().unwrap();
    bench.set_all(&[(Cluster, "b", "1"), (Listener, "tls", "to b")]);
    bench.ack(&first);
    let second = bench.sends("Cluster +b");
    assert_eq!(bench.next(), None, "it refers to b");
    bench.ack(&second);
    assert_eq!(bench.next().unwrap().kind, Listener);
}

#[test]
fn cluster_restored_before_removal_is_kept() {
    let mut bench = settled(Audience::Parts);
    bench.set(Listener, "tls", "2");
    bench.remove(&[(Cluster, "old")]);
    let listener = bench.next().unwrap();
    assert_eq!(listener.kind, Listener);
    bench.set(Cluster, "old", "1");
    bench.ack(&listener);
    assert_eq!(bench.next(), None);
}

/// Envoy wants the assignment again when a cluster changes, and keeps the old cluster until then.
#[test]
fn changed_cluster_resends_assignment_to_envoy() {
    for (audience, again) in [(Audience::Parts, false), (Audience::Whole, true)] {
        let mut bench = settled(audience);
        bench.set(Cluster, "old", "2");
        let kinds: Vec<_> = bench.drain().iter().map(|sent| sent.kind).collect();
        let expected: &[_] = if again {
            &[Cluster, ClusterLoadAssignment]
        } else {
            &[Cluster]
        };
        assert_eq!(kinds, expected, "{audience:?}");
    }
}

#[test]
fn order_holds_on_a_reconnect_too() {
    let mut bench = settled(Audience::Parts);
    bench.set_all(&[(Cluster, "new", "1"), (Listener, "tls", "to new")]);
    bench.remove(&[(Cluster, "old")]);
    let mut bench = bench.reconnect();
    let had = |name: &str| [(name.to_owned(), "something".to_owned())].into();
    bench.ask(DeltaDiscoveryRequest {
        initial_resource_versions: had("tls"),
        ..delta(Listener)
    });
    bench.ask(DeltaDiscoveryRequest {
        initial_resource_versions: had("old"),
        ..delta(Cluster)
    });
    let kinds: Vec<_> = bench.drain().iter().map(Sent::said).collect();
    assert_eq!(kinds, ["Cluster +new", "Listener +tls", "Cluster -old"]);
}
