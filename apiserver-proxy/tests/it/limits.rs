//! The limit of connections.

use std::io::{Read, Write};

use serde_json::json;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::proxy::{LIMIT, Running, by_proxy_header, config, finish};

#[test]
fn connection_above_limit_is_closed_and_counted() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let limits = json!({ "limits": { "connections": 2 } });
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), limits));
    let (one, mut two) = (proxy.connect(), proxy.connect());
    gateway.wait_accepted(2, LIMIT).unwrap();

    let mut refused = proxy.connect();
    assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)));
    wait::until("the refusal to be counted", LIMIT, || {
        proxy.closed("limit") == 1.0
    })
    .unwrap();
    assert_eq!(gateway.accepted(), 2);
    two.write_all(b"still here").unwrap();
    assert!(finish(two).ends_with(b"still here"));

    finish(one);
    let active = || {
        let active = proxy
            .metrics()
            .value("rhizome_listener_connections_active", &[]);
        active == Some(0.0)
    };
    wait::until("both places to be free", LIMIT, active).unwrap();
    let mut again = proxy.connect();
    again.write_all(b"room").unwrap();
    assert!(finish(again).ends_with(b"room"));
    let accepted = proxy
        .metrics()
        .value("rhizome_listener_connections_total", &[]);
    assert_eq!(accepted, Some(4.0));
}
