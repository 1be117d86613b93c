//! The device of a tunnel: what is put on it, what is taken off it, and what cannot be.

use std::fs;

use ipnet::IpNet;
use net_config::{NetConfigError, TunnelDevice};

use crate::support::*;

const TUNNEL: &str = "rhizome0";
const NOTHING: [&str; 0] = [];

#[test]
fn bare_device_is_configured_and_up() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);

        let changes = device(&["192.168.123.1/24", "fd8f::1/96"])
            .configure()
            .await
            .unwrap();

        assert_eq!(
            changes,
            [
                "set the MTU of rhizome0 to 1420",
                "set the queue of rhizome0 to 1000 packets",
                "keep link-local addresses off rhizome0",
                "set rhizome0 up",
                "add 192.168.123.1/24 to rhizome0",
                "add fd8f::1/96 to rhizome0",
            ]
        );
        let shown = ip(&["-d", "-o", "link", "show", TUNNEL]);
        for part in ["mtu 1420 ", "qlen 1000", ",UP", "addrgenmode none"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        let again = device(&["192.168.123.1/24", "fd8f::1/96"])
            .configure()
            .await;
        assert_eq!(again.unwrap(), NOTHING);
    });
}

#[test]
fn only_wanted_addresses_remain() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);
        device(&[
            "192.168.123.9/24",
            "192.168.123.10/24",
            "fd8f::9/96",
            "fd8f::1/96",
        ])
        .configure()
        .await
        .unwrap();
        ip(&["addr", "add", "fe80::1/64", "dev", TUNNEL]);

        // Now the first and primary one is stale, and with it the kernel removes the second.
        let wanted = ["192.168.123.10/24", "192.168.124.1/24", "fd8f::1/96"];
        device(&wanted).configure().await.unwrap();

        assert_eq!(all_addresses(), wanted);
        assert_eq!(device(&wanted).configure().await.unwrap(), NOTHING);
    });
}

#[test]
fn address_with_other_prefix_is_replaced() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);
        ip(&["link", "set", TUNNEL, "up"]);
        ip(&["addr", "add", "192.168.123.1/16", "dev", TUNNEL]);
        ip(&["addr", "add", "fd8f::1/96", "dev", TUNNEL]);

        device(&["192.168.123.1/24", "fd8f::1/96"])
            .configure()
            .await
            .unwrap();

        assert_eq!(all_addresses(), ["192.168.123.1/24", "fd8f::1/96"]);
        assert_eq!(routes_of_tunnel(), Vec::<String>::new());
    });
}

#[test]
fn prefixes_are_routed_where_that_is_asked_for() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);

        let client = TunnelDevice {
            prefix_routes: true,
            ..device(&["192.168.123.64/24", "fd8f::b:0/96"])
        };
        client.configure().await.unwrap();

        assert_eq!(routes_of_tunnel(), ["192.168.123.0/24", "fd8f::/96"]);
        device(&["192.168.123.64/24", "fd8f::b:0/96"])
            .configure()
            .await
            .unwrap();
        assert_eq!(routes_of_tunnel(), Vec::<String>::new());
    });
}

#[test]
fn small_device_grows_before_ipv6() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);
        ip(&["link", "set", TUNNEL, "mtu", "1000", "up"]);

        device(&["fd8f::1/96"]).configure().await.unwrap();

        assert_eq!(all_addresses(), ["fd8f::1/96"]);
    });
}

#[test]
fn ipv6_that_is_off_is_told_apart() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);
        fs::write("/proc/sys/net/ipv6/conf/rhizome0/disable_ipv6", "1").unwrap();

        let refused = device(&["fd8f::1/96"]).configure().await;

        assert!(
            matches!(refused, Err(NetConfigError::Ipv6Disabled { .. })),
            "{refused:?}"
        );
        device(&["192.168.123.1/24"]).configure().await.unwrap();
    });
}

#[test]
fn without_the_capability_it_says_so() {
    in_namespace(async {
        ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);
        drop_net_admin();

        let refused = device(&["192.168.123.1/24"]).configure().await;

        assert!(
            matches!(refused, Err(NetConfigError::Permission { .. })),
            "{refused:?}"
        );
    });
}

fn device(addresses: &[&str]) -> TunnelDevice {
    TunnelDevice {
        device: TUNNEL.to_owned(),
        mtu: 1420,
        queue_packets: 1000,
        addresses: addresses.iter().map(|text| prefix(text)).collect(),
        prefix_routes: false,
    }
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Link-local ones as well, in order.
fn all_addresses() -> Vec<String> {
    let mut all: Vec<_> = ip(&["-o", "addr", "show", "dev", TUNNEL])
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3))
        .map(str::to_owned)
        .collect();
    all.sort_unstable();
    all
}

/// Destinations in the main table out of the device, of both families.
fn routes_of_tunnel() -> Vec<String> {
    let shown = [
        ip(&["-4", "route", "show", "dev", TUNNEL]),
        ip(&["-6", "route", "show", "dev", TUNNEL]),
    ]
    .concat();
    shown
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}
