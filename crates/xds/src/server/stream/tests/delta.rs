//! The incremental variant.

use super::*;

#[test]
fn delta_sends_what_differs() {
    for script in [
        "# only changes are sent
            change C/a=1; change C/b=1; ask C; sends C +a +b
            idle # one batch at a time
            ack; idle; change C/b=2; acks C +b
            change C/b=2; idle # the same again is no change",
        "# a reverted change is not sent
            change C/a=1; ask C; sends C +a
            change C/a=2; change C/a=1; change C/b=1; change -C/b; ack; idle",
        "# an empty type is answered once
            ask L; acks L; idle; ask A; idle",
        "# names are answered one by one
            change A/a=1 A/b=1; ask A a none; acks A +a -none
            change A/b=2; idle # not asked for
            change A/none=1; acks A +none
            drop A a never; change A/a=2; idle; ask A a; sends A +a",
        "# a secret that may still come is not said to be absent, and nothing waits for it
            secrets no; change S/a=1; ask S a b c with c=?; sends S +a; more no; ack; idle
            change L/tls=1; ask L; acks L +tls; change S/b=1; acks S +b; idle
            secrets yes; acks S -c; idle",
        "# absent secrets that were asked for are answered together
            secrets no; ask S a b; idle; drop S a; ask S c; idle; secrets yes; sends S -b -c",
        "# a resubscribed resource is sent again
            change A/a=1; ask A a none; acks A +a -none; ask A a none; sends A +a -none",
        "# a wildcard subscribes and unsubscribes
            change R/a=1 R/b=1; ask R * a; acks R +a +b
            drop R a; acks R +a # still covered by the star
            ask R a; acks R +a; drop R *; change R/a=2 R/b=2; acks R +a; idle",
        "# names have no effect beside a wildcard
            change C/a=1; ask C; acks C +a; ask C a; acks C +a; change C/b=1; acks C +b
            drop C *; change C/b=2; idle",
        "# a reconnect sends only what differs
            change L/same=1 L/changed=1 L/gone=1; ask L; sends L +changed=1 +gone=1 +same=1
            change L/changed=2 L/new=1 L/foreign=1 -L/gone; reconnect
            ask L with same=1 changed=1 gone=1 foreign=?
            acks L +changed=2 +foreign +new -gone; idle",
        "# a reconnect by names sends only what differs
            change A/a=1 A/b=2 A/c=1; ask A a b d with a=1 b=1 c=1; acks A +b -d
            change A/c=2; idle # had before, and not asked for now",
        "# a refused resource is sent again only when it changes
            change C/a=bad; ask C; sends C +a; nack; idle
            change C/b=1; acks C +b; change C/a=good; sends C +a",
        "# a removal in a refused response is not lost
            change L/goes=1; ask L; acks L +goes; change L/bad=1 -L/goes; sends L +bad -goes; nack
            sends L +bad; nack; acks L -goes; idle",
        "# a resource that was refused along with others is sent when it is added again
            ask C; acks C; change C/a=1 C/bad=1; sends C +a +bad; change -C/a; nack
            sends C +bad; change C/a=1; nack; acks C +a",
        "# a changed piece is sent once while it is queued
            limit 200; change C/a=1 C/b=1 C/c=1; ask C; sends C +a; change C/b=2
            sends C +b=2; sends C +c; idle; ack; ack; ack; idle",
        "# each audience gets its own
            change parts:L/tls|a=1 parts:L/tls=parts whole:L/tls=whole; ask L
            acks L +tls=parts +tls|a; change parts:L/tls|a=2; acks L +tls|a",
    ] {
        Bench::new(Audience::Parts).run(script);
    }
}

#[test]
fn sotw_client_gets_complete_listeners() {
    Bench::new(Audience::Whole).run(
        "change parts:L/tls|a=1 parts:L/tls=parts whole:L/tls=whole; ask L
        acks L +tls=whole; change parts:L/tls|a=2; idle",
    );
    Bench::with_store(Audience::Whole, Store::default()).run(
        "change C/a=1; ask C; ask L; ask W; ask A a; idle
        complete; idle # whole listeners are not there
        whole yes; acks C +a; acks A -a; acks L; acks W
        whole no; change -C/a; change C/b=1; idle # they are being made again
        whole yes; sends C +b",
    );
}

#[test]
fn changes_merge_while_response_is_outstanding() {
    let mut bench = Bench::new(Audience::Parts);
    bench.run("change C/a=1; ask C; sends C +a");
    for number in 2..50 {
        bench.set(Cluster, "a", &number.to_string());
        bench.set(Cluster, &format!("b{}", number % 3), &number.to_string());
        assert_eq!(bench.next(), None);
    }
    bench.run("ack; acks C +a=49 +b0 +b1 +b2; idle");
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
    bench.run("ask L");
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
fn ack_with_unknown_nonce_is_ignored() {
    let mut bench = Bench::new(Audience::Parts);
    bench.run("change C/a=1; ask C");
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
    for number in 0..10 {
        bench.set(Cluster, &number.to_string(), &body);
    }
    bench.set(Cluster, "huge", &"y".repeat(5000));
    bench.run("ask C");
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
fn lagging_stream_compares_everything() {
    let mut bench = Bench::new(Audience::Parts);
    let names: Vec<String> = (0..MAX_CHANGES).map(|nth| nth.to_string()).collect();
    for name in &names {
        bench.set(Listener, name, "1");
    }
    bench.run("ask L");
    bench.drain();
    let gone = names
        .iter()
        .map(|name| (Listener, Audience::All, Arc::from(&**name)));
    bench.store.update(vec![], gone.collect());
    bench.set(Listener, "new", "1");
    let all = bench.drain();
    let removed: usize = all.iter().map(|sent| sent.removed.len()).sum();
    assert_eq!(removed, names.len());
    let set: Vec<_> = all.iter().flat_map(|sent| &sent.set).collect();
    assert_eq!(set, ["new"]);
}

#[test]
fn names_are_bounded() {
    let subscribe = |names: Vec<String>| DeltaDiscoveryRequest {
        resource_names_subscribe: names,
        ..delta(ClusterLoadAssignment)
    };
    let refused = |bench: &mut Bench, names: Vec<String>| {
        let request = subscribe(names);
        Delta::on_request(&mut bench.stream, &bench.store, bench.now, request).unwrap_err()
    };
    let mut bench = Bench::new(Audience::Parts);
    bench.ask(subscribe((0..1000).map(|nth| nth.to_string()).collect()));
    let (kind, limit) = (ClusterLoadAssignment, 1000);
    let one_more = refused(&mut bench, vec!["more".to_owned()]);
    assert_eq!(one_more, Excess::Names { kind, limit });

    let mut bench = Bench::new(Audience::Parts);
    let long = |number: usize, bytes: usize| format!("{number}{}", "n".repeat(bytes - 1));
    assert_eq!(refused(&mut bench, vec![long(1, 2049)]), Excess::Name);
    for number in 0..5 {
        bench.ask(subscribe(vec![long(number, 2000)]));
        bench.ask(subscribe(vec![long(number, 2000)]));
    }
    bench.run(&format!("drop A {}", long(0, 2000)));
    bench.ask(subscribe(vec![long(5, 2000)]));
    let one_more = refused(&mut bench, vec![long(6, 1)]);
    assert_eq!(one_more, Excess::NameBytes { limit: 10_000 });
}

#[test]
fn text_of_a_nack_is_cut() {
    let mut bench = Bench::new(Audience::Parts);
    bench.run("change C/a=1; ask C; sends C +a");
    bench.ask(DeltaDiscoveryRequest {
        response_nonce: bench.unanswered[0].1.clone(),
        error_detail: Some(RpcStatus {
            code: 3,
            message: "n".repeat(100_000),
        }),
        ..delta(Cluster)
    });
    let kept = bench.stream.progress(Cluster).nack.as_ref().unwrap();
    assert_eq!(kept.len(), MAX_NACK_BYTES);
}
