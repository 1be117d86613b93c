//! The diff, against kernels made of two vectors.

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
        address: ip(address),
        prefix_length,
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
fn cleanup_keeps_a_device_that_somebody_else_uses() {
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

#[test]
fn applying_a_plan_leaves_nothing_to_plan() {
    let addresses = [ip("10.1.2.3"), ip("fd00::3")];
    let mut actual = node(vec![held(1, "10.1.2.3", 32), held(2, "fd00::3", 64)]);

    for change in plan(wanted(&addresses), &actual) {
        apply(&change, &mut actual);
    }

    assert!(plan(wanted(&addresses), &actual).is_empty());
}

/// What the kernel would do, for the changes an existing device sees.
fn apply(change: &Change, actual: &mut Actual) {
    let index = |actual: &Actual, name: &str| actual.link(name).unwrap().index;
    match change {
        Change::AddAddress { address, device } => actual.addresses.push(HeldAddress {
            index: index(actual, device),
            address: *address,
            prefix_length: host_prefix(*address),
            usable: true,
        }),
        Change::RemoveAddress {
            address, device, ..
        } => {
            let index = index(actual, device);
            actual
                .addresses
                .retain(|held| held.index != index || held.address != *address);
        }
        Change::CreateDevice { .. } | Change::DeleteDevice { .. } | Change::SetUp { .. } => {
            panic!("{change} is not expected of an existing device that is up")
        }
    }
}
