//! The incremental variant.

use super::*;

#[test]
fn delta_sends_only_changes() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Cluster, "a", "1");
    bench.set(Cluster, "b", "1");
    bench.subscribe(Cluster, &[]);
    let sent = bench.sends("Cluster +a +b");
    assert_eq!(bench.next(), None, "one batch at a time");
    assert_eq!(bench.ack(&sent), Handled::Acked(Cluster));
    assert_eq!(bench.next(), None);

    bench.set(Cluster, "b", "2");
    bench.acks("Cluster +b");
    bench.set(Cluster, "b", "2");
    assert_eq!(bench.next(), None, "the same again is no change");
}

#[test]
fn changes_merge_while_response_is_outstanding() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Cluster, "a", "1");
    bench.subscribe(Cluster, &[]);
    let sent = bench.next().unwrap();
    for number in 2..50 {
        bench.set(Cluster, "a", &number.to_string());
        bench.set(Cluster, &format!("b{}", number % 3), &number.to_string());
        assert_eq!(bench.next(), None);
    }
    bench.ack(&sent);
    let sent = bench.sends("Cluster +a +b0 +b1 +b2");
    assert_eq!(sent.versions["a"], Version::of(b"49").to_string());
    bench.ack(&sent);
    assert_eq!(bench.next(), None);
}

#[test]
fn reverted_change_is_not_sent() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Cluster, "a", "1");
    bench.subscribe(Cluster, &[]);
    let sent = bench.next().unwrap();
    bench.set(Cluster, "a", "2");
    bench.set(Cluster, "a", "1");
    bench.set(Cluster, "b", "1");
    bench.remove(&[(Cluster, "b")]);
    bench.ack(&sent);
    assert_eq!(bench.next(), None);
}

#[test]
fn empty_type_is_answered_once() {
    let mut bench = Bench::new(Audience::Parts);
    bench.subscribe(Listener, &[]);
    bench.acks("Listener");
    assert_eq!(bench.next(), None);
    bench.subscribe(ClusterLoadAssignment, &[]);
    assert_eq!(bench.next(), None, "nothing was asked for");
}

#[test]
fn names_are_answered_one_by_one() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(ClusterLoadAssignment, "a", "1");
    bench.set(ClusterLoadAssignment, "b", "1");
    bench.subscribe(ClusterLoadAssignment, &["a", "none"]);
    bench.acks("ClusterLoadAssignment +a -none");
    bench.set(ClusterLoadAssignment, "b", "2");
    assert_eq!(bench.next(), None, "not asked for");
    bench.set(ClusterLoadAssignment, "none", "1");
    bench.acks("ClusterLoadAssignment +none");
    bench.unsubscribe(ClusterLoadAssignment, &["a", "never"]);
    bench.set(ClusterLoadAssignment, "a", "2");
    assert_eq!(bench.next(), None);
    bench.subscribe(ClusterLoadAssignment, &["a"]);
    assert_eq!(bench.next().unwrap().set, ["a"]);
}

#[test]
fn resubscribed_resource_is_sent_again() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(ClusterLoadAssignment, "a", "1");
    bench.subscribe(ClusterLoadAssignment, &["a", "none"]);
    bench.drain();
    bench.subscribe(ClusterLoadAssignment, &["a", "none"]);
    bench.sends("ClusterLoadAssignment +a -none");
}

#[test]
fn wildcard_subscribes_and_unsubscribes() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(RouteConfiguration, "a", "1");
    bench.set(RouteConfiguration, "b", "1");
    bench.subscribe(RouteConfiguration, &["*", "a"]);
    let all = bench.drain();
    assert_eq!(all[0].set, ["a", "b"]);

    bench.unsubscribe(RouteConfiguration, &["a"]);
    assert_eq!(bench.drain()[0].set, ["a"], "still covered by the star");
    bench.subscribe(RouteConfiguration, &["a"]);
    bench.drain();
    bench.unsubscribe(RouteConfiguration, &["*"]);
    bench.set(RouteConfiguration, "a", "2");
    bench.set(RouteConfiguration, "b", "2");
    let all = bench.drain();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].set, ["a"]);
}

#[test]
fn names_have_no_effect_beside_wildcard() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Cluster, "a", "1");
    bench.subscribe(Cluster, &[]);
    bench.drain();
    bench.subscribe(Cluster, &["a"]);
    bench.drain();
    bench.set(Cluster, "b", "1");
    assert_eq!(bench.drain()[0].set, ["b"]);
    bench.unsubscribe(Cluster, &["*"]);
    bench.set(Cluster, "b", "2");
    assert_eq!(bench.drain(), []);
}

#[test]
fn a_reconnect_sends_only_what_differs() {
    let mut bench = Bench::new(Audience::Parts);
    for name in ["same", "changed", "gone"] {
        bench.set(Listener, name, "1");
    }
    bench.subscribe(Listener, &[]);
    let mut versions = bench.next().unwrap().versions;
    versions.insert("foreign".into(), "from another server".into());
    bench.set(Listener, "changed", "2");
    bench.set(Listener, "new", "1");
    bench.set(Listener, "foreign", "1");
    bench.remove(&[(Listener, "gone")]);

    let mut bench = bench.reconnect();
    bench.ask(DeltaDiscoveryRequest {
        initial_resource_versions: versions,
        ..delta(Listener)
    });
    let all = bench.drain();
    assert_eq!(all.len(), 1);
    let expected = "Listener +changed +foreign +new -gone";
    assert_eq!(all[0].said(), expected);
}

#[test]
fn a_reconnect_by_names_sends_only_what_differs() {
    let mut bench = Bench::new(Audience::Parts);
    for name in ["a", "b", "c"] {
        bench.set(ClusterLoadAssignment, name, "1");
    }
    bench.subscribe(ClusterLoadAssignment, &["a", "b", "c"]);
    let versions = bench.next().unwrap().versions;
    bench.set(ClusterLoadAssignment, "b", "2");
    let mut bench = bench.reconnect();
    bench.ask(DeltaDiscoveryRequest {
        resource_names_subscribe: strings(&["a", "b", "d"]),
        initial_resource_versions: versions,
        ..delta(ClusterLoadAssignment)
    });
    let sent = bench.next().unwrap();
    let expected = "ClusterLoadAssignment +b -d";
    assert_eq!(sent.said(), expected);
    bench.ack(&sent);
    bench.set(ClusterLoadAssignment, "c", "2");
    assert_eq!(bench.next(), None, "had before, and not asked for now");
}

#[test]
fn refused_resource_is_resent_only_when_changed() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Cluster, "a", "bad");
    bench.subscribe(Cluster, &[]);
    let sent = bench.next().unwrap();
    let refused = Handled::Nacked(Cluster, "no good".into());
    assert_eq!(bench.nack(&sent), refused);
    assert_eq!(bench.next(), None);
    let progress = bench.stream.progress(Cluster);
    assert_eq!(progress.nack.as_deref(), Some("no good"));
    assert_eq!(progress.acked, None);
    bench.set(Cluster, "b", "1");
    let sent = bench.next().unwrap();
    assert_eq!(sent.set, ["b"]);
    bench.ack(&sent);
    bench.set(Cluster, "a", "good");
    assert_eq!(bench.next().unwrap().set, ["a"]);
}

/// One bad resource among many: the others reach the client, in responses that number as the
/// logarithm.
#[test]
fn refused_response_is_bisected() {
    let mut bench = Bench::new(Audience::Parts);
    let names: Vec<String> = (0..100).map(|number| format!("{number:02}")).collect();
    for name in &names {
        bench.set(Listener, name, "1");
    }
    bench.subscribe(Listener, &[]);
    let mut taken = BTreeSet::new();
    let (mut responses, mut resources) = (0, 0);
    while let Some(sent) = bench.next() {
        responses += 1;
        resources += sent.set.len();
        if sent.set.iter().any(|name| name == "42") {
            bench.nack(&sent);
        } else {
            bench.ack(&sent);
            taken.extend(sent.set);
        }
    }
    assert_eq!(taken.len(), 99);
    assert!(responses <= 16, "{responses} responses");
    assert!(resources <= 320, "{resources} resources");
    bench.set(Listener, "07", "2");
    assert_eq!(bench.drain()[0].set, ["07"]);
}

#[test]
fn a_removal_in_a_refused_response_is_not_lost() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Listener, "goes", "1");
    bench.subscribe(Listener, &[]);
    bench.drain();
    bench.store.update(
        vec![resource(Audience::All, Listener, "bad", "1")],
        vec![(Listener, Audience::All, "goes".into())],
    );
    bench.stream.pull(&bench.store, bench.now);
    let sent = bench.sends("Listener +bad -goes");
    bench.nack(&sent);
    let bad = bench.sends("Listener +bad");
    bench.nack(&bad);
    let all = bench.drain();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].said(), "Listener -goes");
}

/// It was refused along with others: that says nothing of its content.
#[test]
fn bisected_resource_is_sent_when_readded() {
    let mut bench = Bench::new(Audience::Parts);
    bench.subscribe(Cluster, &[]);
    bench.drain();
    bench.set_all(&[(Cluster, "a", "1"), (Cluster, "bad", "1")]);
    let sent = bench.next().unwrap();
    bench.remove(&[(Cluster, "a")]);
    bench.nack(&sent);
    let bad = bench.next().unwrap();
    assert_eq!(bad.set, ["bad"]);
    bench.set(Cluster, "a", "1");
    bench.nack(&bad);
    assert_eq!(bench.drain()[0].set, ["a"]);
}

#[test]
fn ack_with_unknown_nonce_is_ignored() {
    let mut bench = Bench::new(Audience::Parts);
    bench.set(Cluster, "a", "1");
    bench.subscribe(Cluster, &[]);
    let sent = bench.next().unwrap();
    bench.set(Cluster, "a", "2");
    for nonce in ["0", "77", "garbage"] {
        let stale = Sent {
            nonce: nonce.into(),
            ..sent.clone()
        };
        assert_eq!(bench.ack(&stale), Handled::Other);
        assert_eq!(bench.nack(&stale), Handled::Other);
        assert_eq!(bench.next(), None, "the response is still outstanding");
    }
    let other = Sent {
        kind: Listener,
        ..sent.clone()
    };
    assert_eq!(bench.ack(&other), Handled::Other);
    bench.ack(&sent);
    assert_eq!(bench.next().unwrap().set, ["a"]);
    assert_eq!(bench.ack(&sent), Handled::Other, "a second time");
}

#[test]
fn a_type_that_is_not_known_is_ignored() {
    let mut bench = Bench::new(Audience::Parts);
    let request = DeltaDiscoveryRequest {
        type_url: "type.googleapis.com/envoy.service.runtime.v3.Runtime".into(),
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(bench.ask(request), Handled::Other);
    assert_eq!(bench.next(), None);
}

#[test]
fn large_change_is_pipelined_in_pieces() {
    let mut bench = Bench::new(Audience::Parts);
    bench.stream.limits.response_bytes = 1000;
    let body = "x".repeat(300);
    let list: Vec<_> = (0..10).map(|number| format!("{number}")).collect();
    let list: Vec<_> = list.iter().map(|name| (Cluster, &**name, &*body)).collect();
    bench.set_all(&list);
    bench.set(Cluster, "huge", &"y".repeat(5000));
    bench.subscribe(Cluster, &[]);
    let pieces: Vec<_> = std::iter::from_fn(|| bench.next()).collect();
    let sizes: Vec<_> = pieces.iter().map(|sent| sent.set.len()).collect();
    assert_eq!(sizes, [2, 2, 2, 2, 2, 1]);
    bench.set(Cluster, "0", "2");
    for sent in pieces.iter().rev() {
        assert_eq!(bench.next(), None, "the pieces are one batch");
        bench.ack(sent);
    }
    assert_eq!(bench.next().unwrap().set, ["0"]);
}

#[test]
fn changed_piece_is_sent_once_while_queued() {
    let mut bench = Bench::new(Audience::Parts);
    bench.stream.limits.response_bytes = 200;
    bench.set_all(&[
        (Cluster, "a", "1"),
        (Cluster, "b", "1"),
        (Cluster, "c", "1"),
    ]);
    bench.subscribe(Cluster, &[]);
    let first = bench.next().unwrap();
    assert_eq!(first.set, ["a"]);
    bench.set(Cluster, "b", "2");
    let sets: Vec<_> = bench
        .drain()
        .into_iter()
        .flat_map(|sent| sent.set)
        .collect();
    assert_eq!(sets, ["b", "c"]);
    bench.ack(&first);
    assert_eq!(bench.next(), None);
}

#[test]
fn clients_wait_until_store_is_complete() {
    let mut bench = Bench::with_store(Audience::Whole, Store::default());
    bench.set(Cluster, "a", "1");
    bench.subscribe_all();
    bench.subscribe(ClusterLoadAssignment, &["a"]);
    assert_eq!(bench.next(), None);
    bench.store.complete();
    bench.stream.pull(&bench.store, bench.now);
    assert_eq!(bench.next(), None, "whole listeners are not there");
    bench.store.whole_complete(true);
    bench.stream.pull(&bench.store, bench.now);
    let kinds: Vec<_> = bench.drain().iter().map(|sent| sent.kind).collect();
    let expected = [Cluster, ClusterLoadAssignment, Listener, WireGuardRoute];
    assert_eq!(kinds, expected);

    bench.store.whole_complete(false);
    bench.remove(&[(Cluster, "a")]);
    bench.set(Cluster, "b", "1");
    assert_eq!(bench.next(), None, "they are being made anew");
    bench.store.whole_complete(true);
    bench.stream.pull(&bench.store, bench.now);
    assert_eq!(bench.next().unwrap().set, ["b"]);
}

#[test]
fn each_class_gets_its_own() {
    for (audience, body) in [(Audience::Parts, "parts"), (Audience::Whole, "whole")] {
        let mut bench = Bench::new(audience);
        bench.set_for(Audience::Parts, Listener, "tls|a", "parts");
        bench.set_for(Audience::Parts, Listener, "tls", "parts");
        bench.set_for(Audience::Whole, Listener, "tls", "whole");
        bench.subscribe(Listener, &[]);
        let sent = bench.drain().remove(0);
        let version = Version::of(body.as_bytes()).to_string();
        assert_eq!(sent.versions["tls"], version);
        assert_eq!(
            sent.set.len(),
            if audience == Audience::Parts { 2 } else { 1 }
        );
        bench.set_for(Audience::Parts, Listener, "tls|a", "2");
        assert_eq!(
            bench.drain().len(),
            usize::from(audience == Audience::Parts)
        );
    }
}

#[test]
fn lagging_stream_compares_everything() {
    let mut bench = Bench::new(Audience::Parts);
    let names: Vec<String> = (0..MAX_CHANGES).map(|nth| nth.to_string()).collect();
    for name in &names {
        bench
            .store
            .update(vec![resource(Audience::All, Listener, name, "1")], vec![]);
    }
    bench.subscribe(Listener, &[]);
    bench.drain();
    let gone = names
        .iter()
        .map(|name| (Listener, Audience::All, Arc::from(&**name)));
    bench.store.update(vec![], gone.collect());
    bench
        .store
        .update(vec![resource(Audience::All, Listener, "new", "1")], vec![]);
    bench.stream.pull(&bench.store, bench.now);
    let all = bench.drain();
    let removed: usize = all.iter().map(|sent| sent.removed.len()).sum();
    assert_eq!(removed, names.len());
    let set: Vec<_> = all.iter().flat_map(|sent| &sent.set).collect();
    assert_eq!(set, ["new"]);
}

#[test]
fn names_are_bounded() {
    let mut bench = Bench::new(Audience::Parts);
    let names: Vec<String> = (0..1001).map(|number| number.to_string()).collect();
    let request = |names: &[String]| DeltaDiscoveryRequest {
        resource_names_subscribe: names.to_vec(),
        ..delta(ClusterLoadAssignment)
    };
    bench.ask(request(&names[..1000]));
    let now = bench.now;
    let refused = Delta::on_request(
        &mut bench.stream,
        &bench.store,
        now,
        request(&names[1000..]),
    );
    assert_eq!(
        refused,
        Err(Excess::Names {
            kind: ClusterLoadAssignment,
            limit: 1000
        })
    );
}

#[test]
fn bytes_of_names_are_bounded() {
    let mut bench = Bench::new(Audience::Parts);
    let now = bench.now;
    let long = |number: usize, bytes: usize| format!("{number}{}", "n".repeat(bytes - 1));
    let request = |names: Vec<String>| DeltaDiscoveryRequest {
        resource_names_subscribe: names,
        ..delta(ClusterLoadAssignment)
    };
    let refused = Delta::on_request(
        &mut bench.stream,
        &bench.store,
        now,
        request(vec![long(1, 2049)]),
    );
    assert_eq!(refused, Err(Excess::Name));
    for number in 0..5 {
        bench.ask(request(vec![long(number, 2000)]));
        bench.ask(request(vec![long(number, 2000)]));
    }
    bench.unsubscribe(ClusterLoadAssignment, &[&long(0, 2000)]);
    bench.ask(request(vec![long(5, 2000)]));
    let refused = Delta::on_request(
        &mut bench.stream,
        &bench.store,
        now,
        request(vec![long(6, 1)]),
    );
    assert_eq!(refused, Err(Excess::NameBytes { limit: 10_000 }));

    let mut bench = Bench::new(Audience::Parts);
    bench.set_all(&[(Cluster, "a", "1")]);
    bench.subscribe(Cluster, &[]);
    let sent = bench.next().unwrap();
    bench.ask(DeltaDiscoveryRequest {
        response_nonce: sent.nonce,
        error_detail: Some(RpcStatus {
            code: 3,
            message: "n".repeat(100_000),
        }),
        ..delta(Cluster)
    });
    let kept = bench.stream.progress(Cluster).nack.as_ref().unwrap();
    assert_eq!(kept.len(), MAX_NACK_BYTES);
}
