//! The gateway in front of the servers.

use super::*;

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
        assert_eq!(config.endpoint.tcp.to_string(), tcp);
    }
}
