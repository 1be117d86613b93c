//! The state-of-the-world variant.

use super::*;

#[test]
fn full_lists_what_there_is() {
    for script in [
        "# lists are whole and sent when they change
            change L/b=1; change L/a=1; want L; lists L 1 1
            change L/a=2; idle # one at a time
            ack; lists L 2 1; ack; idle; change -L/b; lists L 2; ack
            change L/a=3; change L/a=2; idle # reverted",
        "# an empty list is sent once
            want C; lists C; ack; idle",
        "# named types send only changed subscriptions
            change A/a=a A/b=b A/c=c; want A a b none; lists A a b; ack; idle
            change A/c=c2; idle; change A/b=b2; lists A b2
            ack b c none # which also asks for more and for less
            lists A c2; ack; change A/a=a2; idle; change A/none=some; lists A some",
        "# named types are sent in sequential pieces
            limit 250; change R/a=1 R/b=2 R/c=3 R/d=4 R/e=5; want R a b c d e
            lists R 1 2; idle; ack; lists R 3 4; idle; ack; lists R 5; ack; idle",
        "# nothing of a named type is sent without a request
            change R/a=1; want R; idle",
        "# a refused list is sent again when it changes
            change L/a=bad; want L; lists L bad; nack; idle; change L/a=good; lists L good",
        "# a wildcard narrows to names and back
            change C/a=a C/b=b; want C; lists C a b; ack b; lists C b; ack *; lists C a b
            ack b; lists C b; ack () # no names after some is none
            lists C",
        "# a cluster stays listed while a listener uses it
            change C/a=a C/b=b L/tls=to-a; want C; want L; lists C a b
            idle # listeners wait for clusters
            ack; lists L to-a; ack; change L/tls=to-c C/c=c -C/a
            lists C a b c; idle; ack; lists L to-c; idle; ack; lists C b c",
        "# a changed cluster brings its assignment
            change C/a=1 A/a=endpoints; want C; lists C 1; ack; want A a; lists A endpoints; ack
            change C/a=2; lists C 2; ack; lists A endpoints",
    ] {
        Bench::new(Audience::Whole).run(script);
    }
}

#[test]
fn version_depends_on_content_only() {
    let version = |script| {
        let mut bench = Bench::new(Audience::Whole);
        bench.run(script);
        bench.next_full().unwrap().version
    };
    let first = version("change L/a=1; want L");
    let again = "change L/x=1; change L/a=2; change L/a=1; change -L/x; want L";
    assert_eq!(version(again), first);
    assert_ne!(version("change L/a=2; want L"), first);
}

#[test]
fn an_answer_to_an_earlier_response_is_ignored() {
    let mut bench = Bench::new(Audience::Whole);
    bench.run("change L/a=1; want L; lists L 1");
    let earlier = DiscoveryRequest {
        response_nonce: bench.unanswered[0].1.clone(),
        resource_names: strings(&["other"]),
        ..full(Listener)
    };
    bench.run("ack; change L/a=2; lists L 2");
    assert_eq!(bench.ask_full(earlier), Handled::Other);
    bench.run("ack; idle # and neither were its names taken");
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
