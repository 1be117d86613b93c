//! Plain HTTP targets, which a Prometheus asks the proxy for: the page alone, by the rules of CONNECT.

use std::io::{Read, Write};

use serde_json::json;
use testkit::certs::Authority;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Rig, one_client};

/// Returns what Go's transport sends a proxy for a plain HTTP target.
fn request(target: &str) -> String {
    format!(
        "GET http://{target}/metrics HTTP/1.1\r\nHost: {target}\r\nUser-Agent: Prometheus\r\n\
         Proxy-Authorization: Basic c2VjcmV0\r\nAccept-Encoding: gzip\r\n\r\n"
    )
}

/// Returns the status of the answer to a request that is refused.
fn refused(rig: &Rig, target: &str) -> u16 {
    let asked = rig.api_server().ask(request(target).as_bytes());
    asked.unwrap().unwrap_err().status
}

#[test]
fn page_is_fetched_and_nothing_else_sent() {
    let rig = Rig::start(&json!({}));
    // It sends back what it is sent, and goes on reading: the worst of targets.
    let (target, other) = (Behavior::Echo, Behavior::Echo);
    let (target, other) = (
        Upstream::start(target).unwrap(),
        Upstream::start(other).unwrap(),
    );
    let address = target.addr().to_string();
    let expected = format!(
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         User-Agent: Prometheus\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    let mut client = rig.api_server().open().unwrap();
    let next = request(&other.addr().to_string());
    let both = format!("{}{next}", request(&address));
    client.write_all(both.as_bytes()).unwrap();
    let mut page = vec![0; expected.len()];
    client.read_exact(&mut page).unwrap();
    assert_eq!(String::from_utf8(page).unwrap(), expected);
    let all: serde_json::Value = Rig::ask(rig.admin, "GET", "/connections").json().unwrap();
    assert_eq!(all["connections"][0]["connect"], address.as_str());
    // What comes behind the answer ends the connection, so that the client sends it on another.
    client.write_all(next.as_bytes()).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    drop(client);
    rig.wait_closed("closed", 1);
    assert_eq!(target.beginnings(), [expected.as_bytes()]);
    assert_eq!((target.accepted(), other.accepted()), (1, 0));
    let answers = "rhizome_vpn_proxy_answers_total";
    rig.wait_value(answers, &[("status", "200")], 1.0);
    let bytes = expected.len() as f64;
    rig.wait_value("rhizome_relay_bytes_total", &[("direction", "tx")], bytes);
}

#[test]
fn pages_are_refused_as_tunnels_are() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let closed = testkit::ports::free(1).unwrap()[0];
    for (target, status) in [
        ("10.0.0.1:9153", 403),
        ("10.0.0.1", 403),
        ("[::ffff:10.0.0.1]:80", 403),
        ("kube-dns.kube-system.svc:9153", 403),
        ("127.0.0.1:65536", 400),
        (&format!("127.0.0.1:{closed}"), 502),
    ] {
        assert_eq!(refused(&rig, target), status, "{target}");
    }
    rig.wait_closed("unknown_destination", 4);
    rig.wait_closed("connect_refused", 1);
    rig.set_status(one_client(false, false));
    assert_eq!(refused(&rig, &echo.addr().to_string()), 503);
    let stranger = Authority::new("other").unwrap();
    let stranger = stranger.client("prometheus", &[], &[]).unwrap();
    for identity in [None, Some(&stranger)] {
        let asked = rig.client(identity).ask(request("127.0.0.1:1").as_bytes());
        assert!(asked.is_err());
    }
    assert_eq!(echo.accepted(), 0);
}
