//! What a file and the environment may contain.

use std::path::Path;

use serde_json::Value;
use tunnel::keys::PublicKey;
use tunnel::path::Mode;

use super::*;

mod gateways;

/// Two servers, as the documentation has them.
fn sample() -> String {
    let (one, other) = (public(1), public(2));
    format!(
        r#"
device: rhizome0
addresses: ["fd8f:6d53:b97a:1::b:0/96", "192.168.123.64/24"]
endpoint: {{ address: "api.example.com", tcpPort: 8132, udpPort: 51820, header: Reversed-VPN, transport: auto }}
servers:
- {{ name: vpn-seed-server-0, publicKeys: ["{one}"], routeId: 17, value: "outbound|1194||vpn-seed-server-0.shoot--foo--bar.svc.cluster.local", addresses: ["fd8f:6d53:b97a:1::1", "192.168.123.1"] }}
- {{ name: vpn-seed-server-1, publicKeys: ["{other}"], presharedKey: psk-1, routeId: 18, value: "outbound|1194||vpn-seed-server-1.shoot--foo--bar.svc.cluster.local", addresses: ["fd8f:6d53:b97a:1::2", "192.168.123.2"] }}
keys: {{ private: /keys/client }}
networks: {{ pods: ["100.96.0.0/11"], services: ["100.64.0.0/13"], nodes: ["10.250.0.0/16"] }}
masquerade: true
probes: {{ address: "[::]:8080" }}
"#
    )
}

fn public(seed: u8) -> PublicKey {
    PrivateKey::from_bytes([seed; 32]).public()
}

fn load(text: &str, environment: &Environment) -> Result<Config, String> {
    let origin = Path::new("/etc/rhizome/vpn-client.yaml");
    Config::from_text(text, origin, environment).map_err(|error| error.to_string())
}

fn config(text: &str) -> Result<Config, String> {
    load(text, &Environment::default())
}

#[test]
fn documented_sample_equals_defaults() {
    let sample = sample();
    let config = config(&sample).unwrap();
    assert_eq!(config.file.name, "vpn-shoot");
    assert_eq!(config.path.mode, Mode::Auto);
    let gateway = &config.gateways["vpn-seed-server-0"];
    assert_eq!(gateway.tcp.to_string(), "api.example.com:8132");
    assert_eq!(gateway.udp.to_string(), "api.example.com:51820");
    let files = ["/etc/rhizome/psk-1", "/keys/client"].map(PathBuf::from);
    assert_eq!(config.key_files(), files);
    assert_eq!(config.file.servers[0].route_id, Some(17));
    assert!(config.uses_ipv6() && !config.forwards_ipv6());
    assert_eq!(config.file.drain.delay.0, Duration::ZERO);

    let given = "device: rhizome0\n";
    let less = sample
        .replace(given, "")
        .replace("masquerade: true\n", "")
        .replace(r#"probes: { address: "[::]:8080" }"#, "")
        .replace(
            ", tcpPort: 8132, udpPort: 51820, header: Reversed-VPN, transport: auto",
            "",
        );
    assert_eq!(config.effective(), self::config(&less).unwrap().effective());
}

/// The sample with other values of some keys, each such as `servers[1].name: other`.
fn changed(changes: &[&str]) -> String {
    let read = |text: &str| -> Value { yaml::from_str(text, Path::new("test")).unwrap() };
    let mut file = read(&sample());
    for change in changes {
        let (key, value) = change.split_once(": ").unwrap();
        let parts = key.split(['.', '[', ']']).filter(|part| !part.is_empty());
        let place = parts.fold(&mut file, |at, part| match part.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[part],
        });
        *place = read(value);
    }
    file.to_string()
}

#[test]
fn mistakes_are_named() {
    let (one, other) = (public(1), public(2));
    for row in [
        "mtu: 1279 => mtu: 1279 is not between 1280 and 9000",
        "device: a/b => device: not the name of a device",
        "addresses[0]: 'fd8f:6d53:b97a:1::b:0' => addresses[0]: `fd8f",
        "addresses[1]: 'fd00::1/96' => addresses: more than one address of IPv6",
        "addresses: ['fd00::1/96'] => addresses: an IPv4 address is needed for 10.250.0.0/16",
        "networks.nodes: [192.168.0.0/16] => 192.168.123.0/24 overlaps 192.168.0.0/16",
        "networks.nodes: [10.250.0.1/16] => networks.nodes[0]",
        "networks.nodes: [0.0.0.0/0] => networks.nodes[0]: would be every address",
        "endpoint.address: '' => endpoint.address: needed, here or in ENDPOINT",
        "endpoint.address: a.example:443 => endpoint.address: `a.example:443` is no",
        "endpoint.address: a b => endpoint.address",
        "endpoint.tcpPort: 0 => endpoint.tcpPort: 0 is no port",
        "endpoint.udpPort: 0 => endpoint.udpPort: 0 is no port",
        "endpoint.header: Host => endpoint.header",
        "endpoint.header: a b => endpoint.header",
        "endpoint.connectTimeout: 0s => endpoint.connectTimeout: 0 would fail",
        "endpoint.connectTimeout: 7s => longer than path.dialTimeout",
        "servers[1].name: vpn-seed-server-0 => servers[1].name: \"vpn-seed-server-0\" has",
        "servers[1].name: '' => servers[1].name: `` is not a name",
        &format!(
            "servers[1].publicKeys: ['{one}'] => publicKeys: \"vpn-seed-server-0\" has the same"
        ),
        "servers[1].publicKeys: [c2hvcnQ=] => servers[1].publicKeys[0]: a key is 44",
        "servers[1].publicKeys: [] => servers[1].publicKeys: at least one",
        &format!("servers[1].publicKeys: ['{other}', '{other}'] => publicKeys[1]: listed twice"),
        "servers[1].routeId: 17 => servers[1].routeId: \"vpn-seed-server-0\" has the same",
        "servers[1].routeId: 0 => servers[1].routeId: 0 is not between 1 and 1048575",
        "servers[1].routeId: 1048576 => servers[1].routeId: 1048576 is not",
        "servers[1].value: outbound|1194||vpn-seed-server-0.shoot--foo--bar.svc.cluster.local => \
         servers[1].value: \"vpn",
        r#"servers[1].value: "\r\noutbound" => servers[1].value: cannot"#,
        "servers[1].addresses[1]: 192.168.123.1 => servers[1].addresses: \"vpn-seed-server-0\"",
        "servers[1].addresses[1]: 192.168.123.64 => addresses[1]: 192.168.123.64 is our own",
        "servers[1].addresses[1]: 10.0.0.1 => 10.0.0.1 is on no transfer network",
        "servers[1].addresses: ['fd00::2'] => servers[1].addresses: an IPv4 address is needed",
        "servers[1].presharedKey: '' => servers[1].presharedKey: not a file",
        "keys.private: [] => keys.private: at least one key",
        "keys.private: [a, a] => keys.private[1]: a is there twice",
        "keys.private: [a, b, c, d, e, f, g, h, i] => keys.private: 18 pairs of an own key",
        "keys.private: '' => keys.private[0]: not a file",
        "path.interval: 6s => path.interval: must be from 50ms to 5s",
        "path.standby: 26s => path.standby: must be from 100ms to 25s",
        "path.misses: 0 => path.misses: must be",
        "path.timeoutLeast: 1s => path.timeoutLeast: more than",
        "buffers.receive: 1KiB => buffers.receive: not between",
        "queue.packets: 1 => queue.packets: must be",
        "tcp.congestion: nonesuch => tcp: ",
        "tcp.keepalive: 1500ms => tcp.keepalive: must be whole",
    ] {
        let (change, problem) = row.split_once(" => ").unwrap();
        let error = config(&changed(&[change])).expect_err(row);
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
    for (from, to, problem) in [
        ("masquerade: true", "masquarade: 1", "vpn-client.yaml:10:"),
        ("transport: auto", "transport: both", "vpn-client.yaml:4:"),
    ] {
        let error = config(&sample().replace(from, to)).unwrap_err();
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
}

/// What Gardener sets, with some other values, and the least that a file must say beside it.
fn gardeners(others: &[(&'static str, &str)]) -> (Environment, String) {
    let set = [
        ("ENDPOINT", "api.example.com"),
        ("IS_HA", "true"),
        ("OPENVPN_PORT", "8443"),
        ("POD_NAME", "vpn-shoot-1"),
        (
            "REVERSED_VPN_HEADER",
            "outbound|1194||vpn-seed-server.shoot--foo--bar",
        ),
        ("REVERSED_VPN_HEADER_KEY", "X-Gardener-Destination"),
        ("SHOOT_NODE_NETWORKS", ""),
        ("SHOOT_POD_NETWORKS", "100.96.0.0/11,fd01::/64"),
        ("SHOOT_SERVICE_NETWORKS", "100.64.0.0/13"),
        ("VPN_NETWORK", "fd8f:6d53:b97a:1::/96"),
    ];
    let variables = set.iter().chain(others);
    let variables = variables.map(|(name, value)| (*name, (*value).to_owned()));
    // The last value of a name counts.
    let environment = variables.collect::<BTreeMap<_, _>>().into_iter().collect();
    let key = public(1);
    let text = format!(
        "servers: [{{ name: vpn-seed-server, publicKeys: [\"{key}\"] }}]\nkeys: {{ private: a }}"
    );
    (environment, text)
}

#[test]
fn environment_fills_what_file_leaves_out() {
    let (environment, text) = gardeners(&[]);
    let config = load(&text, &environment).unwrap();
    assert_eq!(config.file.name, "vpn-shoot-1");
    let gateway = &config.gateways["vpn-seed-server"];
    assert_eq!(gateway.tcp.to_string(), "api.example.com:8443");
    assert_eq!(config.endpoint.header, "X-Gardener-Destination");
    assert_eq!(
        config.file.servers[0].value,
        "outbound|1194||vpn-seed-server.shoot--foo--bar"
    );
    let own: Vec<_> = config
        .file
        .addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(own, ["fd8f:6d53:b97a:1::b:1/96", "192.168.123.65/24"]);
    let theirs: Vec<_> = config.file.servers[0]
        .addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(theirs, ["fd8f:6d53:b97a:1::1", "192.168.123.1"]);
    assert_eq!(config.file.networks.all().len(), 3);
    assert!(config.forwards_ipv6());
}

#[test]
fn file_wins_over_environment() {
    let (environment, _) = gardeners(&[]);
    let config = load(&sample(), &environment).unwrap();
    let alone = self::config(&sample()).unwrap();
    assert_eq!(config.endpoint.header, "Reversed-VPN");
    assert_eq!(config.file.addresses, alone.file.addresses);
    assert_eq!(config.gateways, alone.gateways);
    assert_eq!(config.file.networks.all(), alone.file.networks.all());
    assert_eq!(
        config.file.name, "vpn-shoot-1",
        "which the file does not say"
    );
}

#[test]
fn variables_that_cannot_be_used_are_named() {
    for (name, value, problem) in [
        ("OPENVPN_PORT", "http", "OPENVPN_PORT: not a port"),
        ("IS_HA", "perhaps", "IS_HA: `perhaps` is neither"),
        ("POD_NAME", "vpn-shoot-7d9f", "POD_NAME: with IS_HA"),
        ("VPN_NETWORK", "192.168.123.0", "VPN_NETWORK: "),
        ("VPN_NETWORK", "fd8f::1/96", "VPN_NETWORK: `fd8f::1/96`"),
        ("SHOOT_POD_NETWORKS", "pods", "SHOOT_POD_NETWORKS: `pods`"),
        ("ENDPOINT", "a:1", "endpoint.address: `a:1`"),
    ] {
        let (environment, text) = gardeners(&[(name, value)]);
        let error = load(&text, &environment).unwrap_err();
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
    // A pod of a Deployment has no number, and needs none.
    let (environment, text) = gardeners(&[("IS_HA", ""), ("POD_NAME", "vpn-shoot-7d9f-x2")]);
    let config = load(&text, &environment).unwrap();
    assert_eq!(
        config.file.addresses[0].to_string(),
        "fd8f:6d53:b97a:1::b:0/96"
    );
}

#[test]
fn only_keys_and_servers_change_while_running() {
    let own = config(&sample()).unwrap();
    let reloaded = |text: &str| own.reloaded(&config(text).unwrap());
    let keys = sample().replace(
        "private: /keys/client",
        "private: [/keys/new, /keys/client]",
    );
    let server = sample().replace(&public(2).to_string(), &public(3).to_string());
    for text in [&keys, &server] {
        let fresh = config(text).unwrap();
        assert!(own.restart_keys(&fresh).is_empty());
        assert_eq!(reloaded(text).unwrap().effective(), fresh.effective());
    }
    // What has no effect is not shown either.
    let other = server.replace("masquerade: true", "masquerade: false");
    let changed = reloaded(&other).unwrap();
    assert_eq!(changed.effective(), config(&server).unwrap().effective());
    assert_eq!(own.restart_keys(&config(&other).unwrap()), ["masquerade"]);
    // Nor do servers count that go with what has no effect.
    let moved = sample().replace("192.168.123.", "192.168.124.");
    let error = reloaded(&moved).unwrap_err().to_string();
    assert!(error.contains("is on no transfer network"), "{error}");
    assert_eq!(own.restart_keys(&config(&moved).unwrap()), ["addresses"]);
}

#[test]
fn keys_are_read_when_they_are_asked_for() {
    let dir = testkit::tempdir::TempDir::new("vpn-client").unwrap();
    let origin = dir.join("vpn-client.yaml");
    let text = sample().replace("/keys/client", "client");
    let config = Config::from_text(&text, &origin, &Environment::default()).unwrap();
    let missing = config.identity().err().map(|error| error.to_string());
    assert!(missing.is_some_and(|text| text.contains("client")));

    let key = PrivateKey::from_bytes([9; 32]);
    tunnel::keys::write_new(&dir.join("client"), &key).unwrap();
    dir.write("psk-1", format!("{}\n", public(4))).unwrap();
    let identity = config.identity().unwrap();
    assert_eq!(identity.keys.len(), 1);
    assert_eq!(identity.keys[0].public(), key.public());
    assert!(identity.peers[0].preshared_key.is_none());
    assert!(identity.peers[1].preshared_key.is_some());
    assert_eq!(config.key_files(), [dir.join("client"), dir.join("psk-1")]);
}
