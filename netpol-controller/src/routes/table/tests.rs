//! Tests of who has what.

use proptest::prelude::*;

use super::*;
use crate::routes::GatewayGroup;
use crate::state::ObjectRef;

fn route(source: &str, created: i64, matches: RouteMatch, cluster: &str) -> SourcedRoute {
    let (namespace, name) = source.split_once('/').unwrap();
    SourcedRoute {
        spec: RouteSpec::new(matches, cluster),
        source: ObjectRef::new(Kind::VirtualService, &ObjectKey::new(namespace, name)),
        created,
    }
}

/// A route that a Service asks for.
fn annotated(source: &str, created: i64, matches: RouteMatch, cluster: &str) -> SourcedRoute {
    let mut own = route(source, created, matches, cluster);
    own.source.kind = Kind::Service;
    own
}

fn names(names: &[&str]) -> RouteMatch {
    RouteMatch::ServerNames(names.iter().map(|name| (*name).to_owned()).collect())
}

/// A destination with its port behind a space, `10.1.0.0/16 443`.
fn to(text: &str) -> RouteMatch {
    let (prefix, port) = match text.split_once(' ') {
        Some((prefix, port)) => (prefix, Some(port.parse().unwrap())),
        None => (text, None),
    };
    let prefixes = vec![prefix.parse().unwrap()];
    RouteMatch::Destinations { prefixes, port }
}

fn of(routes: Vec<SourcedRoute>) -> Group {
    Group {
        gateways: vec![GatewayGroup {
            clusters: Vec::new(),
            routes,
        }],
        ..Group::default()
    }
}

fn put(table: &mut Table, own: SourcedRoute) -> Changed {
    let group = own.source.key.namespace.clone();
    table.put(&group, of(vec![own]))
}

fn accepted(table: &Table, group: &str) -> Vec<RouteMatch> {
    let routes = table.accepted(0, group).iter();
    routes.map(|route| route.matches.clone()).collect()
}

fn reported(table: &Table, group: &str) -> Vec<String> {
    let all = table.problems(group).into_iter();
    all.map(|problem| problem.message).collect()
}

#[test]
fn older_object_wins_and_younger_keeps_rest() {
    let mut table = Table::default();
    put(&mut table, route("young/x", 2, names(&["a", "b"]), "young"));
    assert_eq!(accepted(&table, "young"), [names(&["a", "b"])]);
    let changed = put(&mut table, route("old/x", 1, names(&["b", "c"]), "old"));
    let both = BTreeSet::from(["old".into(), "young".into()]);
    assert_eq!(changed.routes, both);
    assert_eq!(accepted(&table, "old"), [names(&["b", "c"])]);
    assert_eq!(accepted(&table, "young"), [names(&["a"])]);
    let [problem] = &table.problems("young")[..] else {
        panic!("{:?}", table.problems("young"))
    };
    assert_eq!(problem.reason, Reason::RouteConflict);
    assert!(problem.message.contains("old/x"), "{}", problem.message);
    assert_eq!(table.problems("old"), []);
    // What it releases goes to the younger.
    let changed = table.put("old", Group::default());
    assert!(changed.routes.contains("young") && changed.problems.contains("young"));
    assert_eq!(accepted(&table, "young"), [names(&["a", "b"])]);
    assert_eq!(table.problems("young"), []);
    assert_eq!(table.groups().count(), 1);
}

/// It may have been annotated just now.
#[test]
fn old_service_takes_nothing_by_an_annotation() {
    for (matches, narrower) in [
        (names(&["n"]), false),
        (to("10.0.0.1"), false),
        (names(&["n.m"]), true),
    ] {
        let mut table = Table::default();
        let wide = if narrower {
            names(&["*.m"])
        } else {
            matches.clone()
        };
        put(&mut table, annotated("old/x", 1, matches.clone(), "old"));
        assert_eq!(accepted(&table, "old").len(), 1);
        put(&mut table, route("young/x", 2, wide.clone(), "young"));
        assert_eq!(accepted(&table, "young"), [wide]);
        // What is narrower than a younger wildcard stays its own: it is not the same name.
        assert_eq!(accepted(&table, "old").len(), usize::from(narrower));
        let reported = reported(&table, "old");
        assert_eq!(reported.len(), usize::from(!narrower));
        assert!(
            reported
                .iter()
                .all(|own| own.ends_with("which comes before annotations")),
            "{reported:?}"
        );
    }
}

#[test]
fn matches_are_claimed_one_by_one() {
    let wireguard = |key: u8, id| RouteMatch::WireGuard {
        public_keys: vec![[key; 32]],
        route_id: id,
    };
    let n = || names(&["n"]);
    // By age: each claim, what is left of it, and how many conflicts there are.
    for claims in [
        &[(n(), Some(n()), 0), (n(), None, 1)][..],
        // A tunnel keeps its keys when its route id is claimed.
        &[
            (wireguard(1, Some(17)), Some(wireguard(1, Some(17))), 0),
            (wireguard(2, Some(17)), Some(wireguard(2, None)), 1),
            (wireguard(1, Some(17)), None, 2),
        ],
        // Ports and prefixes are distinct matches.
        &[
            (to("10.0.0.1"), Some(to("10.0.0.1")), 0),
            (to("10.0.0.1 443"), Some(to("10.0.0.1 443")), 0),
            (to("10.0.0.0/24"), Some(to("10.0.0.0/24")), 0),
            (to("10.0.0.1"), None, 1),
        ],
    ] {
        // Of the same age, the first name counts.
        for same_age in [false, true] {
            let mut table = Table::default();
            for (index, (matches, ..)) in (0..9).zip(claims).rev() {
                let name = format!("g{index}");
                let age = if same_age { 1 } else { i64::from(index) };
                let own = route(&format!("{name}/x"), age, matches.clone(), &name);
                put(&mut table, own);
            }
            for (index, (matches, left, conflicts)) in claims.iter().enumerate() {
                let name = format!("g{index}");
                let left = Vec::from_iter(left.clone());
                assert_eq!(accepted(&table, &name), left, "{matches:?}");
                assert_eq!(table.problems(&name).len(), *conflicts, "{matches:?}");
            }
        }
    }
}

#[test]
fn two_that_say_the_same_are_no_conflict() {
    let mut table = Table::default();
    let twice = vec![
        route("a/x", 1, names(&["n"]), "same"),
        route("a/y", 2, names(&["n", "m"]), "same"),
    ];
    table.put("a", of(twice));
    assert_eq!(accepted(&table, "a"), [names(&["n"]), names(&["m"])]);
    assert_eq!(table.problems("a"), []);
}

#[test]
fn gateways_have_tables_of_their_own() {
    let mut table = Table::default();
    let mut other = of(vec![route("b/x", 1, names(&["n"]), "b")]);
    other.gateways.insert(0, GatewayGroup::default());
    put(&mut table, route("a/x", 1, names(&["n"]), "a"));
    table.put("b", other);
    let both = [table.accepted(0, "a"), table.accepted(1, "b")];
    assert_eq!(both.map(<[_]>::len), [1, 1]);
}

#[test]
fn unchanged_group_changes_nothing() {
    let mut table = Table::default();
    let own = route("a/x", 1, names(&["n"]), "a");
    assert_ne!(put(&mut table, own.clone()), Changed::default());
    assert_eq!(put(&mut table, own), Changed::default());
}

/// Names that lie within one another, or not.
const NAMES: [&str; 5] = ["a.x.y", "*.x.y", "*.y", "b.x.y", "n"];

/// A change: which group, and the routes it then has: age, names and cluster of each.
type Put = (usize, Vec<(i64, Vec<usize>, usize)>);

fn puts() -> impl Strategy<Value = Vec<Put>> {
    let names = prop::collection::vec(0..5_usize, 1..4);
    let route = (0..4_i64, names, 0..3_usize);
    prop::collection::vec((0..4_usize, prop::collection::vec(route, 0..3)), 1..12)
}

fn group_of(index: usize, routes: &[(i64, Vec<usize>, usize)]) -> Group {
    let routes = routes.iter().enumerate();
    let routes = routes.map(|(place, (created, wanted, cluster))| {
        let wanted: BTreeSet<_> = wanted.iter().map(|name| NAMES[*name]).collect();
        let matches = names(&Vec::from_iter(wanted));
        let made = [annotated, route][(index + place) % 2];
        let (source, cluster) = (format!("g{index}/{place}"), format!("c{cluster}"));
        made(&source, *created, matches, &cluster)
    });
    of(routes.collect())
}

#[test]
fn annotation_cannot_narrow_an_older_claim() {
    let name = |name| names(&[name]);
    for (wide, narrow, taken) in [
        (name("*.example.com"), name("api.a.example.com"), true),
        (name("*.example.com"), name("*.a.example.com"), true),
        (name("*.com"), name("*.example.com"), true),
        (name("*.a.example.com"), name("*.example.com"), false),
        (name("*.example.com"), name("example.com"), false),
        (name("*.example.com"), name("an-example.com"), false),
        (name("a.example.com"), name("b.a.example.com"), false),
        (name("*"), name("a.example.com"), false),
        (to("10.0.0.0/8"), to("10.1.0.0/16 443"), true),
        (to("10.0.0.0/8 443"), to("10.1.0.0/16"), true),
        (to("10.0.0.0/8 443"), to("10.1.0.0/16 443"), true),
        (to("10.0.0.0/8 443"), to("10.1.0.0/16 444"), false),
        (to("10.0.0.1"), to("10.0.0.1 443"), true),
        (to("10.0.0.1 443"), to("10.0.0.1"), false),
        (to("10.1.0.0/16"), to("10.0.0.0/8"), false),
        (to("0.0.0.0/0"), to("10.0.0.1 443"), false),
        (to("fd00::/8"), to("fd00::1"), true),
        (to("fd00::/8"), to("10.0.0.1"), false),
    ] {
        for first in [annotated, route] {
            let mut table = Table::default();
            put(&mut table, first("old/x", 1, wide.clone(), "old"));
            put(&mut table, annotated("young/x", 2, narrow.clone(), "young"));
            let left = usize::from(!taken);
            assert_eq!(accepted(&table, "young").len(), left, "{wide:?} {narrow:?}");
            assert_eq!(accepted(&table, "old").len(), 1);
            assert_eq!(reported(&table, "young").len(), 1 - left);
        }
        // No conflict for the older object, within a namespace, or for other kinds of objects.
        let young = |source, created| annotated(source, created, narrow.clone(), "young");
        for (old, own) in [
            ("old/x", young("young/x", 0)),
            ("same/x", young("same/y", 2)),
            ("old/x", route("young/x", 2, narrow.clone(), "young")),
        ] {
            let mut table = Table::default();
            table.put("g0", of(vec![annotated(old, 1, wide.clone(), "old")]));
            let what = format!("{wide:?} {own:?}");
            table.put("g1", of(vec![own]));
            assert_eq!(accepted(&table, "g1").len(), 1, "{what}");
        }
    }
}

#[test]
fn narrower_claim_reports_the_wider_owner() {
    let mut table = Table::default();
    let wide = names(&["*.example.com"]);
    put(&mut table, route("old/x", 1, wide, "old"));
    let narrow = names(&["api.a.example.com"]);
    put(&mut table, annotated("young/x", 2, narrow, "young"));
    assert_eq!(
        reported(&table, "young"),
        [
            "the server name \"api.a.example.com\" lies within the server name \"*.example.com\", \
             which is VirtualService old/x's, which is older"
        ]
    );
}

#[test]
fn barred_claimant_returns_when_unbarred() {
    let mut table = Table::default();
    let exact = || names(&["api.a.example.com"]);
    let wide = names(&["*.example.com"]);
    put(&mut table, route("old/x", 1, wide, "old"));
    put(&mut table, annotated("evil/x", 2, exact(), "evil"));
    // A wildcard of another object bars no claimant.
    let between = annotated("other/x", 3, names(&["*.a.example.com"]), "other");
    put(&mut table, between);
    put(&mut table, route("shoot/x", 4, exact(), "shoot"));
    assert_eq!(accepted(&table, "shoot"), [exact()]);
    table.put("shoot", Group::default());
    let own = annotated("old/y", 5, exact(), "old");
    table.put("more", of(vec![own]));
    assert_eq!(accepted(&table, "more"), [exact()]);
    table.put("more", Group::default());
    let changed = table.put("old", Group::default());
    for group in ["evil", "other"] {
        assert!(changed.routes.contains(group) && changed.problems.contains(group));
        assert_eq!(accepted(&table, group).len(), 1);
        assert_eq!(reported(&table, group), [""; 0]);
    }
}

#[test]
fn namespace_routes_may_split_by_service() {
    let mut table = Table::default();
    let wide = route("garden/x", 1, names(&["*.example.com"]), "all");
    let narrow = annotated("a/x", 2, names(&["api.example.com"]), "api");
    table.put("a", of(vec![wide, narrow]));
    assert_eq!(accepted(&table, "a").len(), 2);
}

proptest! {
    /// However the groups came to be what they are, and in whatever order, what each has is the
    /// same, and no other object has it; the reported changes are the real ones.
    #[test]
    fn claims_do_not_depend_on_order(puts in puts()) {
        let mut table = Table::default();
        let mut last = BTreeMap::new();
        for (index, routes) in &puts {
            let before: Vec<_> = (0..4).map(|one| accepted(&table, &format!("g{one}"))).collect();
            let reported: Vec<_> = (0..4).map(|one| table.problems(&format!("g{one}"))).collect();
            let changed = table.put(&format!("g{index}"), group_of(*index, routes));
            for one in 0..4 {
                let name = format!("g{one}");
                let differs = before[one] != accepted(&table, &name);
                // A route may change its cluster without a change of what it matches.
                prop_assert!(!differs || changed.routes.contains(name.as_str()));
                let tells = reported[one] != table.problems(&name);
                prop_assert_eq!(tells, changed.problems.contains(name.as_str()));
            }
            last.insert(*index, routes);
        }
        let mut anew = Table::default();
        for (index, routes) in last.iter().rev() {
            anew.put(&format!("g{index}"), group_of(*index, routes));
        }
        let mut seen = BTreeSet::new();
        for index in 0..4 {
            let name = format!("g{index}");
            prop_assert_eq!(table.accepted(0, &name), anew.accepted(0, &name));
            prop_assert_eq!(table.problems(&name), anew.problems(&name));
            for matches in accepted(&table, &name) {
                for claim in claims_of(&matches) {
                    prop_assert!(seen.insert(claim));
                }
            }
        }
        let wanted: BTreeSet<_> = last
            .iter()
            .flat_map(|(index, routes)| group_of(*index, routes).gateways.remove(0).routes)
            .flat_map(|route| claims_of(&route.spec.matches))
            .collect();
        prop_assert!(seen.is_subset(&wanted));
        for lost in wanted.difference(&seen) {
            let claimants = table.claims[0].get(lost).into_iter().flatten();
            prop_assert!(claimants.into_iter().all(|one| one.kind == Kind::Service));
        }
        prop_assert_eq!(
            table.claims.iter().flatten().count(),
            anew.claims.iter().flatten().count()
        );
    }
}
