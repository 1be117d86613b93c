//! The diff, against kernels made of two vectors.

use proptest::prelude::*;

use super::*;

const DEVICE: &str = "apiserver-proxy";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn wanted(addresses: &[IpAddr]) -> AddressParams {
    AddressParams {
        device: DEVICE.to_owned(),
        kind: DeviceKind::Auto,
        addresses: addresses.to_vec(),
        manage: true,
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
fn plan_is_the_difference() {
    let bare = Actual {
        links: vec![link(1, "lo", None)],
        addresses: Vec::new(),
    };
    let mut down = node(vec![held(3, "10.1.2.3", 32)]);
    down.links[2].up = false;
    let mut unusable = node(vec![held(3, "fd00::3", 64)]);
    unusable.addresses[0].usable = false;
    for (case, actual, addresses, expected) in [
        (
            "a bare node gets device and addresses",
            bare,
            &["10.1.2.3", "fd00::3"][..],
            &[
                "create apiserver-proxy of kind auto",
                "add 10.1.2.3/32 to apiserver-proxy",
                "add fd00::3/128 to apiserver-proxy",
            ][..],
        ),
        (
            "nothing changes where all is in place",
            node(vec![held(3, "10.1.2.3", 32), held(2, "10.250.0.4", 16)]),
            &["10.1.2.3"],
            &[],
        ),
        (
            "a device that is down is set up",
            down,
            &["10.1.2.3"],
            &["set apiserver-proxy up"],
        ),
        (
            "an address moves without a gap",
            node(vec![held(1, "10.1.2.3", 32), held(1, "127.0.0.1", 8)]),
            &["10.1.2.3"],
            &[
                "add 10.1.2.3/32 to apiserver-proxy",
                "remove 10.1.2.3/32 from lo",
            ],
        ),
        (
            "an address of a network stays on its device",
            node(vec![held(2, "10.1.2.3", 24), held(1, "10.1.2.4", 32)]),
            &["10.1.2.3", "10.1.2.4"],
            &[
                "add 10.1.2.4/32 to apiserver-proxy",
                "remove 10.1.2.4/32 from lo",
            ],
        ),
        (
            "an unusable address is replaced",
            unusable,
            &["fd00::3"],
            &[
                "remove fd00::3/64 from apiserver-proxy",
                "add fd00::3/128 to apiserver-proxy",
            ],
        ),
        (
            "another prefix length on the device itself is accepted",
            node(vec![held(3, "10.1.2.3", 24)]),
            &["10.1.2.3"],
            &[],
        ),
    ] {
        let addresses: Vec<_> = addresses.iter().map(|text| ip(text)).collect();
        assert_eq!(
            shown(&plan(&wanted(&addresses), &actual)),
            expected,
            "{case}"
        );
    }
}

#[test]
fn loopback_as_the_device_keeps_its_addresses() {
    let actual = node(vec![
        held(1, "127.0.0.1", 8),
        held(1, "10.1.2.3", 32),
        held(3, "10.1.2.3", 32),
    ]);
    let wanted = AddressParams {
        device: "lo".to_owned(),
        kind: DeviceKind::Loopback,
        ..wanted(&[ip("10.1.2.3")])
    };

    assert_eq!(
        shown(&plan(&wanted, &actual)),
        ["remove 10.1.2.3/32 from apiserver-proxy"]
    );
    assert_eq!(
        shown(&plan_cleanup(&wanted, &actual)),
        ["remove 10.1.2.3/32 from lo"]
    );
}

#[test]
fn cleanup_deletes_an_unused_device_of_ours() {
    let addresses = [ip("10.1.2.3")];
    let ours = || held(3, "10.1.2.3", 32);
    let mut with_port = node(vec![ours()]);
    with_port.links[1].master = Some(3);
    let mut hardware = node(vec![ours()]);
    hardware.links[2].kind = None;
    let address = "remove 10.1.2.3/32 from apiserver-proxy";
    for (case, actual, expected) in [
        (
            "unused but for an address of the kernel's",
            node(vec![ours(), held(3, "fe80::1", 64)]),
            &[address, "delete apiserver-proxy"][..],
        ),
        ("no device", Actual::default(), &[]),
        (
            "foreign address",
            node(vec![ours(), held(3, "10.9.9.9", 32)]),
            &[address],
        ),
        ("bridge port", with_port, &[address]),
        ("hardware", hardware, &[address]),
    ] {
        let changes = plan_cleanup(&wanted(&addresses), &actual);
        assert_eq!(shown(&changes), expected, "{case}");
    }
}

const POOL: [&str; 4] = ["10.1.2.3", "10.1.2.4", "fd00::3", "fd00::4"];

/// A node with any of the pool's addresses anywhere, in any state.
fn any_node() -> impl Strategy<Value = Actual> {
    let lengths = prop_oneof![Just(128), 1..129_u8];
    let addresses = prop::collection::vec((1..4_u32, 0..POOL.len(), lengths, any::<bool>()), 0..9);
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
        let of_networks = |actual: &Actual| {
            let mut kept = actual.addresses.clone();
            kept.retain(|held| held.index != 3 && !is_host(held));
            kept
        };
        let networks = of_networks(&actual);

        for change in plan(&wanted(&addresses), &actual) {
            apply(&change, &mut actual);
        }

        prop_assert_eq!(plan(&wanted(&addresses), &actual), []);
        prop_assert_eq!(foreign(&actual), before, "what is not wanted is left alone");
        prop_assert_eq!(of_networks(&actual), networks, "other devices keep their networks");
    }

    #[test]
    fn moved_address_is_always_present(mut actual in any_node()) {
        let addresses: Vec<_> = POOL.into_iter().map(ip).collect();
        let usable = |actual: &Actual, address: IpAddr| {
            actual.addresses.iter().any(|held| held.usable && held.prefix.addr() == address)
        };
        let there: Vec<_> =
            addresses.iter().copied().filter(|address| usable(&actual, *address)).collect();

        for change in plan(&wanted(&addresses), &actual) {
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
