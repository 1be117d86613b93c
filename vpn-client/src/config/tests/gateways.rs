//! The gateway in front of each server.

use super::*;

/// The sample with `endpoint` in the second server.
fn second(endpoint: &str) -> String {
    changed(&[&format!("servers[1].endpoint: {endpoint}")])
}

/// Where each server's gateway takes TCP and datagrams.
fn gateways(config: &Config) -> Vec<[String; 2]> {
    let gateways = config.gateways.values();
    let both = |gateway: &Gateway| [gateway.tcp.to_string(), gateway.udp.to_string()];
    gateways.map(both).collect()
}

#[test]
fn server_endpoint_replaces_common_key_by_key() {
    let common = ["api.example.com:8132", "api.example.com:51820"];
    for (endpoint, own) in [
        ("{}", common),
        (
            "{ address: b.example.com }",
            ["b.example.com:8132", "b.example.com:51820"],
        ),
        (
            "{ tcpPort: 8443 }",
            ["api.example.com:8443", "api.example.com:51820"],
        ),
        (
            "{ address: \"2001:db8::1\", udpPort: 443 }",
            ["[2001:db8::1]:8132", "[2001:db8::1]:443"],
        ),
    ] {
        let config = config(&second(endpoint)).unwrap();
        assert_eq!(gateways(&config), [common, own], "{endpoint}");
    }
}

#[test]
fn common_address_is_needed_by_servers_without_own() {
    let nowhere = "endpoint.address: ''";
    let [a, b] = [
        "servers[0].endpoint: { address: a.example.com }",
        "servers[1].endpoint: { address: b.example.com }",
    ];
    let both = config(&changed(&[nowhere, a, b])).unwrap();
    let tcp = gateways(&both).into_iter().map(|[tcp, _]| tcp);
    assert!(tcp.eq(["a.example.com:8132", "b.example.com:8132"]));
    let error = config(&changed(&[nowhere, a])).unwrap_err();
    assert!(error.contains("endpoint.address: needed"), "{error}");
}

#[test]
fn mistakes_of_a_server_endpoint_are_named() {
    for (endpoint, problem) in [
        (
            "{ tcpPort: 0 }",
            "servers[1].endpoint.tcpPort: 0 is no port",
        ),
        (
            "{ udpPort: 0 }",
            "servers[1].endpoint.udpPort: 0 is no port",
        ),
        (
            "{ address: \"b.example:443\" }",
            "servers[1].endpoint.address: `b.example:443` is no host",
        ),
        ("{ header: X-Other }", "header"),
    ] {
        let error = config(&second(endpoint)).expect_err(endpoint);
        assert!(error.contains(problem), "{problem:?} is not in {error}");
    }
}

#[test]
fn server_endpoint_changes_while_running() {
    let own = config(&sample()).unwrap();
    let fresh = config(&second("{ address: b.example.com }")).unwrap();
    let changed = own.reloaded(&fresh).unwrap();
    assert!(own.restart_keys(&fresh).is_empty());
    assert_eq!(changed.gateways, fresh.gateways);
    assert_ne!(changed.gateways, own.gateways);
}

#[test]
fn udp_transport_needs_no_server_value() {
    let [one, other] = ["servers[0].value: ''", "servers[1].value: ''"];
    let error = config(&changed(&[one, other])).unwrap_err();
    assert!(error.contains("servers[0].value: needed by TCP"), "{error}");
    let config = config(&changed(&[one, other, "endpoint.transport: udp"])).unwrap();
    assert_eq!(config.path.mode, Mode::Udp);
}

#[test]
fn endpoint_accepts_address_or_name() {
    for (address, tcp) in [
        ("192.0.2.1", "192.0.2.1:8132"),
        ("2001:db8::1", "[2001:db8::1]:8132"),
        ("[2001:db8::1]", "[2001:db8::1]:8132"),
        ("api.example.com.", "api.example.com.:8132"),
    ] {
        let config = config(&sample().replace("api.example.com", address)).unwrap();
        assert_eq!(config.gateways["vpn-seed-server-1"].tcp.to_string(), tcp);
    }
}
