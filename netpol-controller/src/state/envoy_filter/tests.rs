//! Tests of what is recognised; the shapes themselves are tried where they are translated.

use serde_json::{Value, json};

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

fn filter(patches: &[Value]) -> EnvoyFilterSpec {
    serde_json::from_value(json!({ "configPatches": patches })).unwrap()
}

/// A CONNECT route by a header that an expression matches.
fn route(regex: &str) -> Value {
    let header = json!({ "name": "Reversed-VPN", "safe_regex_match": { "regex": regex } });
    json!({
        "match": { "connect_matcher": {}, "headers": [header] },
        "route": { "cluster_header": "Reversed-VPN" },
    })
}

fn http(routes: &[Value]) -> Value {
    let config = json!({
        "@type": "x/HttpConnectionManager",
        "route_config": { "virtual_hosts": [{ "routes": routes }] },
    });
    let patch = json!({ "operation": "MERGE", "value": { "typed_config": config } });
    json!({ "applyTo": "NETWORK_FILTER", "patch": patch })
}

/// A restriction by headers that expressions match.
fn rbac(regexes: &[String]) -> Value {
    let header = |regex| json!({ "header": { "name": "Reversed-VPN", "safe_regex_match": { "regex": regex } } });
    let headers: Vec<Value> = regexes.iter().map(header).collect();
    let policy = json!({ "permissions": headers, "principals": [{ "any": true }] });
    let config = json!({ "@type": "x/rbac.v3.RBAC", "rules": { "policies": { "p": policy } } });
    let patch = json!({ "operation": "INSERT_FIRST", "value": { "typed_config": config } });
    json!({ "applyTo": "NETWORK_FILTER", "patch": patch })
}

#[test]
fn filter_has_at_most_64_patterns() {
    let texts: Vec<String> = (0..65).map(|index| format!("a{index}.*")).collect();
    let routes: Vec<Value> = texts.iter().map(|text| route(text)).collect();
    // One object has them all, whatever the number of its patches.
    for patches in [
        vec![http(&routes)],
        routes
            .iter()
            .map(|one| http(std::slice::from_ref(one)))
            .collect(),
    ] {
        let found = filter(&patches).patches;
        assert_eq!(found.len(), 65);
        let followed = found
            .iter()
            .take_while(|one| matches!(one, FilterPatch::Connect(_)));
        assert_eq!(followed.count(), 64);
        let FilterPatch::Unknown(why) = &found[64] else {
            panic!("{:?}", found[64]);
        };
        assert!(why.contains("more than 64 regular expressions"), "{why}");
    }
    // A restriction is not lost with them: what it admits is not known.
    for (count, understood) in [(64, true), (65, false)] {
        let found = filter(&[rbac(&texts[..count])]).patches;
        let FilterPatch::Restrict(own) = &found[0] else {
            panic!("{found:?}");
        };
        assert_eq!(own.access.is_ok(), understood, "{:?}", own.access);
    }
}

#[test]
fn pattern_is_refused_when_too_large() {
    for text in ["a{200000}".to_owned(), "a".repeat(4097)] {
        assert!(ValuePattern::new(&text).is_err(), "{text:.20}");
    }
    assert!(ValuePattern::new(&"a".repeat(4096)).is_ok());
}

#[test]
fn pattern_is_compiled_when_asked_about_a_value() {
    let found = filter(&[http(&[route("a*")]), rbac(&["b*".to_owned()])]).patches;
    let [FilterPatch::Connect(connect), FilterPatch::Restrict(_)] = &found[..] else {
        panic!("{found:?}");
    };
    let ConnectValue::Matches(pattern) = &connect.value else {
        panic!("{connect:?}");
    };
    assert!(pattern.matches("") && pattern.compiled.get().is_none());
    assert!(pattern.matches("aa") && pattern.compiled.get().is_some());
}
