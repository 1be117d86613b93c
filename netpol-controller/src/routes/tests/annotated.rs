//! Routes that Services ask for themselves.

use serde_json::{Map, Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::{GatewayEntry, Group, group};
use crate::state::{Kind, Protocol, TargetPort};

const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const OTHER_KEY: &str = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn annotated(service: Value, annotations: &[(&str, &str)]) -> Value {
    let all = annotations
        .iter()
        .map(|(key, value)| (format!("rhizome.gardener.cloud/{key}"), json!(value)));
    annotate(service, Value::Object(all.collect::<Map<_, _>>()))
}

fn found(settings: &[GatewayEntry], service: Value, annotations: &[(&str, &str)]) -> Group {
    let state = state(&[annotated(service, annotations)]);
    group(&state, settings, "a")
}

fn plain() -> Value {
    service("a/api", &["https:443:6443"])
}

const CLUSTER: &str = "outbound|443||api.a.svc.cluster.local";

#[test]
fn every_annotation_is_a_route() {
    let vpn = service(
        "a/vpn",
        &[
            "openvpn:1194",
            "metrics:15000",
            "wg-plain:51820",
            "wg:51821",
        ],
    );
    let own = found(
        &one(),
        vpn,
        &[
            ("server-names", "A.example.com., *.b.example.com"),
            (
                "destinations",
                "10.1.2.3, 10.2.0.0/16, 10.3.0.0/16:6443, [fd00::1]:443, fd00:1::/64",
            ),
            (
                "connect-destination",
                "outbound|1194||vpn.a.svc.cluster.local, mine",
            ),
            ("wireguard-public-keys", &format!("{KEY},{OTHER_KEY}")),
            ("wireguard-route-id", "17"),
            ("port", "openvpn"),
        ],
    );
    let tcp = "outbound|1194||vpn.a.svc.cluster.local";
    let expected = [
        "connect mine".to_owned(),
        format!("connect {tcp}"),
        "destination 10.1.2.3/32 None".to_owned(),
        "destination 10.2.0.0/16 None".to_owned(),
        "destination 10.3.0.0/16 Some(6443)".to_owned(),
        "destination fd00:1::/64 None".to_owned(),
        "destination fd00::1/128 Some(443)".to_owned(),
        "names a.example.com *.b.example.com".to_owned(),
    ];
    let mut expected: Vec<_> = expected
        .iter()
        .map(|one| format!("{one} -> {tcp}"))
        .collect();
    expected.push("wireguard 2 Some(17) -> udp|51821||vpn.a.svc.cluster.local".to_owned());
    assert_eq!(of(&own, 0), expected);
    assert_eq!(problems(&own), [""; 0]);
    let routed: Vec<_> = own.routed.values().flatten().cloned().collect();
    let ports: Vec<_> = routed
        .into_iter()
        .map(|one| (one.protocol, one.target))
        .collect();
    let number = TargetPort::Number;
    assert_eq!(
        ports,
        [
            (Protocol::Tcp, number(1194)),
            (Protocol::Udp, number(51821))
        ]
    );
}

#[test]
fn annotated_port_defaults_to_443_or_https() {
    let names = ("server-names", "a.example.com");
    for (ports, named, expected) in [
        (&["x:6443"][..], None, Some(6443)),
        (&["x:80", "y:443"], None, Some(443)),
        (&["x:80", "https:6443"], None, Some(6443)),
        (&["x:80", "y:6443"], None, None),
        (&["x:80", "y:6443"], Some("6443"), Some(6443)),
        (&["x:80", "y:6443"], Some("y"), Some(6443)),
        (&["x:80", "y:443"], Some("81"), None),
        (&["x:443", "wg:51821"], None, Some(443)),
        (&["wg:51821"], None, None),
    ] {
        let mut annotations = vec![names];
        annotations.extend(named.map(|named| ("port", named)));
        let own = found(&one(), service("a/api", ports), &annotations);
        let route = expected
            .map(|port| format!("names a.example.com -> outbound|{port}||api.a.svc.cluster.local"));
        assert_eq!(of(&own, 0), Vec::from_iter(route), "{ports:?} {named:?}");
        assert_eq!(
            problems(&own).is_empty(),
            expected.is_some(),
            "{ports:?} {named:?}"
        );
    }
}

#[test]
fn a_value_that_names_a_port_leads_there() {
    let vpn = service("a/vpn", &["openvpn:1194", "https:443"]);
    let value = "outbound|1194||vpn.a.svc.cluster.local";
    let own = found(&one(), vpn, &[("connect-destination", value)]);
    assert_eq!(of(&own, 0), [format!("connect {value} -> {value}")]);
}

#[test]
fn bad_elements_are_reported_and_rest_is_kept() {
    for (annotation, value, place, left) in [
        (
            "server-names",
            "a.example.com,b_..c,c.example.com",
            2,
            "names a.example.com c.example.com",
        ),
        ("server-names", "a.example.com,", 2, "names a.example.com"),
        (
            "destinations",
            "10.1.2.3/33,10.1.2.3",
            1,
            "destination 10.1.2.3/32 None",
        ),
        (
            "destinations",
            "10.1.2.3/24,10.1.2.3",
            1,
            "destination 10.1.2.3/32 None",
        ),
        (
            "destinations",
            "10.1.2.3,10.1.2.4:0",
            2,
            "destination 10.1.2.3/32 None",
        ),
        (
            "destinations",
            "10.1.2.3,[fd00::1",
            2,
            "destination 10.1.2.3/32 None",
        ),
        (
            "destinations",
            "10.1.2.3,[fd00::1]",
            2,
            "destination 10.1.2.3/32 None",
        ),
        (
            "destinations",
            "10.1.2.3,10.1.2.4:+5",
            2,
            "destination 10.1.2.3/32 None",
        ),
        ("connect-destination", ",mine", 1, "connect mine"),
    ] {
        let own = found(&one(), plain(), &[(annotation, value)]);
        assert_eq!(of(&own, 0), [format!("{left} -> {CLUSTER}")], "{value}");
        let [problem] = &own.problems[..] else {
            panic!("{value}: {:?}", problems(&own))
        };
        assert_eq!(problem.reason, Reason::InvalidAnnotation);
        let at = format!("rhizome.gardener.cloud/{annotation}: element {place}: ");
        assert!(problem.message.starts_with(&at), "{}", problem.message);
    }
}

#[test]
fn one_wrong_annotation_keeps_the_others() {
    let own = found(
        &one(),
        plain(),
        &[
            ("server-names", "not a name"),
            ("destinations", "10.1.2.3"),
            ("server-name", "x.example.com"),
        ],
    );
    assert_eq!(
        of(&own, 0),
        [format!("destination 10.1.2.3/32 None -> {CLUSTER}")]
    );
    assert_eq!(count(&own, Reason::InvalidAnnotation, Kind::Service), 2);
}

#[test]
fn wireguard_numbers_and_keys_are_strict() {
    let wg = || service("a/vpn", &["wg:51821"]);
    for (keys, id, expected) in [
        (KEY, "1", Some("wireguard 1 Some(1)")),
        (KEY, "1048575", Some("wireguard 1 Some(1048575)")),
        (KEY, "1048576", Some("wireguard 1 None")),
        (KEY, "0", Some("wireguard 1 None")),
        (KEY, "0x11", Some("wireguard 1 None")),
        (&KEY[1..], "17", Some("wireguard 0 Some(17)")),
        (&KEY[1..], "no", None),
    ] {
        let own = found(
            &one(),
            wg(),
            &[("wireguard-public-keys", keys), ("wireguard-route-id", id)],
        );
        let route = expected.map(|one| format!("{one} -> udp|51821||vpn.a.svc.cluster.local"));
        assert_eq!(of(&own, 0), Vec::from_iter(route), "{keys} {id}");
    }
    let two = service("a/vpn", &["wg-a:1", "wg-b:2"]);
    let own = found(&one(), two, &[("wireguard-route-id", "17")]);
    assert_eq!(of(&own, 0), [""; 0]);
    assert_eq!(count(&own, Reason::RouteNotTranslated, Kind::Service), 1);
}

#[test]
fn gateways_are_all_or_those_named() {
    let mut settings = one();
    settings.push(entry("internal", "internal", &[("istio", "internal")]));
    for (named, expected, wrong) in [
        (None, [true, true], 0),
        (Some("internal"), [false, true], 0),
        (Some("default, internal"), [true, true], 0),
        (Some("defalt,internal"), [false, true], 1),
        (Some(""), [false, false], 1),
    ] {
        let mut annotations = vec![("server-names", "a.example.com")];
        annotations.extend(named.map(|named| ("gateways", named)));
        let own = found(&settings, plain(), &annotations);
        let has = [0, 1].map(|index| !of(&own, index).is_empty());
        assert_eq!(has, expected, "{named:?}");
        assert_eq!(
            count(&own, Reason::InvalidAnnotation, Kind::Service),
            wrong,
            "{named:?}"
        );
    }
}

#[test]
fn gardener_names_belong_to_their_namespace() {
    let values = "outbound|443||kube-apiserver.shoot--b.svc.cluster.local, \
                  shoot--b--kube-apiserver-socket, outbound|443|v1|api.a.svc.cluster.local, \
                  outbound|443||api.a.svc.cluster.local, a--kube-apiserver-socket, free";
    let own = found(&one(), plain(), &[("connect-destination", values)]);
    let expected = ["a--kube-apiserver-socket", "free", CLUSTER];
    assert_eq!(
        of(&own, 0),
        expected.map(|value| format!("connect {value} -> {CLUSTER}"))
    );
    let reported = [
        "only a Service in namespace shoot--b",
        "only a Service in namespace shoot--b",
        "no TCP port",
    ];
    let found = problems(&own);
    assert_eq!(found.len(), reported.len(), "{found:?}");
    for (place, reported) in reported.iter().enumerate() {
        let element = format!("connect-destination: element {}: ", place + 1);
        assert!(
            found
                .iter()
                .any(|one| one.contains(&element) && one.contains(reported)),
            "{found:?}"
        );
    }
}

#[test]
fn a_list_is_bounded() {
    let values: Vec<_> = (0..257).map(|value| format!("v{value}")).collect();
    let own = found(
        &one(),
        plain(),
        &[("connect-destination", &values.join(","))],
    );
    assert_eq!(of(&own, 0).len(), 256);
    assert!(problems(&own)[0].contains("there may be 256 elements"));
}

#[test]
fn problems_are_few_when_elements_are_many() {
    // As many as an annotation holds; only the first 256 elements are read.
    let many = "x,".repeat(131_000);
    for name in ["gateways", "server-names", "destinations"] {
        let own = found(&one(), plain(), &[(name, &many)]);
        let reported = count(&own, Reason::InvalidAnnotation, Kind::Service);
        assert!((1..=20).contains(&reported), "{name}: {reported}");
    }
    let late = format!("{}default", "x,".repeat(256));
    let names = ("server-names", "a.example.com");
    let own = found(&one(), plain(), &[names, ("gateways", &late)]);
    assert_eq!(of(&own, 0), [""; 0]);
}

#[test]
fn long_value_is_reported_and_not_sent() {
    let long = "x".repeat(xds::MAX_NAME_BYTES + 1);
    let values = format!("good,{long}");
    let own = found(&one(), plain(), &[("connect-destination", &values)]);
    assert_eq!(of(&own, 0), [format!("connect good -> {CLUSTER}")]);
    let reported = problems(&own);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].ends_with("element 2: it is longer than 2048 bytes"),
        "{reported:?}"
    );
}

#[test]
fn ports_are_cut_when_a_namespace_has_many() {
    let mut state = state(&[]);
    for index in 0..17_u16 {
        let ports: Vec<String> = (1..=256).map(|port| format!("p{port}:{port}")).collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        let value = |port| format!("outbound|{port}||s{index}.a.svc.cluster.local");
        let values: Vec<String> = (1..=256).map(value).collect();
        let service = service(&format!("a/s{index}"), &ports);
        let values = [("connect-destination", &*values.join(","))];
        apply(&mut state, &annotated(service, &values));
    }
    let own = group(&state, &one(), "a");
    assert_eq!(own.gateways[0].clusters.len(), 4096);
    assert_eq!(count(&own, Reason::RouteNotTranslated, Kind::Service), 1);
}
