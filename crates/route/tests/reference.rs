//! Look-ups against a model that looks at every route in turn.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use route::{ClusterSpec, IpPrefix, RouteMatch, RouteSpec, Snapshot, TableSpec};

/// Builds a table with one cluster per route, named by the route's index.
fn table(matches: impl IntoIterator<Item = RouteMatch>) -> Snapshot {
    let mut spec = TableSpec::default();
    for (index, matches) in matches.into_iter().enumerate() {
        spec.clusters.push(ClusterSpec::new(index.to_string()));
        spec.routes.push(RouteSpec::new(matches, index.to_string()));
    }
    Snapshot::build(spec, 1, None).unwrap()
}

fn index(route: Option<&std::sync::Arc<route::Route>>) -> Option<usize> {
    route.map(|route| route.cluster().name().parse().unwrap())
}

/// Few labels and short ones, so that names and patterns meet.
fn name() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "c", "x-1", "_s", "long-label"]), 1..6)
        .prop_map(|labels| labels.join("."))
}

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => name(),
        4 => name().prop_map(|name| format!("*.{name}")),
        1 => Just("*".to_owned()),
    ]
}

/// What clients may send: also upper case, dots and stars in odd places, other alphabets.
fn wire_name() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        8 => name().prop_map(Some),
        2 => name().prop_map(|name| Some(name.to_ascii_uppercase() + ".")),
        2 => pattern().prop_map(Some),
        1 => name().prop_map(|name| Some(format!(".{name}"))),
        2 => "[aAbB.*é]{0,8}".prop_map(Some),
        1 => (name(), 50_usize..140).prop_map(|(name, n)| Some(format!("{}{name}", "a.".repeat(n)))),
        1 => ("\\PC{0,3}", name()).prop_map(|(odd, name)| Some(format!("{odd}.{name}"))),
        1 => Just(None),
    ]
}

fn expected_by_name(patterns: &[String], name: Option<&str>) -> Option<usize> {
    let place = |wanted: &str| patterns.iter().position(|pattern| pattern == wanted);
    let named = name.and_then(|name| {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if name.len() > 253 {
            return None;
        }
        let wildcards = patterns.iter().enumerate().filter(|(_, pattern)| {
            pattern.strip_prefix('*').is_some_and(|rest| {
                !rest.is_empty() && name.len() > rest.len() && name.ends_with(rest)
            })
        });
        let longest = wildcards.max_by_key(|(_, pattern)| pattern.len());
        place(&name).or_else(|| longest.map(|(index, _)| index))
    });
    named.or_else(|| place("*"))
}

/// Prefixes and addresses of a few bits, so that they meet.
fn address() -> impl Strategy<Value = IpAddr> {
    let bits = vec(select(vec![0_u8, 1, 128, 255]), 4);
    (bits, 0..3).prop_map(|(bytes, family)| {
        let v4 = Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]);
        match family {
            0 => v4.into(),
            1 => v4.to_ipv6_mapped().into(),
            _ => Ipv6Addr::from_bits(u128::from(v4.to_bits()) << 96 | 1).into(),
        }
    })
}

fn prefix() -> impl Strategy<Value = IpPrefix> {
    (address(), 0..=128_u8).prop_map(|(address, len)| {
        let address = address.to_canonical();
        let (bits, len) = match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, len % 33),
            IpAddr::V6(v6) => (v6.to_bits(), len),
        };
        let kept = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0) & bits;
        let network: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::from_bits((kept >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(kept).into(),
        };
        IpPrefix::new(network, len).unwrap()
    })
}

fn port() -> impl Strategy<Value = u16> {
    select(vec![443_u16, 8443])
}

type Destination = (IpPrefix, Option<u16>);

fn expected_by_destination(routes: &[Destination], addr: SocketAddr) -> Option<usize> {
    let matching = routes.iter().enumerate().filter(|(_, (prefix, port))| {
        prefix.contains(addr.ip()) && port.is_none_or(|port| port == addr.port())
    });
    matching
        .max_by_key(|(_, (prefix, port))| (prefix.len(), port.is_some()))
        .map(|(index, _)| index)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn names_find_what_the_model_finds(
        patterns in btree_set(pattern(), 0..12),
        names in vec(wire_name(), 1..12),
    ) {
        let patterns: Vec<String> = patterns.into_iter().collect();
        let table = table(patterns.iter().map(|name| RouteMatch::ServerNames(vec![name.clone()])));
        for name in names {
            let found = index(table.by_server_name(name.as_deref()));
            prop_assert_eq!(found, expected_by_name(&patterns, name.as_deref()), "{:?}", name);
        }
    }

    #[test]
    fn destinations_find_what_the_model_finds(
        routes in btree_set((prefix(), proptest::option::of(port())), 0..24),
        addrs in vec((address(), port()), 1..24),
    ) {
        let routes: Vec<Destination> = routes.into_iter().collect();
        let table = table(routes.iter().map(|(prefix, port)| RouteMatch::Destinations {
            prefixes: vec![*prefix],
            port: *port,
        }));
        for addr in addrs {
            let addr = SocketAddr::from(addr);
            let found = index(table.by_destination(addr));
            prop_assert_eq!(found, expected_by_destination(&routes, addr), "{}", addr);
        }
    }

    #[test]
    fn prefixes_are_what_they_display(prefix in prefix()) {
        prop_assert_eq!(prefix.to_string().parse::<IpPrefix>(), Ok(prefix));
        prop_assert!(prefix.contains(prefix.network()));
    }
}
