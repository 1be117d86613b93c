//! The access log's fields, as standard output carries them.

use std::io::{Read, Write};
use std::net::Shutdown;

use serde_json::{Value, json};
use testkit::upstream::{Behavior, Upstream};

use crate::gateway::{Scripted, consent_and_echo};
use crate::proxy::{DESTINATION, LIMIT, Program, by_connect, by_proxy_header, config, connect};

/// Has a client say `hello` and returns its address, the proxy's, and the log's line.
fn logged(upstream: Value) -> (String, String, Value) {
    let format = json!({ "accessLog": { "format": "json" } });
    let mut program = Program::start(&config(upstream, format));
    let mut client = connect(program.addr);
    let from = client.local_addr().unwrap().to_string();
    client.write_all(b"hello").unwrap();
    // Bytes that reach no peer are answered by a reset.
    let _ = client.shutdown(Shutdown::Write);
    let _ = client.read_to_end(&mut Vec::new());
    let line = program.child.wait_log("\"reason\":", LIMIT).unwrap();
    (
        from,
        program.addr.to_string(),
        serde_json::from_str(&line).unwrap(),
    )
}

/// Checks what every line has, the order of the fields among it.
fn expect(line: &Value, fields: &Value) {
    let names = [
        "time",
        "listener",
        "protocol",
        "peer",
        "client",
        "server_name",
        "alpn",
        "destination",
        "connect",
        "cluster",
        "endpoint",
        "rx_bytes",
        "tx_bytes",
        "duration_ms",
        "reason",
    ];
    let Value::Object(line) = line else {
        panic!("an object: {line}")
    };
    for name in names {
        assert!(line.contains_key(name), "{name} is not in {line:?}");
    }
    assert_eq!(line.len(), names.len(), "{line:?}");
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(line[name], *value, "{name}");
    }
}

#[test]
fn proxy_header_connection_logs_destination() {
    let gateway = Upstream::start(Behavior::Sink).unwrap();
    let (from, to, line) = logged(by_proxy_header(gateway.addr()));
    expect(
        &line,
        &json!({
            "listener": "127.0.0.1:0", "protocol": "proxy-protocol", "peer": from, "client": from,
            "server_name": null, "alpn": null, "destination": to, "connect": null,
            "cluster": "gateway", "endpoint": gateway.addr().to_string(),
            "rx_bytes": 5, "tx_bytes": 0, "reason": "closed",
        }),
    );
}

#[test]
fn connect_connection_logs_header() {
    let gateway = Scripted::start(consent_and_echo);
    let (from, _, line) = logged(by_connect(gateway.addr));
    expect(
        &line,
        &json!({
            "protocol": "http-connect", "peer": from, "client": from, "destination": null,
            "connect": DESTINATION, "cluster": "gateway", "endpoint": gateway.addr.to_string(),
            "rx_bytes": 5, "tx_bytes": 5, "reason": "closed",
        }),
    );
}

#[test]
fn access_log_names_reason_of_failed_connect() {
    let free = testkit::ports::free(1).unwrap()[0];
    let (_, _, line) = logged(by_proxy_header(format!("127.0.0.1:{free}")));
    expect(
        &line,
        &json!({ "cluster": "gateway", "endpoint": null, "reason": "connect_refused" }),
    );
}
