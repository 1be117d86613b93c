//! The diff, against kernels made of two vectors.

use proptest::prelude::*;

use super::*;

const DEVICE: &str = "apiserver-proxy";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn wanted(addresses: &[IpAddr]) -> Wanted<'_> {
    Wanted {
        device: DEVICE,
        kind: DeviceKind::Auto,
        addresses,
    }
}

fn link(index: u32, name: &str, kind: Option<&str>) -> Link {
    Link {
        index,
        name: name.to_owned(),
        up: true,
        kind: kind.map(str::to_owned),
        master: None,
    }
}

fn held(index: u32, address: &str, prefix_length: u8) -> HeldAddress {
    HeldAddress {
        index,
        prefix: IpNet::new(ip(address), prefix_length).unwrap(),
        prefix_route: true,
        usable: true,
    }
}

fn node(addresses: Vec<HeldAddress>) -> Actual {
    let links = vec![
        link(1, "lo", None),
        link(2, "eth0", None),
        link(3, DEVICE, Some("dummy")),
    ];
    Actual { links, addresses }
}

fn shown(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_bare_node_gets_device_and_addresses() {
    let actual = Actual {
        links: vec![link(1, "lo", None)],
        addresses: Vec::new(),
    };

    let changes = plan(wanted(&[ip("10.1.2.3"), ip("fd00::3")]), &actual);

    assert_eq!(
        shown(&changes),
        [
            "create apiserver-proxy of kind auto",
            "add 10.1.2.3/32 to apiserver-proxy",
            "add fd00::3/128 to apiserver-proxy",
        ]
    );
}

#[test]
fn nothing_changes_where_all_is_in_place() {
    let actual = node(vec![held(3, "10.1.2.3", 32), held(2, "10.250.0.4", 16)]);

    assert!(plan(wanted(&[ip("10.1.2.3")]), &actual).is_empty());
}

#[test]
fn a_device_that_is_down_is_set_up() {
    let mut actual = node(vec![held(3, "10.1.2.3", 32)]);
    actual.links[2].up = false;

    assert_eq!(
        shown(&plan(wanted(&[ip("10.1.2.3")]), &actual)),
        ["set apiserver-proxy up"]
    );
}

#[test]
fn an_address_moves_without_a_gap() {
    let actual = node(vec![held(1, "10.1.2.3", 32), held(1, "127.0.0.1", 8)]);

    assert_eq!(
        shown(&plan(wanted(&[ip("10.1.2.3")]), &actual)),
        [
            "add 10.1.2.3/32 to apiserver-proxy",
            "remove 10.1.2.3/32 from lo"
        ]
    );
}

#[test]
fn an_unusable_address_is_replaced() {
    let mut actual = node(vec![held(3, "fd00::3", 64)]);
    actual.addresses[0].usable = false;

    assert_eq!(
        shown(&plan(wanted(&[ip("fd00::3")]), &actual)),
        [
            "remove fd00::3/64 from apiserver-proxy",
            "add fd00::3/128 to apiserver-proxy"
        ]
    );
}

#[test]
fn another_prefix_length_on_the_device_itself_will_do() {
    let actual = node(vec![held(3, "10.1.2.3", 24)]);

    assert!(plan(wanted(&[ip("10.1.2.3")]), &actual).is_empty());
}

#[test]
fn loopback_as_the_device_keeps_its_addresses() {
    let actual = node(vec![
        held(1, "127.0.0.1", 8),
        held(1, "10.1.2.3", 32),
        held(3, "10.1.2.3", 32),
    ]);
    let addresses = [ip("10.1.2.3")];
    let wanted = Wanted {
        device: "lo",
        kind: DeviceKind::Loopback,
        addresses: &addresses,
    };

    assert_eq!(
        shown(&plan(wanted, &actual)),
        ["remove 10.1.2.3/32 from apiserver-proxy"]
    );
    assert_eq!(
        shown(&plan_cleanup(wanted, &actual)),
        ["remove 10.1.2.3/32 from lo"]
    );
}

#[test]
fn cleanup_takes_address_and_device() {
    let actual = node(vec![held(3, "10.1.2.3", 32), held(3, "fe80::1", 64)]);

    assert_eq!(
        shown(&plan_cleanup(wanted(&[ip("10.1.2.3")]), &actual)),
        [
            "remove 10.1.2.3/32 from apiserver-proxy",
            "delete apiserver-proxy"
        ]
    );
    assert!(plan_cleanup(wanted(&[ip("10.1.2.3")]), &Actual::default()).is_empty());
}

#[test]
fn cleanup_keeps_device_in_foreign_use() {
    let addresses = [ip("10.1.2.3")];
    let ours = held(3, "10.1.2.3", 32);
    let with_address = node(vec![ours.clone(), held(3, "10.9.9.9", 32)]);
    let mut with_port = node(vec![ours.clone()]);
    with_port.links[1].master = Some(3);
    let mut hardware = node(vec![ours]);
    hardware.links[2].kind = None;

    for actual in [with_address, with_port, hardware] {
        assert_eq!(
            shown(&plan_cleanup(wanted(&addresses), &actual)),
            ["remove 10.1.2.3/32 from apiserver-proxy"]
        );
    }
}

const POOL: [&str; 4] = ["10.1.2.3", "10.1.2.4", "fd00::3", "fd00::4"];

/// A node with any of the pool's addresses anywhere, in any state.
fn any_node() -> impl Strategy<Value = Actual> {
    let addresses =
        prop::collection::vec((1..4_u32, 0..POOL.len(), 1..129_u8, any::<bool>()), 0..9);
    (addresses, any::<bool>(), any::<bool>()).prop_map(|(addresses, has_device, up)| {
        let mut actual = node(
            addresses
                .into_iter()
                .map(|(index, at, prefix_length, usable)| {
                    let longest = IpNet::from(ip(POOL[at])).prefix_len();
                    HeldAddress {
                        usable,
                        ..held(index, POOL[at], prefix_length.min(longest))
                    }
                })
                .collect(),
        );
        actual.links[2].up = up;
        if !has_device {
            actual.links.truncate(2);
            actual.addresses.retain(|held| held.index != 3);
        }
        actual
    })
}

proptest! {
    #[test]
    fn applying_a_plan_leaves_nothing_to_plan(
        mut actual in any_node(),
        chosen in prop::sample::subsequence(POOL.to_vec(), 0..=POOL.len()),
    ) {
        let addresses: Vec<_> = chosen.into_iter().map(ip).collect();
        let foreign = |actual: &Actual| {
            let mut kept = actual.addresses.clone();
            kept.retain(|held| !addresses.contains(&held.prefix.addr()));
            kept
        };
        let before = foreign(&actual);

        for change in plan(wanted(&addresses), &actual) {
            apply(&change, &mut actual);
        }

        prop_assert_eq!(plan(wanted(&addresses), &actual), []);
        prop_assert_eq!(foreign(&actual), before, "what is not wanted is left alone");
    }

    #[test]
    fn an_address_that_is_somewhere_is_never_nowhere_in_between(mut actual in any_node()) {
        let addresses: Vec<_> = POOL.into_iter().map(ip).collect();
        let usable = |actual: &Actual, address: IpAddr| {
            actual.addresses.iter().any(|held| held.usable && held.prefix.addr() == address)
        };
        let there: Vec<_> =
            addresses.iter().copied().filter(|address| usable(&actual, *address)).collect();

        for change in plan(wanted(&addresses), &actual) {
            apply(&change, &mut actual);
            for address in &there {
                prop_assert!(usable(&actual, *address), "{address} gone after: {change}");
            }
        }
    }
}

/// What the kernel would do.
fn apply(change: &Change, actual: &mut Actual) {
    let index = |actual: &Actual, name: &str| actual.link(name).unwrap().index;
    match change {
        Change::AddAddress { address, device } => actual.addresses.push(HeldAddress {
            index: index(actual, device),
            prefix: (*address).into(),
            prefix_route: true,
            usable: true,
        }),
        Change::CreateDevice { device, .. } => actual.links.push(link(9, device, Some("ifb"))),
        Change::DeleteDevice { device } => panic!("{device} would be deleted"),
        Change::RemoveAddress { device, prefix } => {
            let index = index(actual, device);
            let at = |held: &HeldAddress| (held.index, held.prefix);
            actual.addresses.retain(|held| at(held) != (index, *prefix));
        }
        Change::SetUp { device } => {
            actual
                .links
                .iter_mut()
                .find(|link| link.name == *device)
                .unwrap()
                .up = true;
        }
    }
}
