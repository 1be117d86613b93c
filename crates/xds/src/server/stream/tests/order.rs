//! What waits for what: nothing refers to what is not there, nothing goes while it is referred to.

use super::*;

/// A client that has a cluster with its assignment and a listener that routes to it.
fn settled(audience: Audience) -> Bench {
    let script = "change C/old=1 A/old=1 L/tls=old; ask C; ask L; sends C +old
        idle # listeners wait for clusters
        ask A old; ack; acks A +old; acks L +tls; idle";
    let mut bench = Bench::new(audience);
    bench.run(script);
    bench
}

#[test]
fn nothing_refers_to_what_is_not_there() {
    for script in [
        "# a listener waits for cluster and assignment (as our client does it: names first, then the acknowledgement)
            change L/tls=new C/new=1 A/new=1; sends C +new; idle; ask A new; ack
            sends A +new; idle; ack; sends L +tls",
        "# a listener waits for an assignment that is asked for late (as Envoy does it)
            change L/tls=new C/new=1 A/new=1; acks C +new; idle # the client is going to ask
            ask A new; sends A +new; idle; ack; sends L +tls",
        "# an assignment that is not asked for delays only once
            change L/tls=new C/new=1 A/new=1; acks C +new; idle; due; wait; acks L +tls
            change L/tls=others; sends L +tls",
        "# a cluster goes after what routed to it
            change L/tls=none -C/old -A/old; sends L +tls; idle; ack; acks C -old; acks A -old
            idle",
        "# the removal of a cluster does not wait forever
            change -L/tls -C/old; sends L -tls; idle; due; wait; sends C -old",
        "# a refused cluster does not block others
            change L/tls=new C/new=bad; sends C +new; nack; sends L +tls",
        "# endpoints do not wait for listeners
            change L/tls=2; sends L +tls; change A/old=2; sends A +old",
        "# a changed listener waits for its new clusters
            change C/a=1 L/tls=a; sends C +a; change C/b=1 L/tls=b; ack; sends C +b; idle
            ack; sends L +tls",
        "# a cluster that is restored before its removal is kept
            change L/tls=2; change -C/old; sends L +tls; change C/old=1; ack; idle",
        "# order holds on a reconnect too
            change C/new=1 L/tls=new; change -C/old; reconnect
            ask L with tls=?; ask C with old=?; acks C +new; acks L +tls; acks C -old; idle",
        "# a changed cluster does not resend its assignment
            change C/old=2; acks C +old; idle",
    ] {
        settled(Audience::Parts).run(script);
    }
    settled(Audience::Whole).run(
        "# Envoy wants the assignment again when a cluster changes, and keeps the old one until then
        change C/old=2; acks C +old; acks A +old; idle",
    );
    Bench::new(Audience::Parts).run(
        "# a listener waits until a refused cluster was sent alone
        change C/a=1 C/b=1 L/tls=a; ask C; ask L; sends C +a +b; nack
        acks C +a; acks C +b; acks L +tls; idle",
    );
}

#[test]
fn partial_responses_announce_more() {
    for script in [
        "# all but the last of a first state
            limit 400; change C/0=1 C/1=1 C/2=1 C/3=1 L/0=1 L/1=1 L/2=1 L/3=1; ask C; ask L; ask W
            sends C +0 +1 +2; more yes; ack; sends C +3; more yes; ack
            sends L +0 +1 +2; more yes; ack; sends L +3; more yes; ack
            sends W; more no # nothing, but that is said
            ack # a change that fits is whole, one that does not is not before its end
            change C/1=2; sends C +1; more no; ack
            change L/0=2 L/1=2 L/2=2 L/3=2; sends L +0 +1 +2; more yes; ack; sends L +3; more no",
        "# an announcement is retracted when nothing is left to follow
            limit 200; change A/a=1 A/b=1; ask A a b; sends A +a; more yes
            drop A b; sends A; more no; ack; ack; idle",
    ] {
        Bench::new(Audience::Parts).run(script);
    }
}

#[test]
fn changing_endpoints_do_not_delay_listeners() {
    let mut bench = settled(Audience::Parts);
    bench.set(Listener, "tls", "2");
    let mut listeners = 0;
    for number in 0..10 {
        bench.set(ClusterLoadAssignment, "old", &number.to_string());
        let assignment = bench.next().unwrap();
        assert_eq!(assignment.kind, ClusterLoadAssignment);
        bench.set(ClusterLoadAssignment, "old", &format!("{number} again"));
        if let Some(sent) = bench.next() {
            assert_eq!(sent.kind, Listener);
            listeners += 1;
            bench.ack(&sent);
        }
        bench.ack(&assignment);
    }
    assert_eq!(listeners, 1);
}
