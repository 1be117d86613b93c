//! Values as files and the environment write them.

use ::settings::{ByteSize, ConfigErrors, HumanDuration, TcpOverrides, yaml};

use super::*;

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    yaml::from_str(text, "a.yaml".as_ref()).map_err(|error| error.to_string())
}

fn findings(validate: impl FnOnce(&mut ConfigErrors)) -> Vec<String> {
    let mut errors = ConfigErrors::new();
    validate(&mut errors);
    let all = errors.iter().map(|(key, why)| format!("{key}: {why}"));
    all.collect()
}

#[test]
fn networks_are_one_list_without_duplicates() {
    let networks: Networks = read(
        r#"{ pods: ["100.96.0.0/11", "fd00:10::/48"], nodes: ["10.250.0.0/16", "100.96.0.0/11"] }"#,
    )
    .unwrap();
    let all: Vec<String> = networks.all().iter().map(ToString::to_string).collect();
    assert_eq!(all, ["10.250.0.0/16", "100.96.0.0/11", "fd00:10::/48"]);
    assert!(findings(|errors| networks.validate("networks", errors)).is_empty());
}

#[test]
fn unusable_networks_are_named() {
    let found = findings(|errors| Networks::default().validate("networks", errors));
    let none = "networks: at least one network of the shoot is needed";
    assert_eq!(found, [none]);
    let networks: Networks = read(
        r#"{ pods: ["0.0.0.0/0"], services: ["10.0.0.0/8", "127.0.0.0/8"], nodes: ["ff00::/8"] }"#,
    )
    .unwrap();
    let found = findings(|errors| networks.validate("networks", errors));
    let expected = [
        "networks.pods[0]: would be every",
        "networks.services[1]: is of the loopback",
        "networks.nodes[0]: is of multicast",
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    assert_eq!(found.len(), expected.len());
    for bad in ["10.0.0.1/8", "10.0.0.0/33", "pods", "::ffff:10.0.0.0/104"] {
        let error = read::<Networks>(&format!("{{ pods: [\"{bad}\"] }}")).unwrap_err();
        let named = error.starts_with("a.yaml:1:") && error.contains("pods[0]");
        assert!(named, "{error}");
    }
}

#[test]
fn environment_lists_fill_empty_file_lists() {
    let mut networks: Networks = read(r#"{ pods: ["100.96.0.0/11"] }"#).unwrap();
    let environment: Environment = [
        ("SHOOT_POD_NETWORKS", "10.0.0.0/8"),
        ("SHOOT_SERVICE_NETWORKS", " 100.64.0.0/13, fd00::/108,"),
        ("SHOOT_NODE_NETWORKS", ""),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into_iter()
    .collect();
    assert!(findings(|errors| environment.fill_networks(&mut networks, errors)).is_empty());
    assert_eq!(networks.pods, ["100.96.0.0/11".parse().unwrap()]);
    assert_eq!(networks.services.len(), 2);
    assert!(networks.nodes.is_empty());
    assert!(Cidr::list("10.0.0.0/8,x").is_err());
}

#[test]
fn addresses_keep_the_bits_behind_their_prefix() {
    for (text, network) in [
        ("192.168.123.1/24", "192.168.123.0/24"),
        ("fd8f:6d53:b97a:1::b:0/96", "fd8f:6d53:b97a:1::/96"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("128.0.0.1/1", "128.0.0.0/1"),
    ] {
        let address: TunnelAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), text);
        assert_eq!(address.network(), network.parse().unwrap());
    }
    for (bad, why) in [
        ("192.168.123.1", "is not an address with a prefix length"),
        ("192.168.123.1/", "is not an address with a prefix length"),
        ("192.168.123.1/+8", "is not an address with a prefix length"),
        ("192.168.123.1/33", "must be from 1 to 32"),
        ("192.168.123.1/999", "must be from 1 to 32"),
        ("fd00::1/0", "must be from 1 to 128"),
        ("127.0.0.1/8", "is of the loopback device"),
        ("::/96", "is the unspecified address"),
        ("ff02::1/16", "is of multicast"),
        ("::ffff:10.0.0.1/104", "is IPv4 written as IPv6"),
    ] {
        let error = bad.parse::<TunnelAddress>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn addresses_are_one_per_family_beside_networks() {
    let found = |texts: &[&str]| {
        let addresses: Vec<TunnelAddress> =
            texts.iter().map(|text| text.parse().unwrap()).collect();
        let networks = ["10.0.0.0/8".parse().unwrap()];
        findings(|errors| validate_addresses(&addresses, &networks, errors))
    };
    assert!(found(&["192.168.0.1/24", "fd00::1/96"]).is_empty());
    let twice = "addresses: more than one address of IPv4";
    assert_eq!(found(&["192.168.0.1/24", "192.168.1.1/24"]), [twice]);
    let none = "addresses: at least one address is needed, or VPN_NETWORK";
    assert_eq!(found(&[]), [none]);
    for (one, other, overlaps) in [
        ("10.0.0.0/8", "10.1.0.0/16", true),
        ("10.1.0.0/16", "10.0.0.0/8", true),
        ("10.0.0.0/16", "10.1.0.0/16", false),
        ("10.0.0.0/8", "fd00::/8", false),
    ] {
        let [one, other] = [one, other].map(|text| text.parse().unwrap());
        assert_eq!(overlap(&one, &other), overlaps);
    }
}

#[test]
fn both_ends_compute_the_same_transfer_addresses() {
    use End::{Client, Server};
    const V6: &str = "fd8f:6d53:b97a:1::/96";
    const V4: &str = "192.168.123.0/24";
    for (network, end, address) in [
        (V6, Server(0), "fd8f:6d53:b97a:1::1/96"),
        (V6, Server(1), "fd8f:6d53:b97a:1::2/96"),
        (V6, Client(0), "fd8f:6d53:b97a:1::b:0/96"),
        (V6, Client(1), "fd8f:6d53:b97a:1::b:1/96"),
        (V4, Server(0), "192.168.123.1/24"),
        (V4, Client(1), "192.168.123.65/24"),
    ] {
        let got = transfer_address(network.parse().unwrap(), end).unwrap();
        assert_eq!(got.to_string(), address);
    }
    for (network, end) in [
        ("192.168.123.0/26", Client(0)),
        (V4, Client(191)),
        (V4, Server(63)),
        ("192.168.123.1/32", Server(0)),
        ("fd00::/120", Client(0)),
        ("fd00::1/128", Server(1)),
    ] {
        let got = transfer_address(network.parse().unwrap(), end);
        assert!(got.is_err(), "{network} {end:?}");
    }
}

#[test]
fn family_without_transfer_network_has_default() {
    let list =
        |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let got = |given: &[&str], networks: &[&str]| -> Vec<String> {
        let addresses = transfer_addresses(&list(given), &list(networks), End::Client(0));
        addresses.unwrap().iter().map(ToString::to_string).collect()
    };
    let both = ["fd00::b:0/96", "192.168.123.64/24"];
    assert_eq!(got(&["fd00::/96"], &["10.0.0.0/8"]), both);
    assert_eq!(got(&[], &["fd01::/64"]), ["fd8f:6d53:b97a:1::b:0/96"]);
    assert!(got(&[], &[]).is_empty());
}

#[test]
fn pods_are_numbered_by_the_end_of_their_names() {
    assert_eq!(trailing_number("vpn-shoot-1"), Some(1));
    assert_eq!(trailing_number("vpn-seed-server-0"), Some(0));
    let without = "vpn-shoot vpn-shoot-7c9d vpn-shoot- vpn-shoot-99999 3 a-+1";
    for name in without.split(' ') {
        assert_eq!(trailing_number(name), None, "{name}");
    }
}

#[test]
fn device_names_are_valid_kernel_names() {
    for name in ["rhizome0", "a", "exactly15bytes"] {
        assert_eq!(name.parse::<DeviceName>().unwrap().as_str(), name);
    }
    let short = ["", ".", "..", "a/b", "a b", "a:0", "tun%d", "ä"];
    for name in short.into_iter().chain(["sixteen-bytes-xy"]) {
        let refused = name.parse::<DeviceName>().unwrap_err().to_string();
        assert!(refused.contains("not the name of a device"), "{name}");
    }
    assert_eq!(DeviceName::default().as_str(), "rhizome0");
}

#[test]
fn queue_with_impossible_values_is_refused() {
    let found = |text: &str| {
        let queue: Queue = read(text).unwrap();
        findings(|errors| queue.validate("queue", errors))
    };
    assert!(found("{}").is_empty());
    let wrong = [
        "queue.target: 0 would drop everything",
        "queue.packets: must be from 16 to 1024, the far end's replay window",
        "queue.bytes: must be from 64KiB to 1GiB",
    ];
    let all = found("{ target: 0, interval: 1ms, packets: 1, bytes: 1KiB }");
    assert_eq!(all, wrong);
    assert_eq!(found("{ packets: 1025 }"), [wrong[1]]);
    let interval = "queue.interval: must be at least the target";
    assert_eq!(found("{ interval: 1ms }"), [interval]);
}

#[test]
fn tcp_defaults_apply_where_file_is_silent() {
    let settings = tcp(&TcpOverrides::default());
    assert_eq!(settings.congestion, "auto");
    assert_eq!(settings.notsent_lowat, ByteSize(65_536));
    assert_eq!(settings.user_timeout, HumanDuration::from_secs(10));
    assert!(settings.keepalive.0.is_zero());
    let streams = crate::stream::StreamParams::default();
    assert_eq!(settings.notsent_lowat.0, u64::from(streams.notsent_lowat));
    assert!(findings(|errors| settings.validate("tcp", errors)).is_empty());
    let named = tcp(&read("{ congestion: cubic }").unwrap());
    assert_eq!(named.congestion, "cubic");
}
