//! The configuration file and the environment: what is in effect, and what is refused by which name.

use std::time::Duration;

use serde_json::Value;
use settings::EndpointAddr;
use tunnel::RouteId;

use super::*;

const SAMPLE: &str = r#"
device: rhizome0
routeId: 17
addresses: ["fd8f:6d53:b97a:1::1/96", "192.168.123.1/24"]
networks: { pods: ["100.96.0.0/11"], services: ["100.64.0.0/13"], nodes: ["10.250.0.0/16"] }
keys: { private: [/keys/server-0, /keys/server-1], peers: /keys/peers.yaml }
listen: { tcp: "[::]:1194", udp: "[::]:51820", wrapped: "[::]:51821" }
trustedGateways: ["10.0.0.0/8"]
proxy: { address: "[::]:9443", ca: ca.crt, cert: tls.crt, key: tls.key, connectTimeout: 20s, connections: 8192, resolvers: ["100.64.0.10:53"] }
probes: { address: "[::]:15000" }
drain: { delay: 0s, timeout: 30s }
"#;

/// All that must be given when the environment has the rest.
const LEAST: &str = r#"
keys: { private: [key], peers: peers.yaml }
proxy: { ca: ca.crt, cert: tls.crt, key: tls.key }
"#;

fn config_in(text: &str, environment: &Environment) -> Result<Config, String> {
    let origin = Path::new("/etc/vpn/server.yaml");
    Config::from_text(text, origin, environment).map_err(|error| error.to_string())
}

fn config(text: &str) -> Result<Config, String> {
    config_in(text, &Environment::default())
}

fn environment(variables: &[(&'static str, &str)]) -> Environment {
    let variables = variables.iter();
    variables
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect()
}

fn addresses(config: &Config) -> Vec<String> {
    let own = config.inner.iter();
    own.map(|own| own.to_string()).collect()
}

fn networks(config: &Config) -> Vec<String> {
    let networks = config.networks.all();
    networks.iter().map(ToString::to_string).collect()
}

#[test]
fn documented_sample_matches_defaults() {
    let sample = config(SAMPLE).unwrap();
    let shorter = r#"
routeId: 17
addresses: ["fd8f:6d53:b97a:1::1/96", "192.168.123.1/24"]
networks: { pods: ["100.96.0.0/11"], services: ["100.64.0.0/13"], nodes: ["10.250.0.0/16"] }
keys: { private: [/keys/server-0, /keys/server-1], peers: /keys/peers.yaml }
trustedGateways: ["10.0.0.0/8"]
proxy: { ca: ca.crt, cert: tls.crt, key: tls.key, resolvers: ["100.64.0.10:53"] }
"#;
    assert_eq!(sample.effective(), config(shorter).unwrap().effective());
    assert_eq!(sample.route.map(RouteId::get), Some(17));
    assert_eq!(sample.name, "vpn-seed-server");
    assert_eq!(sample.mtu, 1420);
    assert_eq!(sample.tcp_options.notsent_lowat, 64 << 10);
    assert_eq!(sample.admin.address, EndpointAddr::None);
}

#[test]
fn paths_are_relative_to_config_file() {
    let config = config(SAMPLE).unwrap();
    assert_eq!(config.tls().cert, Path::new("/etc/vpn/tls.crt"));
    assert_eq!(config.key_files.private[1], Path::new("/keys/server-1"));
}

#[test]
fn wrapped_port_needs_trusted_gateways() {
    let trusting = config(SAMPLE).unwrap();
    assert!(trusting.wrapped().is_some());
    let text = changed(&["trustedGateways: []"]);
    assert!(config(&text).unwrap().wrapped().is_none());
}

#[test]
fn port_can_be_left_closed() {
    let config = config(&changed(&["listen: { udp: null }"])).unwrap();
    assert!(config.listen.udp.is_none());
    assert!(config.listen.tcp.is_some());
}

#[test]
fn congestion_control_comes_from_file() {
    let with =
        |tcp: &str| config(&format!("{SAMPLE}\ntcp: {tcp}\n")).map(|config| config.tcp_options);
    assert_eq!(with("{ congestion: reno }").unwrap().congestion, "reno");
    assert_eq!(with("{ congestion: '' }").unwrap().congestion, "");
    assert_eq!(with("{ congestion: auto }").unwrap().congestion, "auto");
    // What is not named keeps this program's default.
    let other = with("{ congestion: reno }").unwrap();
    assert_eq!(other.user_timeout, Duration::from_secs(10));
    assert!(with("{ congestion: nonesuch }").is_err());
}

/// The sample with other values of some keys, each such as `proxy.resolvers[0]: 10.0.0.1:53`.
fn changed(changes: &[&str]) -> String {
    let read = |text: &str| -> Value { yaml::from_str(text, Path::new("test")).unwrap() };
    let mut file = read(SAMPLE);
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
fn mistakes_are_reported_by_key() {
    for row in [
        "device: a/b => device: not the name",
        "table: 254 => table: 254 is a table of the kernel's own",
        "mtu: 1279 => mtu: 1279 is not between",
        "flows: 0 => flows: not between 1",
        "workers: 65 => workers: not between 1",
        "queue.packets: 1 => queue.packets: must be",
        "buffers.receive: 1KiB => buffers.receive: not between",
        "limits.links: 0 => limits.links: 0 would refuse",
        "limits.helloTimeout: 0 => limits.helloTimeout: 0",
        "routeId: 0 => routeId: 0 is not between 1 and 1048575",
        "routeId: 1048576 => routeId: 1048576 is not between",
        "addresses[1]: 192.168.123.0/24 => addresses[1]: 192.168.123.0/24 is a network",
        "addresses[1]: 192.168.123.1 => addresses[1]: `192.168.123.1` is not an address with a",
        "addresses[1]: 'fd00::1/96' => addresses: more than one address of IPv6",
        "addresses[1]: 10.250.0.1/24 => \
         addresses[1]: the transfer network 10.250.0.0/24 overlaps 10.250.0.0/16",
        "addresses: ['fd00::1/96'] => addresses: an IPv4 address is needed for 10.250.0.0/16",
        "networks.pods[0]: 100.96.0.1/11 => networks.pods[0]: `100.96.0.1/11` is not a network",
        "networks.pods[0]: 0.0.0.0/0 => networks.pods[0]: would be every address",
        "keys.private: [/keys/a, /keys/a] => keys.private[1]: /keys/a is there twice",
        "keys.private: [] => keys.private: at least one key",
        "keys.peers: '' => keys.peers: not a file",
        "trustedGateways: [10.0.0.1/8] => trustedGateways[0]: `10.0.0.1/8` is not a network",
        "listen.wrapped: '[::]:51820' => listen.wrapped: [::]:51820 is `listen.udp` already",
        "proxy.address: '[::]:1194' => listen.tcp: [::]:1194 is `proxy.address` already",
        "proxy.connectTimeout: 0s => proxy.connectTimeout: 0 would refuse",
        "proxy.connections: 0 => proxy.connections: 0 would refuse",
        "proxy.resolvers[0]: 100.128.0.10:53 => \
         proxy.resolvers[0]: 100.128.0.10:53 is in none",
        "proxy.clusterDomain: a..b => proxy.clusterDomain: `a..b` is not a domain",
        "listen: { tcp: null, udp: null, wrapped: null } => listen: no client",
    ] {
        let (change, problem) = row.split_once(" => ").unwrap();
        let error = config(&changed(&[change])).expect_err(row);
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
    for (to, problem) in [
        ("devise: rhizome0", "server.yaml:2:"),
        ("device: a/b", "server.yaml:2:9: device: not the name"),
    ] {
        let error = config(&SAMPLE.replace("device: rhizome0", to)).unwrap_err();
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
    let untrusted = ["listen: { tcp: null, udp: null }", "trustedGateways: []"];
    let error = config(&changed(&untrusted)).unwrap_err();
    assert!(error.contains("trustedGateways: needed"), "{error}");
}

#[test]
fn config_without_networks_is_refused() {
    let error = config(LEAST).unwrap_err();
    assert!(error.contains("networks: at least one network"), "{error}");
}

#[test]
fn environment_fills_missing_keys() {
    let environment = environment(&[
        ("POD_NAME", "vpn-seed-server-1"),
        ("IS_HA", "true"),
        ("SHOOT_POD_NETWORKS", "100.96.0.0/11, 100.128.0.0/11"),
        ("SHOOT_SERVICE_NETWORKS", "100.64.0.0/13"),
        ("VPN_NETWORK", "fd8f:6d53:b97a:1::/96"),
    ]);
    let config = config_in(LEAST, &environment).unwrap();
    assert_eq!(config.name, "vpn-seed-server-1");
    // IPv4 has a customary network, since the variable names one network alone.
    assert_eq!(
        addresses(&config),
        ["fd8f:6d53:b97a:1::2/96", "192.168.123.2/24"]
    );
    assert_eq!(
        networks(&config),
        ["100.64.0.0/13", "100.96.0.0/11", "100.128.0.0/11"]
    );
}

#[test]
fn file_overrides_environment() {
    let environment = environment(&[
        ("POD_NAME", "other-4"),
        ("IS_HA", "true"),
        ("SHOOT_POD_NETWORKS", "10.1.0.0/16"),
        ("VPN_NETWORK", "10.2.0.0/24"),
    ]);
    let text = format!("{SAMPLE}\nname: mine\n");
    let config = config_in(&text, &environment).unwrap();
    assert_eq!(config.name, "mine");
    assert_eq!(networks(&config)[1], "100.64.0.0/13");
    assert_eq!(addresses(&config)[1], "192.168.123.1/24");
}

#[test]
fn network_lists_are_filled_separately() {
    let environment = environment(&[
        ("SHOOT_NODE_NETWORKS", "10.250.0.0/16"),
        ("SHOOT_POD_NETWORKS", "10.1.0.0/16"),
    ]);
    let text = format!("{LEAST}\nnetworks: {{ pods: [\"100.96.0.0/11\"] }}\n");
    let config = config_in(&text, &environment).unwrap();
    assert_eq!(networks(&config), ["10.250.0.0/16", "100.96.0.0/11"]);
    assert_eq!(addresses(&config), ["192.168.123.1/24"]);
}

#[test]
fn environment_mistakes_are_reported() {
    let pods = ("SHOOT_POD_NETWORKS", "100.96.0.0/11");
    assert!(config_in(LEAST, &environment(&[pods])).is_ok());
    for (more, problem) in [
        (&[("IS_HA", "perhaps")][..], "IS_HA: `perhaps`"),
        (
            &[("IS_HA", "true"), ("POD_NAME", "vpn-seed-server")],
            "POD_NAME: with IS_HA it must end",
        ),
        (
            &[("VPN_NETWORK", "10.0.0.1/8")],
            "VPN_NETWORK: `10.0.0.1/8`",
        ),
        (
            &[("VPN_NETWORK", "192.168.123.4/31")],
            "VPN_NETWORK: the transfer network 192.168.123.4/31 is too small",
        ),
        (
            &[
                ("SHOOT_POD_NETWORKS", "100.96.0.0"),
                ("SHOOT_NODE_NETWORKS", "x"),
            ],
            "SHOOT_NODE_NETWORKS: `x`",
        ),
    ] {
        let environment = environment(&[&[pods], more].concat());
        let error = config_in(LEAST, &environment).unwrap_err();
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
}

#[test]
fn effective_config_reads_back() {
    let environment = environment(&[("SHOOT_POD_NETWORKS", "100.96.0.0/11")]);
    let config = config_in(LEAST, &environment).unwrap();
    let text = settings::effective_yaml(&config.effective()).unwrap();
    let again = config_in(&text, &Environment::default()).unwrap();
    assert_eq!(again.effective(), config.effective());
}
