//! Who may connect: RBAC filters, in the shapes of Gardener's ACL extension.

use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::{Group, Table, group};
use crate::state::{ClusterState, Kind};

const HOST: &str = "api.bar.foo.example.com";
const INTERNAL: &str = "api.bar.foo.internal.example.com";
const OTHER: &str = "shoot--foo--other";

fn ranges(kind: &str, all: &[&str]) -> Value {
    let all = all.iter().map(|range| {
        let (address, len) = range.split_once('/').unwrap();
        let len: u8 = len.parse().unwrap();
        json!({kind: {"address_prefix": address, "prefix_len": len}})
    });
    Value::Array(all.collect())
}

/// An RBAC filter of rules, at a place.
fn rbac(key: &str, layer: &str, listener: &Value, rules: &Value) -> Value {
    let package = if layer == "NETWORK_FILTER" {
        "network"
    } else {
        "http"
    };
    let spec = json!({
        "workloadSelector": {"labels": {"app": "istio-ingressgateway", "istio": "ingressgateway"}},
        "configPatches": [{
            "applyTo": layer,
            "match": {"context": "GATEWAY", "listener": listener},
            "patch": {"operation": "INSERT_FIRST", "value": {
                "name": "acl",
                "typed_config": {
                    "@type": format!("type.googleapis.com/envoy.extensions.filters.{package}.rbac.v3.RBAC"),
                    "rules": rules,
                    "stat_prefix": "envoyrbac",
                },
            }},
        }],
    });
    istio("EnvoyFilter", key, spec)
}

fn any_of(principals: &Value) -> Value {
    let policy = json!({"permissions": [{"any": true}], "principals": principals});
    json!({"action": "ALLOW", "policies": {"acl": policy}})
}

/// The filter for an API server's name.
fn by_name(key: &str, name: &str, principals: &Value) -> Value {
    let listener = json!({"filterChain": {"sni": name}});
    rbac(key, "NETWORK_FILTER", &listener, &any_of(principals))
}

/// The filter of one shoot for CONNECT requests: `action` is left out, as its default is ALLOW.
fn by_header(key: &str, port: u16, shoot: &str, principals: &Value) -> Value {
    let name = if port == 8443 {
        "X-Gardener-Destination"
    } else {
        "reversed-vpn"
    };
    let own = json!({"header": {"name": name, "string_match": {"contains": format!(".{shoot}.")}}});
    let rules = json!({"policies": {
        "inverse": {
            "permissions": [{"not_rule": own}],
            "principals": ranges("remote_ip", &["0.0.0.0/0"]),
        },
        "own": {"permissions": [own], "principals": principals},
    }});
    let listener = json!({"name": format!("0.0.0.0_{port}")});
    rbac(key, "HTTP_FILTER", &listener, &rules)
}

/// The older filter for all shoots at once.
fn of_all(shoots: &[(&str, &Value)]) -> Value {
    let header = |shoot: &str| json!({"header": {"name": "reversed-vpn", "string_match": {"contains": shoot}}});
    let not: Vec<Value> = shoots
        .iter()
        .map(|(shoot, _)| json!({"not_id": header(shoot)}))
        .collect();
    let mut policies = json!({"acl-vpn-inverse": {
        "permissions": [{"any": true}],
        "principals": [{"and_ids": {"ids": not}}],
    }});
    for (shoot, principals) in shoots {
        let both = json!([{"or_ids": {"ids": principals}}, header(shoot)]);
        policies[*shoot] = json!({
            "permissions": [{"any": true}],
            "principals": [{"and_ids": {"ids": both}}],
        });
    }
    let listener = json!({"name": "0.0.0.0_8132"});
    let rules = json!({"action": "ALLOW", "policies": policies});
    rbac("istio-ingress/acl-all", "HTTP_FILTER", &listener, &rules)
}

/// Two shoots whose API servers and VPN servers are led to.
fn shoots() -> Vec<Value> {
    let mut all = vec![
        api_server(SHOOT),
        vpn_server(SHOOT, "vpn-seed-server"),
        api_server(OTHER),
        vpn_server(OTHER, "vpn-seed-server"),
        http_proxy(8443, "X-Gardener-Destination", REGEX),
    ];
    all.extend(passthrough(SHOOT, &[HOST, INTERNAL]));
    all.extend(passthrough(OTHER, &["api.other.example.com"]));
    all
}

fn with(filters: &[Value]) -> ClusterState {
    let mut all = shoots();
    all.extend(filters.iter().cloned());
    state(&all)
}

/// What each kind of route lets in: `names …`, `connect 443 …`, `connect 1194 …`.
fn open(group: &Group, gateway: usize) -> Vec<String> {
    let all = group.gateways[gateway].routes.iter().map(|route| {
        let matches = text(&route.spec.matches);
        let kind = matches.split(' ').next().unwrap().to_owned();
        let port = route.spec.cluster.split('|').nth(1).unwrap();
        let sources: Vec<String> = route
            .spec
            .allow_sources
            .iter()
            .map(ToString::to_string)
            .collect();
        let sources = match sources.join(" ").as_str() {
            "" => "everyone".to_owned(),
            "::/128" => "none".to_owned(),
            ranges => ranges.to_owned(),
        };
        format!("{kind} {port}: {sources}")
    });
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

fn opened(state: &ClusterState, namespace: &str) -> Vec<String> {
    open(&group(state, &one(), namespace), 0)
}

const OPEN: [&str; 3] = [
    "connect 1194: everyone",
    "connect 443: everyone",
    "names 443: everyone",
];

fn withheld(group: &Group) -> Vec<String> {
    let all = problems(group).into_iter();
    all.filter(|text| text.contains("withheld")).collect()
}

#[test]
fn server_name_restriction_covers_its_chain() {
    for kind in [
        "source_ip",
        "remote_ip",
        "direct_remote_ip",
        "directRemoteIp",
    ] {
        let own = ranges(kind, &["203.0.113.0/24", "10.250.0.7/16", "2001:db8::/32"]);
        let filter = by_name("istio-ingress/acl-api", HOST, &own);
        let state = with(&[filter]);
        let found = group(&state, &one(), SHOOT);
        let names = "names 443: 10.250.0.0/16 203.0.113.0/24 2001:db8::/32";
        assert_eq!(open(&found, 0), [OPEN[0], OPEN[1], names], "{kind}");
        // Both names are one route.
        assert!(of(&found, 0).contains(&format!("names {HOST} {INTERNAL} -> {API}")));
        assert_eq!(problems(&found), [""; 0]);
        assert_eq!(opened(&state, OTHER), OPEN);
        assert_eq!(problems(&group(&state, &one(), "istio-ingress")), [""; 0]);
    }
}

#[test]
fn restriction_covers_names_of_other_objects() {
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let annotations = json!({
        "rhizome.gardener.cloud/server-names": format!("{INTERNAL}, third.example.com"),
    });
    let mut state = with(&[by_name("istio-ingress/acl-api", HOST, &own)]);
    apply(&mut state, &annotate(api_server(SHOOT), annotations));
    let names = "names 443: 203.0.113.0/24";
    assert_eq!(opened(&state, SHOOT), [OPEN[0], OPEN[1], names, names]);
}

#[test]
fn terminated_tls_routes_are_restricted() {
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let mut objects = vec![api_server(SHOOT)];
    objects.extend(terminating(SHOOT, &[HOST]));
    objects.push(by_name("istio-ingress/acl-api", HOST, &own));
    let found = group(&state(&objects), &one(), SHOOT);
    assert!(open(&found, 0).contains(&"names 443: 203.0.113.0/24".to_owned()));
}

#[test]
fn a_header_restricts_all_but_server_names() {
    let own = ranges("remote_ip", &["203.0.113.0/24", "10.250.0.0/16"]);
    for port in [8443, 8132] {
        let filter = by_header("istio-ingress/acl-vpn", port, SHOOT, &own);
        let state = with(&[filter]);
        let found = group(&state, &one(), SHOOT);
        let both =
            ["1194", "443"].map(|port| format!("connect {port}: 10.250.0.0/16 203.0.113.0/24"));
        assert_eq!(open(&found, 0), [&both[0], &both[1], OPEN[2]], "{port}");
        assert_eq!(problems(&found), [""; 0]);
        assert_eq!(opened(&state, OTHER), OPEN);
    }
}

#[test]
fn header_restricts_node_and_wireguard_routes() {
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let annotations = json!({
        "rhizome.gardener.cloud/destinations": "10.1.2.3:443",
        "rhizome.gardener.cloud/wireguard-route-id": "17",
    });
    let ports = ["kube-apiserver:443", "wg-gateway:51821"];
    let service = service(&format!("{SHOOT}/kube-apiserver"), &ports);
    let mut state = with(&[by_header("istio-ingress/acl", 8443, SHOOT, &own)]);
    apply(&mut state, &annotate(service, annotations));
    let found = opened(&state, SHOOT);
    for kind in ["destination 443", "wireguard 51821"] {
        let expected = format!("{kind}: 203.0.113.0/24");
        assert!(found.contains(&expected), "{expected} in {found:?}");
    }
}

#[test]
fn one_filter_for_all_shoots() {
    let (first, second) = (
        ranges("remote_ip", &["203.0.113.0/24"]),
        ranges("remote_ip", &["198.51.100.0/24"]),
    );
    let third = "shoot--foo--third";
    let shown = |range: &str| format!("connect 1194: {range}");
    for dots in [false, true] {
        let name = |shoot: &str| {
            if dots {
                format!(".{shoot}.")
            } else {
                shoot.to_owned()
            }
        };
        let (a, b) = (name(SHOOT), name(OTHER));
        let mut state = with(&[of_all(&[(&a, &first), (&b, &second)])]);
        apply(&mut state, &vpn_server(third, "vpn-seed-server"));
        assert!(opened(&state, SHOOT).contains(&shown("203.0.113.0/24")));
        assert!(opened(&state, OTHER).contains(&shown("198.51.100.0/24")));
        assert_eq!(opened(&state, third), [OPEN[0]]);
    }
}

#[test]
fn several_restrictions_are_intersected() {
    let wide = ranges("remote_ip", &["10.0.0.0/8", "203.0.113.0/24"]);
    let narrow = ranges("remote_ip", &["10.1.0.0/16", "192.0.2.0/24"]);
    let none = ranges("remote_ip", &["192.0.2.0/24"]);
    let one_of = |other: &Value| {
        vec![
            by_name("istio-ingress/a", HOST, &wide),
            by_name("istio-ingress/b", INTERNAL, other),
        ]
    };
    let found = group(&with(&one_of(&narrow)), &one(), SHOOT);
    assert_eq!(
        open(&found, 0),
        [OPEN[0], OPEN[1], "names 443: 10.1.0.0/16"]
    );
    let found = group(&with(&one_of(&none)), &one(), SHOOT);
    assert_eq!(open(&found, 0), [OPEN[0], OPEN[1], "names 443: none"]);
    let reported = withheld(&found);
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("istio-ingress/a, istio-ingress/b"),
        "{reported:?}"
    );
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::VirtualService),
        1
    );
}

#[test]
fn unsupported_filter_withholds_named_routes() {
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let by_user = json!([{"authenticated": {}}]);
    let but = json!([{"not_id": own[0]}]);
    let mut denied = any_of(&own);
    denied["action"] = json!("DENY");
    let mut condition = any_of(&own);
    condition["policies"]["acl"]["condition"] = json!({});
    for rules in [any_of(&by_user), any_of(&but), denied, condition] {
        let listener = json!({"filterChain": {"sni": HOST}});
        let filter = rbac("istio-ingress/acl", "NETWORK_FILTER", &listener, &rules);
        let state = with(&[filter]);
        let found = group(&state, &one(), SHOOT);
        assert_eq!(
            open(&found, 0),
            [OPEN[0], OPEN[1], "names 443: none"],
            "{rules}"
        );
        assert_eq!(withheld(&found).len(), 1);
        assert_eq!(opened(&state, OTHER), OPEN);
    }
    for deny in [false, true] {
        let principals = if deny { &own } else { &by_user };
        let mut filter = by_header("istio-ingress/acl", 8132, SHOOT, principals);
        if deny {
            let at = "/spec/configPatches/0/patch/value/typed_config/rules/action";
            let (parent, field) = at.rsplit_once('/').unwrap();
            filter.pointer_mut(parent).unwrap()[field] = json!("DENY");
        }
        let state = with(&[filter]);
        let found = group(&state, &one(), SHOOT);
        let none = ["connect 1194: none", "connect 443: none"];
        assert_eq!(open(&found, 0), [none[0], none[1], OPEN[2]]);
        // Each of the routes, and the filter itself.
        assert_eq!(withheld(&found).len(), 3);
        assert_eq!(opened(&state, OTHER), OPEN);
    }
}

#[test]
fn unscoped_unsupported_filter_is_only_reported() {
    for (layer, rules) in [
        ("NETWORK_FILTER", any_of(&json!([{"authenticated": {}}]))),
        ("HTTP_FILTER", any_of(&json!([{"url_path": {}}]))),
        (
            "HTTP_FILTER",
            any_of(&json!([{"header": {"name": "x-user", "exact_match": "a"}}])),
        ),
    ] {
        let filter = rbac("istio-ingress/acl", layer, &json!({}), &rules);
        let state = with(&[filter]);
        assert_eq!(opened(&state, SHOOT), OPEN, "{rules}");
        let home = group(&state, &one(), "istio-ingress");
        assert_eq!(
            count(&home, Reason::RouteNotTranslated, Kind::EnvoyFilter),
            1
        );
        assert_eq!(home.problems.len(), 1);
    }
}

#[test]
fn a_whole_listener_is_restricted() {
    let own = any_of(&ranges("source_ip", &["203.0.113.0/24"]));
    let names = "names 443: 203.0.113.0/24".to_owned();
    let both = ["1194", "443"].map(|port| format!("connect {port}: 203.0.113.0/24"));
    for (listener, expected) in [
        (json!({"portNumber": 443}), [OPEN[0], OPEN[1], &names]),
        (json!({"portNumber": 8443}), [&both[0], &both[1], OPEN[2]]),
        (json!({}), [&both[0], &both[1], &names]),
        (json!({"portNumber": 9999}), OPEN),
    ] {
        let filter = rbac("istio-system/acl", "NETWORK_FILTER", &listener, &own);
        for namespace in [SHOOT, OTHER] {
            let state = with(std::slice::from_ref(&filter));
            assert_eq!(opened(&state, namespace), expected, "{listener}");
        }
    }
}

#[test]
fn a_wildcard_route_is_whole_or_withheld() {
    let name = "*.ingress.example.com";
    let ends = |tail: &str| json!({"requested_server_name": {"suffix": tail}});
    let rules = |tail: &str| {
        json!({"action": "ALLOW", "policies": {
            "inverse": {
                "permissions": [{"not_rule": ends(tail)}],
                "principals": ranges("remote_ip", &["0.0.0.0/0"]),
            },
            "own": {
                "permissions": [ends(tail)],
                "principals": ranges("remote_ip", &["203.0.113.0/24"]),
            },
        }})
    };
    let listener = json!({"filterChain": {"sni": name}});
    let part = "-bar.ingress.example.com";
    for (host, tail, expected) in [
        (name, ".example.com", Some("203.0.113.0/24")),
        (name, ".example.org", Some("0.0.0.0/0")),
        (name, part, None),
        ("x-bar.ingress.example.com", part, Some("203.0.113.0/24")),
        ("x-other.ingress.example.com", part, Some("0.0.0.0/0")),
        ("ingress.example.com", part, Some("everyone")),
    ] {
        let filter = rbac(
            "istio-ingress/acl",
            "NETWORK_FILTER",
            &listener,
            &rules(tail),
        );
        let mut objects = vec![api_server(SHOOT), filter];
        objects.extend(passthrough(SHOOT, &[host]));
        let found = group(&state(&objects), &one(), SHOOT);
        let names = open(&found, 0)
            .into_iter()
            .find_map(|text| text.strip_prefix("names 443: ").map(str::to_owned));
        assert_eq!(
            names.as_deref(),
            Some(expected.unwrap_or("none")),
            "{host} {tail}"
        );
        assert_eq!(withheld(&found).len(), usize::from(expected.is_none()));
    }
}

/// The filter chain of one shoot, with an RBAC filter in front of its proxy.
fn chain_with(principals: &Value) -> Value {
    let mut chain = filter_chain(SHOOT, "10.1.2.3");
    chain["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Namespace", "name": SHOOT, "uid": "1"}]);
    let body = &mut chain["spec"]["configPatches"][0]["patch"]["value"];
    let access = json!({
        "name": "acl-internal-remote_ip",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
            "rules": any_of(principals),
            "stat_prefix": "envoyrbac",
        },
    });
    let proxy = body["filters"][0].take();
    body["filters"] = json!([access, proxy]);
    chain
}

#[test]
fn filters_within_a_chain_restrict_it() {
    let own = ranges("remote_ip", &["203.0.113.0/24", "10.250.0.0/16"]);
    let sources = |chain: &Value| {
        let found = group(
            &state(&[api_server(SHOOT), chain.clone()]),
            &documented(),
            SHOOT,
        );
        let reported = count(&found, Reason::RouteNotTranslated, Kind::EnvoyFilter);
        let destinations = open(&found, 0);
        let mut own = destinations.into_iter();
        (own.find(|text| text.starts_with("dest")), reported)
    };
    let expected = "destination 443: 10.250.0.0/16 203.0.113.0/24".to_owned();
    assert_eq!(sources(&chain_with(&own)), (Some(expected), 0));
    let none = Some("destination 443: none".to_owned());
    for withheld in [
        json!([]),
        json!([{"not_id": own[0]}]),
        json!([{"metadata": {}}]),
    ] {
        assert_eq!(sources(&chain_with(&withheld)), (none.clone(), 1));
    }
}

#[test]
fn a_chain_is_restricted_by_its_name() {
    let mut chain = filter_chain(SHOOT, "10.1.2.3");
    chain["spec"]["configPatches"][0]["patch"]["value"]["name"] = json!("own");
    for (name, principals, expected) in [
        (
            "own",
            ranges("remote_ip", &["192.0.2.0/24"]),
            Some("192.0.2.0/24"),
        ),
        (
            "other",
            ranges("remote_ip", &["192.0.2.0/24"]),
            Some("everyone"),
        ),
        ("own", json!([{"metadata": {}}]), Some("none")),
    ] {
        let listener = json!({"portNumber": 8443, "filterChain": {"name": name}});
        let mut filter = rbac(
            "istio-system/acl",
            "NETWORK_FILTER",
            &listener,
            &any_of(&principals),
        );
        filter["spec"]["workloadSelector"]["labels"] = json!({"istio": "ingressgateway"});
        let state = state(&[api_server(SHOOT), chain.clone(), filter]);
        let found = open(&group(&state, &documented(), SHOOT), 0);
        let own = found
            .iter()
            .find_map(|text| text.strip_prefix("destination 443: "));
        assert_eq!(own, expected, "{name}");
    }
}

#[test]
fn only_selected_gateway_is_restricted() {
    let mut settings = one();
    let labels = [
        ("app", "istio-ingressgateway"),
        ("istio", "ingressgateway"),
        ("zone", "b"),
    ];
    settings.push(entry("b", "istio-ingress", &labels));
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let mut filter = by_name("istio-ingress/acl", HOST, &own);
    let names = "names 443: 203.0.113.0/24";
    let found = group(&with(&[filter.clone()]), &settings, SHOOT);
    for gateway in [0, 1] {
        assert_eq!(open(&found, gateway), [OPEN[0], OPEN[1], names]);
    }
    filter["spec"]["workloadSelector"]["labels"]["zone"] = json!("b");
    let found = group(&with(&[filter]), &settings, SHOOT);
    assert_eq!(open(&found, 0), OPEN);
    assert_eq!(open(&found, 1), [OPEN[0], OPEN[1], names]);
}

#[test]
fn the_route_is_open_again_without_the_filter() {
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let mut state = with(&[]);
    let before = group(&state, &one(), SHOOT);
    for filter in [
        by_name("istio-ingress/acl", HOST, &own),
        by_name("istio-ingress/acl", HOST, &json!([])),
        by_header("istio-ingress/acl", 8132, SHOOT, &own),
    ] {
        let (kind, key) = apply(&mut state, &filter);
        assert_ne!(group(&state, &one(), SHOOT), before);
        state.remove(kind, &key);
        assert_eq!(group(&state, &one(), SHOOT), before);
    }
}

#[test]
fn a_withheld_route_opens_no_pods() {
    let mut objects = vec![api_server(SHOOT)];
    objects.extend(passthrough(SHOOT, &[HOST]));
    let none = json!([]);
    objects.push(by_name("istio-ingress/acl", HOST, &none));
    objects.push(by_header("istio-ingress/acl-vpn", 8443, SHOOT, &none));
    let found = group(&state(&objects), &one(), SHOOT);
    assert!(found.routed.is_empty());
    assert_eq!(open(&found, 0), ["connect 443: none", "names 443: none"]);
    assert_eq!(withheld(&found).len(), 2);
}

#[test]
fn withheld_name_is_not_left_to_a_wildcard() {
    let mut objects = vec![api_server(SHOOT), api_server(OTHER)];
    objects.extend(passthrough(SHOOT, &[HOST]));
    objects.extend(passthrough(OTHER, &["*.foo.example.com"]));
    objects.push(by_name("istio-ingress/acl", HOST, &json!([])));
    let state = state(&objects);
    let mut table = Table::default();
    for namespace in [SHOOT, OTHER] {
        table.put(namespace, group(&state, &one(), namespace));
    }
    let own = table.accepted(0, SHOOT);
    assert!(own.iter().any(|route| {
        text(&route.matches) == format!("names {HOST}") && !route.allow_sources.is_empty()
    }));
}

#[test]
fn open_filters_change_nothing() {
    let everyone = any_of(&json!([{"any": true}]));
    let log = json!({"action": "LOG", "policies": {}});
    for rules in [everyone, log, Value::Null] {
        let filter = rbac("istio-ingress/acl", "NETWORK_FILTER", &json!({}), &rules);
        let state = with(&[filter]);
        assert_eq!(opened(&state, SHOOT), OPEN, "{rules}");
        assert_eq!(problems(&group(&state, &one(), "istio-ingress")), [""; 0]);
    }
}

pub(super) fn every_shape(shoot: &str, name: &str) -> Vec<Value> {
    let own = ranges("remote_ip", &["203.0.113.0/24"]);
    let whole = rbac(
        "istio-system/acl-whole",
        "NETWORK_FILTER",
        &json!({"portNumber": 8443}),
        &any_of(&ranges("remote_ip", &["203.0.0.0/16"])),
    );
    vec![
        by_name("istio-ingress/acl-api", name, &own),
        by_name(
            "istio-ingress/acl-wide",
            "*.example.com",
            &json!([{"metadata": {}}]),
        ),
        by_header("istio-ingress/acl-vpn", 8132, shoot, &own),
        of_all(&[(shoot, &own)]),
        whole,
    ]
}
