//! Tests of what is recognised; the shapes themselves are tried where they are translated.

use super::*;

#[test]
fn cluster_names_are_those_of_services() {
    let parsed =
        |text: &str| ClusterName::parse(text).map(|name| format!("{} {}", name.service, name.port));
    for (text, expected) in [
        (
            "outbound|443||kube-apiserver.a.svc.cluster.local",
            Some("a/kube-apiserver 443"),
        ),
        ("outbound|443|v1|kube-apiserver.a.svc.cluster.local", None),
        ("outbound|0||kube-apiserver.a.svc.cluster.local", None),
        ("outbound|443||kube-apiserver.a.b.svc.cluster.local", None),
        ("outbound|443||kube-apiserver.svc.cluster.local", None),
        ("outbound|443||kube-apiserver", None),
        ("outbound|443||example.org", None),
        ("inbound|443||kube-apiserver.a.svc.cluster.local", None),
        ("a--kube-apiserver-socket", None),
    ] {
        assert_eq!(parsed(text).as_deref(), expected, "{text}");
    }
}

#[test]
fn a_pattern_matches_whole_values() {
    let pattern = ValuePattern::new("a|b.").unwrap();
    let matched = ["a", "bx", "ax", "xa", "b", "a\n"].map(|value| pattern.matches(value));
    assert_eq!(matched, [true, true, false, false, false, false]);
    assert!(ValuePattern::new("(").is_err());
    assert_eq!(
        ValuePattern::new("a").unwrap(),
        ValuePattern::new("a").unwrap()
    );
    assert_ne!(ValuePattern::new("a").unwrap(), pattern);
}

#[test]
fn envoy_filter_accepts_both_spellings() {
    assert_eq!(read::snake("filterChainMatch"), "filter_chain_match");
    assert_eq!(read::snake("filter_chain_match"), "filter_chain_match");
    assert_eq!(
        read::snake("http2ProtocolOptions"),
        "http2_protocol_options"
    );
}
